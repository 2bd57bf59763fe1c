#include "common/kv/kv_arena.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::kv {

namespace {

absl::Status CheckSizes(const KvLayout& layout, int32_t blocks) {
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
  return absl::OkStatus();
}

int64_t StrideOf(const KvLayout& layout) { return (layout.BlockLayerBytes() + 63) / 64 * 64; }

size_t BytesOf(const KvLayout& layout, int32_t blocks) {
  return static_cast<size_t>(StrideOf(layout)) * static_cast<size_t>(layout.BlockLayers()) *
         static_cast<size_t>(blocks);
}

std::string Purpose(int32_t blocks) { return absl::StrCat(blocks, " KV blocks"); }

}  // namespace

absl::StatusOr<std::unique_ptr<KvArena>> KvArena::Create(const KvLayout& layout, int32_t blocks) {
  LYNX_RETURN_IF_ERROR(CheckSizes(layout, blocks));
  return Own(layout, blocks, HugeBuffer::Create(BytesOf(layout, blocks), Purpose(blocks)));
}

absl::StatusOr<std::unique_ptr<KvArena>> KvArena::CreateShared(const KvLayout& layout,
                                                               int32_t blocks) {
  LYNX_RETURN_IF_ERROR(CheckSizes(layout, blocks));
  return Own(layout, blocks, HugeBuffer::CreateShared(BytesOf(layout, blocks), Purpose(blocks)));
}

absl::StatusOr<std::unique_ptr<KvArena>> KvArena::Attach(const std::string& handle,
                                                         const KvLayout& layout, int32_t blocks) {
  LYNX_RETURN_IF_ERROR(CheckSizes(layout, blocks));
  return Own(layout, blocks, HugeBuffer::Attach(handle, BytesOf(layout, blocks), Purpose(blocks)));
}

absl::StatusOr<std::unique_ptr<KvArena>> KvArena::Own(const KvLayout& layout, int32_t blocks,
                                                      absl::StatusOr<HugeBuffer> memory) {
  LYNX_RETURN_IF_ERROR(memory.status());
  return std::unique_ptr<KvArena>(
      new KvArena(layout, blocks, StrideOf(layout), *std::move(memory)));
}

KvArena::KvArena(const KvLayout& layout, int32_t blocks, int64_t stride, HugeBuffer memory)
    : layout_(layout), blocks_(blocks), stride_(stride), memory_(std::move(memory)) {}

}  // namespace lynx::kv
