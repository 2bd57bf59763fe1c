#include "tests/support/cuda_emulation/shared_shadow.h"

#include <algorithm>

namespace lynx::cuda_emulation {

void SharedShadow::Reset(const void* memory, size_t size, size_t known) {
  memory_ = static_cast<const std::byte*>(memory);
  size_ = size;
  interval_ = 1;
  bytes_.resize(size);
  std::fill_n(bytes_.begin(), used_, Byte{});
  used_ = 0;
  Add(memory, known);
}

void SharedShadow::Add(const void* at, size_t size) {
  const auto first = static_cast<size_t>(static_cast<const std::byte*>(at) - memory_);
  for (size_t i = first; i < first + size; ++i) bytes_[i].known = true;
  used_ = std::max(used_, first + size);
}

void SharedShadow::SetInFlight(const void* at, size_t size, bool in_flight) {
  const std::ptrdiff_t first = static_cast<const std::byte*>(at) - memory_;
  if (first < 0 || static_cast<size_t>(first) + size > size_) return;
  for (size_t i = 0; i < size; ++i) bytes_[static_cast<size_t>(first) + i].in_flight = in_flight;
}

// Whether neither a barrier nor the order of one thread lies between the mark and now.
bool SharedShadow::Apart(const Mark& mark, const ThreadClock& clock) const {
  if (mark.interval != interval_ || mark.thread == clock.thread) return false;
  return mark.thread / 32 != clock.thread / 32 || mark.warp >= clock.warp;
}

const char* SharedShadow::TouchByte(Byte& byte, const ThreadClock& clock, Access access) {
  if (!byte.known) return "shared memory outside of what the block has";
  const Mark now{interval_, clock.warp, clock.thread, access == Access::kAtomic};
  if (byte.write.interval == 0 && access != Access::kWrite) {
    byte.write = now;  // Told once.
    return "shared memory is read that nobody wrote";
  }
  if (byte.in_flight && access != Access::kWrite) {
    return "data of an asynchronous copy is read before the wait for it";
  }
  const bool both_atomic = byte.write.atomic && now.atomic;
  if (Apart(byte.write, clock) && !both_atomic) {
    return access == Access::kRead
               ? "race: shared memory is read that another thread wrote since the last barrier"
               : "race: shared memory is written that another thread wrote since the last barrier";
  }
  if (access == Access::kRead) {
    Mark* slot = &byte.reads[0];
    if (Apart(*slot, clock)) {
      slot = &byte.reads[1];
      // Of two readers, one of another warp says more.
      if (Apart(*slot, clock) && slot->thread / 32 != byte.reads[0].thread / 32) return nullptr;
    }
    *slot = now;
    return nullptr;
  }
  for (const Mark& read : byte.reads) {
    if (Apart(read, clock)) {
      return "race: shared memory is written that another thread read since the last barrier";
    }
  }
  byte.write = now;
  return nullptr;
}

const char* SharedShadow::Touch(const ThreadClock& clock, const void* address, size_t size,
                                Access access) {
  const std::ptrdiff_t first = static_cast<const std::byte*>(address) - memory_;
  if (first < 0 || static_cast<size_t>(first) >= size_) return nullptr;
  if (static_cast<size_t>(first) + size > size_)
    return "shared memory outside of what the block has";
  const char* fault = nullptr;
  for (size_t i = 0; i < size; ++i) {
    const char* found = TouchByte(bytes_[static_cast<size_t>(first) + i], clock, access);
    if (fault == nullptr) fault = found;
  }
  return fault;
}

}  // namespace lynx::cuda_emulation
