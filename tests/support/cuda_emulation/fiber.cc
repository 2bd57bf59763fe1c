#include "tests/support/cuda_emulation/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace lynx::cuda_emulation {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kLastFrames = 8 << 10;  // Of what a fiber is in when it ends.
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr size_t kGuardBytes = 4096;

void* NewStack() {
  void* memory = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) {
    std::perror("stack of a fiber");
    std::abort();
  }
  return static_cast<char*>(memory) + kGuardBytes;
}

#if defined(__SANITIZE_ADDRESS__)
Fiber* coming_from = nullptr;

void Leave(Fiber& from, Fiber& to, bool for_good) {
  coming_from = &from;
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from.fake_stack, to.stack, to.size);
}
void Arrive(Fiber* into) {
  const void* bottom;
  size_t size;
  __sanitizer_finish_switch_fiber(into == nullptr ? nullptr : into->fake_stack, &bottom, &size);
  if (coming_from->stack == nullptr) {  // The thread's own stack, now that it is known.
    coming_from->stack = const_cast<void*>(bottom);
    coming_from->size = size;
  }
}
#else
void Leave(Fiber&, Fiber&, bool) {}
void Arrive(Fiber*) {}
#endif

}  // namespace

#if defined(__x86_64__)

// Saves what a call must keep on the stack of the caller, and takes it from the other's.
extern "C" void lynx_switch_stacks(void** from, void* to);
asm(R"(
.text
.globl lynx_switch_stacks
.type lynx_switch_stacks, @function
lynx_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size lynx_switch_stacks, . - lynx_switch_stacks
.type lynx_begin_fiber, @function
lynx_begin_fiber:
  movq %r15, %rdi
  call lynx_run_fiber
.size lynx_begin_fiber, . - lynx_begin_fiber
.globl lynx_begin_fiber
)");
extern "C" void lynx_begin_fiber();
extern "C" void lynx_run_fiber(void (*entry)()) {
  Arrive(nullptr);
  entry();
  std::abort();
}

void StartFiber(Fiber& fiber, void (*entry)()) {
  if (fiber.stack == nullptr) {
    fiber.stack = NewStack();
    fiber.size = kStackBytes;
  }
#if defined(__SANITIZE_ADDRESS__)
  // Frames that never returned: of a fiber that was left in the middle they may be anywhere.
  const size_t used = fiber.ended ? kLastFrames : fiber.size;
  __asan_unpoison_memory_region(static_cast<char*>(fiber.stack) + fiber.size - used, used);
#endif
  fiber.ended = false;
  auto* top = reinterpret_cast<void**>(static_cast<char*>(fiber.stack) + kStackBytes);
  *--top = nullptr;  // A stack begins at a multiple of 16 where a function makes a call.
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&lynx_begin_fiber);
  for (int i = 0; i < 5; ++i) *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);  // r15
  fiber.stack_pointer = top;
}

void SwitchFiber(Fiber& from, Fiber& to) {
  Leave(from, to, false);
  lynx_switch_stacks(&from.stack_pointer, to.stack_pointer);
  Arrive(&from);
}

void SwitchFiberForGood(Fiber& from, Fiber& to) {
  from.ended = true;
  Leave(from, to, true);
  lynx_switch_stacks(&from.stack_pointer, to.stack_pointer);
  std::abort();
}

#else

namespace {
ucontext_t* ContextOf(Fiber& fiber) {
  if (fiber.stack_pointer == nullptr) fiber.stack_pointer = new ucontext_t;  // As long as it.
  return static_cast<ucontext_t*>(fiber.stack_pointer);
}
void Begin(unsigned high, unsigned low) {
  Arrive(nullptr);
  const auto bits = uintptr_t{high} << 32 | low;
  reinterpret_cast<void (*)()>(bits)();
  std::abort();
}
}  // namespace

void StartFiber(Fiber& fiber, void (*entry)()) {
  if (fiber.stack == nullptr) {
    fiber.stack = NewStack();
    fiber.size = kStackBytes;
  }
  ucontext_t* context = ContextOf(fiber);
  getcontext(context);
  context->uc_stack = {.ss_sp = fiber.stack, .ss_flags = 0, .ss_size = fiber.size};
  context->uc_link = nullptr;
  const auto bits = reinterpret_cast<uintptr_t>(entry);
  makecontext(context, reinterpret_cast<void (*)()>(&Begin), 2, static_cast<unsigned>(bits >> 32),
              static_cast<unsigned>(bits));
}

void SwitchFiber(Fiber& from, Fiber& to) {
  Leave(from, to, false);
  swapcontext(ContextOf(from), ContextOf(to));
  Arrive(&from);
}

void SwitchFiberForGood(Fiber& from, Fiber& to) {
  from.ended = true;
  Leave(from, to, true);
  swapcontext(ContextOf(from), ContextOf(to));
  std::abort();
}

#endif

}  // namespace lynx::cuda_emulation
