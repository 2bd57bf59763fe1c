#pragma once

#include <cstddef>
#include <memory>

namespace lynx::cuda_emulation {

// A stack of its own on which a function runs, until it hands over to another fiber.
struct Fiber {
  void* stack_pointer = nullptr;
  void* stack = nullptr;       // Null: the thread's own.
  void* fake_stack = nullptr;  // AddressSanitizer's.
  size_t size = 0;
  bool ended = false;
};

// `entry` begins at the next switch to `fiber`, which is not running: what it did is forgotten.
// Ends by SwitchFiberForGood().
void StartFiber(Fiber& fiber, void (*entry)());
void SwitchFiber(Fiber& from, Fiber& to);
[[noreturn]] void SwitchFiberForGood(Fiber& from, Fiber& to);

}  // namespace lynx::cuda_emulation
