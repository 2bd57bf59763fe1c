#include "kernels/core/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lynx::kernels {

std::string_view Name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

#if defined(__x86_64__)

namespace {

// Linux hands out the tile registers to processes that ask: their state is 8 KiB a thread.
bool RequestTiles() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Isa Detect() {
  __builtin_cpu_init();
  // Some features by hand: compilers disagree about their names.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 29)) != 0;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && f16c;
  if (!avx2) return Isa::kPortable;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (!avx512) return Isa::kAvx2;
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0 || (eax & (1u << 5)) == 0) {
    return Isa::kAvx512;
  }
  __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx);
  constexpr unsigned kAmxBf16AndTile = (1u << 22) | (1u << 24);
  const bool amx = (edx & kAmxBf16AndTile) == kAmxBf16AndTile && RequestTiles();
  return amx ? Isa::kAmx : Isa::kAvx512Bf16;
}

}  // namespace

Isa BestIsa() {
  static const Isa best = Detect();
  return best;
}

#else

Isa BestIsa() { return Isa::kPortable; }

#endif

}  // namespace lynx::kernels
