#include "common/kv/kv_arena.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::kv {

namespace {

int64_t StrideOf(const KvLayout& layout) { return (layout.BlockLayerBytes() + 63) / 64 * 64; }

size_t BytesOf(const KvLayout& layout, int32_t blocks) {
  return static_cast<size_t>(StrideOf(layout)) * static_cast<size_t>(layout.BlockLayers()) *
         static_cast<size_t>(blocks);
}

absl::Status Check(const KvLayout& layout, int32_t blocks) {
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

}  // namespace

absl::StatusOr<std::unique_ptr<KvArena>> KvArena::Create(const KvLayout& layout, int32_t blocks) {
  LYNX_RETURN_IF_ERROR(Check(layout, blocks));
  LYNX_ASSIGN_OR_RETURN(HugeBuffer memory, HugeBuffer::Create(BytesOf(layout, blocks),
                                                              absl::StrCat(blocks, " KV blocks")));
  return std::unique_ptr<KvArena>(new KvArena(layout, blocks, std::move(memory), nullptr));
}

absl::StatusOr<std::unique_ptr<KvArena>> KvArena::CreateRemote(const KvLayout& layout,
                                                               int32_t blocks,
                                                               const MakeMemory& make) {
  LYNX_RETURN_IF_ERROR(Check(layout, blocks));
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<RemoteMemory> memory, make(BytesOf(layout, blocks)));
  return std::unique_ptr<KvArena>(new KvArena(layout, blocks, HugeBuffer(), std::move(memory)));
}

KvArena::KvArena(const KvLayout& layout, int32_t blocks, HugeBuffer memory,
                 std::unique_ptr<RemoteMemory> remote)
    : layout_(layout),
      blocks_(blocks),
      stride_(StrideOf(layout)),
      memory_(std::move(memory)),
      remote_(std::move(remote)),
      data_(remote_ == nullptr ? memory_.data() : remote_->data()) {}

std::vector<RemoteMemory::Piece> KvArena::PiecesOf(std::span<const Part> parts) {
  std::vector<RemoteMemory::Piece> pieces;
  pieces.reserve(parts.size());
  for (const Part& part : parts) {
    pieces.push_back(
        {.at = At(part.layer, part.block) + part.offset, .bytes = static_cast<size_t>(part.bytes)});
  }
  return pieces;
}

absl::Status KvArena::Read(std::span<const Part> from, std::byte* to) {
  if (remote()) return remote_->Read(PiecesOf(from), to);
  for (const Part& part : from) {
    to = std::copy_n(At(part.layer, part.block) + part.offset, part.bytes, to);
  }
  return absl::OkStatus();
}

absl::Status KvArena::Write(const std::byte* from, std::span<const Part> to) {
  if (remote()) return remote_->Write(from, PiecesOf(to));
  for (const Part& part : to) {
    std::copy_n(from, part.bytes, At(part.layer, part.block) + part.offset);
    from += part.bytes;
  }
  return absl::OkStatus();
}

}  // namespace lynx::kv
