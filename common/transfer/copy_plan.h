#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv/kv_layout.h"
#include "common/proto/transfer.pb.h"

namespace lynx::transfer {

// Descriptor of the KV that one rank holds. `head_begin`: its first head of `kv_heads_total`;
// latents are one head, of which every rank holds all.
proto::LayoutDescriptor DescribeLayout(const kv::KvLayout& layout, int32_t kv_heads_total,
                                       int32_t tp_size, int32_t tp_rank, int32_t head_begin);

// The bytes of one block in one layer that move from the sender's form to the receiver's.
struct CopySlice {
  int64_t from = 0;
  int64_t to = 0;
  int64_t bytes = 0;

  friend bool operator==(const CopySlice&, const CopySlice&) = default;
};

struct CopyPlan {
  int64_t from_block_bytes = 0;  // One block of one layer as it travels.
  int64_t to_block_bytes = 0;    // The same as the receiver keeps it.
  std::vector<CopySlice> slices;
};

// What both ends of a hand-off do with each block, computed from their descriptors alone, so that
// they cannot disagree. Where the two hold the same heads this is one slice: the block as it is.
//
//   InvalidArgument     a descriptor contradicts itself.
//   FailedPrecondition  the two cannot exchange KV; the message names both values.
absl::StatusOr<CopyPlan> PlanCopy(const proto::LayoutDescriptor& from,
                                  const proto::LayoutDescriptor& to);

}  // namespace lynx::transfer
