#include "common/kv/kv_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace lynx::kv {

absl::StatusOr<std::unique_ptr<KvArena>> KvArena::Create(const KvLayout& layout, int32_t blocks) {
  if (layout.layers <= 0 || layout.kv_heads <= 0 || layout.head_dim <= 0 || blocks <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV arena needs positive sizes: layers ", layout.layers, ", kv_heads ",
                     layout.kv_heads, ", head_dim ", layout.head_dim, ", blocks ", blocks));
  }
  const int64_t stride = (layout.BlockLayerBytes() + 63) / 64 * 64;
  const size_t bytes = static_cast<size_t>(stride) * static_cast<size_t>(layout.layers) *
                       static_cast<size_t>(blocks);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", bytes, " bytes for ", blocks, " KV blocks: ", strerror(errno)));
  }
  madvise(base, bytes, MADV_HUGEPAGE);  // A hint; ordinary pages work too.
  return std::unique_ptr<KvArena>(
      new KvArena(layout, blocks, stride, static_cast<std::byte*>(base), bytes));
}

KvArena::KvArena(const KvLayout& layout, int32_t blocks, int64_t stride, std::byte* base,
                 size_t mapped)
    : layout_(layout), blocks_(blocks), stride_(stride), base_(base), mapped_bytes_(mapped) {}

KvArena::~KvArena() { munmap(base_, mapped_bytes_); }

}  // namespace lynx::kv
