#include "common/kv/kv_arena.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::kv {

absl::StatusOr<std::unique_ptr<KvArena>> KvArena::Create(const KvLayout& layout, int32_t blocks) {
  if (layout.kind == KvKind::kLatent && layout.kv_heads != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV arena of latents: kv_heads is ", layout.kv_heads, ", must be 1"));
  }
  if (layout.layers <= 0 || layout.kv_heads <= 0 || layout.head_dim <= 0 || blocks <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV arena needs positive sizes: layers ", layout.layers, ", kv_heads ",
                     layout.kv_heads, ", head_dim ", layout.head_dim, ", blocks ", blocks));
  }
  if (layout.groups.layers() != 0 && layout.groups.layers() != layout.layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV arena of ", layout.layers, " layers, grouped are ", layout.groups.layers()));
  }
  const int64_t stride = (layout.BlockLayerBytes() + 63) / 64 * 64;
  const size_t bytes = static_cast<size_t>(stride) * static_cast<size_t>(layout.BlockLayers()) *
                       static_cast<size_t>(blocks);
  LYNX_ASSIGN_OR_RETURN(HugeBuffer memory,
                        HugeBuffer::Create(bytes, absl::StrCat(blocks, " KV blocks")));
  return std::unique_ptr<KvArena>(new KvArena(layout, blocks, stride, std::move(memory)));
}

KvArena::KvArena(const KvLayout& layout, int32_t blocks, int64_t stride, HugeBuffer memory)
    : layout_(layout), blocks_(blocks), stride_(stride), memory_(std::move(memory)) {}

}  // namespace lynx::kv
