// What code compiled with -fsanitize=thread calls at every access to memory. ThreadSanitizer's own
// library is not linked: the emulator answers instead.

#include <cstddef>

#include "tests/support/cuda_emulation/emulator.h"

namespace {

using lynx::cuda_emulation::Access;
using lynx::cuda_emulation::OnAccess;

void Wide(const void* address, size_t size, Access access) { OnAccess(address, size, access); }

}  // namespace

// NOLINTBEGIN: names of the compiler's.
extern "C" {
#define LYNX_ACCESSES(size)                                                       \
  void __tsan_read##size(void* at) { Wide(at, size, Access::kRead); }             \
  void __tsan_write##size(void* at) { Wide(at, size, Access::kWrite); }           \
  void __tsan_unaligned_read##size(void* at) { Wide(at, size, Access::kRead); }   \
  void __tsan_unaligned_write##size(void* at) { Wide(at, size, Access::kWrite); } \
  void __tsan_volatile_read##size(void* at) { Wide(at, size, Access::kRead); }    \
  void __tsan_volatile_write##size(void* at) { Wide(at, size, Access::kWrite); }
LYNX_ACCESSES(1)
LYNX_ACCESSES(2)
LYNX_ACCESSES(4)
LYNX_ACCESSES(8)
LYNX_ACCESSES(16)
#undef LYNX_ACCESSES
void __tsan_read_range(void* at, size_t size) { Wide(at, size, Access::kRead); }
void __tsan_write_range(void* at, size_t size) { Wide(at, size, Access::kWrite); }
// Of guards of static variables.
char __tsan_atomic8_load(const volatile char* at, int) {
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
// NOLINTEND

namespace lynx::cuda_emulation {
bool RaceCheckWorks() { return true; }
}  // namespace lynx::cuda_emulation
