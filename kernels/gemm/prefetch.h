#pragma once

// For kernel bodies only.

#include <cstdint>

namespace lynx::kernels::LYNX_KERNEL_ISA {

// Fetches weights into the L2 cache some time before a product reads them, a few lines with every
// step of it. The processor's own prefetching follows a stream of whole tiles too closely, and
// rests while later rows pass over weights that are in cache already.
class Prefetch {
 public:
  // For a product that reads `bytes` from `from` on in `steps` steps: fetches as much, from
  // `ahead_bytes` further on. Nothing from `end` on; null: nothing at all.
  Prefetch(const void* from, int64_t bytes, int64_t steps, int64_t ahead_bytes, const void* end)
      : at_(reinterpret_cast<uintptr_t>(from) + static_cast<uintptr_t>(ahead_bytes)),
        end_(at_ + static_cast<uintptr_t>(bytes)),
        step_bytes_(static_cast<uintptr_t>((bytes / 64 + steps - 1) / steps * 64)) {
    const auto limit = reinterpret_cast<uintptr_t>(end);
    if (limit < end_) end_ = limit;
  }

  void Step() {
    for (const uintptr_t stop = at_ + step_bytes_; at_ < stop && at_ < end_; at_ += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(at_), /*rw=*/0, /*locality=*/2);
    }
  }

 private:
  uintptr_t at_;
  uintptr_t end_;
  uintptr_t step_bytes_;
};

// How far ahead where `tiles` tiles of rows pass over all of a panel one after the other: the first
// finds it fetched while the rows passed over the one before.
inline int64_t AheadBytes(int64_t panel_bytes, int64_t tiles) {
  constexpr int64_t kStreaming = 16 << 10;
  return tiles == 1 ? kStreaming : panel_bytes;
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
