#pragma once

// For kernel bodies only.

#include <cstdint>

namespace lynx::kernels::LYNX_KERNEL_ISA {

// Fetches a stretch of memory into the L2 cache, a few lines with every step of a computation, so
// that both go on together. The processor's own prefetching alone follows a stream too closely.
class Prefetch {
 public:
  // All of [from, from + bytes) in `steps` steps. Null: nothing.
  Prefetch(const void* from, int64_t bytes, int64_t steps)
      : at_(static_cast<const char*>(from)),
        end_(at_ + (from == nullptr ? 0 : bytes)),
        step_bytes_((bytes / 64 + steps - 1) / steps * 64) {}

  void Step() {
    const char* stop = end_ - at_ < step_bytes_ ? end_ : at_ + step_bytes_;
    for (; at_ < stop; at_ += 64) __builtin_prefetch(at_, /*rw=*/0, /*locality=*/2);
  }

 private:
  const char* at_;
  const char* end_;
  int64_t step_bytes_;
};

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
