#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/support/cuda_emulation/emulator.h"

namespace lynx::cuda_emulation {

// Which thread, and how far it is: a warp operation takes all lanes in it to one more than the most
// of theirs.
struct ThreadClock {
  uint16_t thread = 0;
  uint32_t warp = 0;
};

// What is known of each byte of one block's shared memory: who wrote and who read it since the last
// barrier of the block.
//
// Of the readers two are kept. A race is missed only where a third alone is not ordered with a
// write, or where a warp operation of some lanes seems to order others.
class SharedShadow {
 public:
  // Of a new block: the first `known` bytes of [memory, memory + size) are variables.
  void Reset(const void* memory, size_t size, size_t known);
  // [at, at + size) is a variable.
  void Add(const void* at, size_t size);
  void SetInFlight(const void* at, size_t size, bool in_flight);

  // All threads of the block have met.
  void NextInterval() { ++interval_; }

  // Notes an access; what is wrong with it, or null. Of no interest outside the block's memory.
  const char* Touch(const ThreadClock& clock, const void* address, size_t size, Access access);

 private:
  struct Mark {
    uint32_t interval = 0;  // 0: none of this block.
    uint32_t warp = 0;
    uint16_t thread = 0;
    bool atomic = false;
  };
  struct Byte {
    Mark write;
    Mark reads[2];
    uint32_t written_from = 0;  // The interval in which it was first written.
    bool known = false;
    bool in_flight = false;
  };
  bool Apart(const Mark& mark, const ThreadClock& clock) const;
  const char* TouchByte(Byte& byte, const ThreadClock& clock, Access access);

  const std::byte* memory_ = nullptr;
  size_t size_ = 0;
  size_t used_ = 0;  // Bytes from here on are as Reset() left them.
  uint32_t interval_ = 1;
  std::vector<Byte> bytes_;
};

}  // namespace lynx::cuda_emulation
