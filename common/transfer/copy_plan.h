#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv/kv_layout.h"
#include "common/proto/transfer.pb.h"

namespace lynx::transfer {

// Descriptor of the KV that one rank holds. `head_begin`: its first head of `kv_heads_total`;
// latents are one head, which every rank holds. Ranks that hold the same head are neighbours.
proto::LayoutDescriptor DescribeLayout(const kv::KvLayout& layout, int32_t kv_heads_total,
                                       int32_t tp_size, int32_t tp_rank, int32_t head_begin);

// The bytes of one block in one layer that move from the sender's form to the receiver's.
struct CopySlice {
  int64_t from = 0;
  int64_t to = 0;
  int64_t bytes = 0;

  friend bool operator==(const CopySlice&, const CopySlice&) = default;
};

// Nothing is shared: no slices.
struct CopyPlan {
  int64_t block_bytes = 0;  // One block of one layer as it travels: the slices, back to back.
  int32_t to_head = 0;      // First of these heads among those that the receiver holds.
  int32_t heads = 0;
  std::vector<CopySlice> slices;
};

// What one rank of a prefill node sends to one rank of a decode node of each block, computed from
// their descriptors alone, so that the two cannot disagree: the heads that both hold. Of a head
// that several ranks of the sender hold, as of latents, one of them sends it to each receiver: the
// copies of the receivers are dealt out to those of the senders in turn.
//
//   InvalidArgument     a descriptor contradicts itself.
//   FailedPrecondition  the two nodes cannot exchange KV; the message names both values.
absl::StatusOr<CopyPlan> PlanCopy(const proto::LayoutDescriptor& from,
                                  const proto::LayoutDescriptor& to);

}  // namespace lynx::transfer
