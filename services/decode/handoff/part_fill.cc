#include "services/decode/handoff/part_fill.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/kv/kv_layout.h"
#include "common/transfer/checksum.h"

namespace lynx::decode {

PartFill::PartFill(kv::KvArena& arena, std::vector<kv::BlockId> blocks, int32_t first_block,
                   int32_t prompt_tokens)
    : arena_(arena),
      blocks_(std::move(blocks)),
      first_block_(first_block),
      end_block_(static_cast<int32_t>(kv::BlocksFor(prompt_tokens))),
      prompt_tokens_(prompt_tokens) {
  const kv::KvLayout& layout = arena_.layout();
  for (int32_t layer = 0; layer < layout.layers; ++layer) {
    wanted_ += int64_t{std::max(0, end_block_ - FirstWanted(layer))} * layout.kv_heads;
  }
  verified_.resize(static_cast<size_t>(layout.layers) *
                   static_cast<size_t>(end_block_ - first_block_) *
                   static_cast<size_t>(layout.kv_heads));
  missing_ = wanted_;
}

int32_t PartFill::FirstWanted(int32_t layer) const {
  const kv::KvGroups& groups = arena_.layout().groups;
  return std::max(first_block_, groups.FirstBlock(groups.group_of(layer), prompt_tokens_));
}

absl::Status PartFill::Check(const transfer::CopyPlan& plan, const proto::KvPush& push,
                             size_t payload_bytes) const {
  const int64_t count = push.checksums_size();
  const int32_t layers = arena_.layout().layers;
  const bool has_layer = push.layer() >= 0 && push.layer() < layers;
  const int32_t first = has_layer ? FirstWanted(push.layer()) : first_block_;
  if (has_layer && count > 0 && push.first_block() >= first &&
      push.first_block() + count <= end_block_ &&
      static_cast<int64_t>(payload_bytes) == count * plan.block_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "push of ", count, " blocks from ", push.first_block(), " in layer ", push.layer(), " of ",
      layers, " with ", payload_bytes, " bytes; the grant wants blocks ", first, " to ", end_block_,
      ", ", plan.block_bytes, " bytes each"));
}

absl::StatusOr<int> PartFill::Store(const transfer::CopyPlan& plan, const proto::KvPush& push,
                                    std::span<const std::byte> payload) {
  const kv::KvLayout& layout = arena_.layout();
  const auto block_bytes = static_cast<size_t>(plan.block_bytes);
  const auto heads = static_cast<size_t>(layout.kv_heads);
  const auto per_layer = static_cast<size_t>(end_block_ - first_block_);
  const size_t group_blocks = blocks_.size() / static_cast<size_t>(layout.groups.count());
  const auto table = std::span(blocks_).subspan(
      static_cast<size_t>(layout.groups.group_of(push.layer())) * group_blocks, group_blocks);
  int repeated = 0;
  // Verified and not stored yet: parts of blocks, whose bytes follow one another.
  std::vector<kv::KvArena::Part> parts;
  const std::byte* from = payload.data();
  const auto store = [&]() -> absl::Status {
    if (parts.empty()) return absl::OkStatus();
    const absl::Status status = arena_.Write(from, std::exchange(parts, {}));
    if (status.ok()) return status;
    return absl::InternalError(
        absl::StrCat("cannot store KV: ", absl::string_view(status.message())));
  };
  for (int i = 0; i < push.checksums_size(); ++i) {
    const std::span<const std::byte> block =
        payload.subspan(static_cast<size_t>(i) * block_bytes, block_bytes);
    const int32_t index = push.first_block() + i;
    if (transfer::Checksum(block) != push.checksums(i)) {
      return absl::DataLossError(
          absl::StrCat("block ", index, " of layer ", push.layer(), " arrived damaged"));
    }
    const size_t bit = (static_cast<size_t>(push.layer()) * per_layer +
                        static_cast<size_t>(index - first_block_)) *
                           heads +
                       static_cast<size_t>(plan.to_head);
    if (verified_[bit]) {
      ++repeated;
      LYNX_RETURN_IF_ERROR(store());
      continue;
    }
    if (parts.empty()) from = block.data();
    for (const transfer::CopySlice& slice : plan.slices) {
      parts.push_back({.layer = push.layer(),
                       .block = table[static_cast<size_t>(index)],
                       .offset = slice.to,
                       .bytes = slice.bytes});
    }
    // The heads of one pair of ranks come together.
    for (int32_t head = 0; head < plan.heads; ++head) {
      verified_[bit + static_cast<size_t>(head)] = true;
    }
    missing_ -= plan.heads;
    bytes_ += plan.block_bytes;
  }
  LYNX_RETURN_IF_ERROR(store());
  return repeated;
}

void PartFill::Forget() {
  missing_ = wanted_;
  bytes_ = 0;
  verified_.assign(verified_.size(), false);
}

}  // namespace lynx::decode
