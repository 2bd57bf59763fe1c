#include "kernels/core/isa.h"

#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/core/cpu_features.h"
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

constexpr bool Has(uint32_t word, std::initializer_list<int> bits) {
  for (const int bit : bits) {
    if ((word >> bit & 1) == 0) return false;
  }
  return true;
}

internal::CpuFeatures ReadFeatures() {
  internal::CpuFeatures features;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) features.leaf1_ecx = ecx;
  if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) != 0) features.extended1_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
    features.leaf7_ebx = ebx;
    features.leaf7_edx = edx;
  }
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) features.leaf7_1_eax = eax;
  if (Has(features.leaf1_ecx, {27})) {  // OSXSAVE: the instruction is there.
    uint32_t low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    features.xcr0 = low;
  }
  return features;
}

}  // namespace

Isa BestIsa() {
  static const Isa best = [] {
    const Isa widest = internal::WidestIsa(ReadFeatures());
    return widest == Isa::kAmx && !RequestTiles() ? Isa::kAvx512Bf16 : widest;
  }();
  return best;
}

// As kernels/CMakeLists.txt has them compiled: -march=x86-64-v3, -march=x86-64-v4 and options
// beside them, each with the state that the system must save.
Isa internal::WidestIsa(const CpuFeatures& cpu) {
  const bool v3 = Has(cpu.leaf1_ecx, {0, 9, 13, 19, 20, 23}) &&  // SSE3, SSSE3, CMPXCHG16B, SSE4.1,
                                                                 // SSE4.2, POPCNT
                  Has(cpu.leaf1_ecx, {12, 22, 27, 28, 29}) &&    // FMA, MOVBE, OSXSAVE, AVX, F16C
                  Has(cpu.extended1_ecx, {0, 5}) &&              // LAHF, LZCNT
                  Has(cpu.leaf7_ebx, {3, 5, 8}) &&               // BMI1, AVX2, BMI2
                  Has(cpu.xcr0, {1, 2});
  if (!v3) return Isa::kPortable;
  const bool v4 = Has(cpu.leaf7_ebx, {16, 17, 28, 30, 31}) &&  // AVX512F, DQ, CD, BW, VL
                  Has(cpu.xcr0, {5, 6, 7});
  if (!v4) return Isa::kAvx2;
  if (!Has(cpu.leaf7_1_eax, {5})) return Isa::kAvx512;  // AVX512_BF16
  const bool amx = Has(cpu.leaf7_edx, {22, 24}) &&      // AMX_BF16, AMX_TILE
                   Has(cpu.xcr0, {17, 18});
  return amx ? Isa::kAmx : Isa::kAvx512Bf16;
}

#else

Isa BestIsa() { return Isa::kPortable; }

#endif

}  // namespace lynx::kernels
