#include "kernels/core/isa.h"

#include <cstdint>

#include "gtest/gtest.h"
#include "kernels/core/cpu_features.h"

namespace lynx::kernels {
namespace {

#if defined(__x86_64__)

using internal::CpuFeatures;
using internal::WidestIsa;

constexpr CpuFeatures kAll = {.leaf1_ecx = ~0u,
                              .extended1_ecx = ~0u,
                              .leaf7_ebx = ~0u,
                              .leaf7_edx = ~0u,
                              .leaf7_1_eax = ~0u,
                              .xcr0 = ~0u};

struct Feature {
  const char* name;
  uint32_t CpuFeatures::*word;
  int bit;
  Isa without;  // The widest that a machine without it runs.
};

// What gcc -march=x86-64-v3 and so on say that they define, bit by bit.
constexpr Feature kFeatures[] = {
    {"SSE3", &CpuFeatures::leaf1_ecx, 0, Isa::kPortable},
    {"SSSE3", &CpuFeatures::leaf1_ecx, 9, Isa::kPortable},
    {"FMA", &CpuFeatures::leaf1_ecx, 12, Isa::kPortable},
    {"CMPXCHG16B", &CpuFeatures::leaf1_ecx, 13, Isa::kPortable},
    {"SSE4.1", &CpuFeatures::leaf1_ecx, 19, Isa::kPortable},
    {"SSE4.2", &CpuFeatures::leaf1_ecx, 20, Isa::kPortable},
    {"MOVBE", &CpuFeatures::leaf1_ecx, 22, Isa::kPortable},
    {"POPCNT", &CpuFeatures::leaf1_ecx, 23, Isa::kPortable},
    {"OSXSAVE", &CpuFeatures::leaf1_ecx, 27, Isa::kPortable},
    {"AVX", &CpuFeatures::leaf1_ecx, 28, Isa::kPortable},
    {"F16C", &CpuFeatures::leaf1_ecx, 29, Isa::kPortable},
    {"LAHF", &CpuFeatures::extended1_ecx, 0, Isa::kPortable},
    {"LZCNT", &CpuFeatures::extended1_ecx, 5, Isa::kPortable},
    {"BMI1", &CpuFeatures::leaf7_ebx, 3, Isa::kPortable},
    {"AVX2", &CpuFeatures::leaf7_ebx, 5, Isa::kPortable},
    {"BMI2", &CpuFeatures::leaf7_ebx, 8, Isa::kPortable},
    {"SSE state", &CpuFeatures::xcr0, 1, Isa::kPortable},
    {"AVX state", &CpuFeatures::xcr0, 2, Isa::kPortable},
    {"AVX512F", &CpuFeatures::leaf7_ebx, 16, Isa::kAvx2},
    {"AVX512DQ", &CpuFeatures::leaf7_ebx, 17, Isa::kAvx2},
    {"AVX512CD", &CpuFeatures::leaf7_ebx, 28, Isa::kAvx2},
    {"AVX512BW", &CpuFeatures::leaf7_ebx, 30, Isa::kAvx2},
    {"AVX512VL", &CpuFeatures::leaf7_ebx, 31, Isa::kAvx2},
    {"mask state", &CpuFeatures::xcr0, 5, Isa::kAvx2},
    {"upper halves' state", &CpuFeatures::xcr0, 6, Isa::kAvx2},
    {"upper registers' state", &CpuFeatures::xcr0, 7, Isa::kAvx2},
    {"AVX512_BF16", &CpuFeatures::leaf7_1_eax, 5, Isa::kAvx512},
    {"AMX_BF16", &CpuFeatures::leaf7_edx, 22, Isa::kAvx512Bf16},
    {"AMX_TILE", &CpuFeatures::leaf7_edx, 24, Isa::kAvx512Bf16},
    {"tile configuration", &CpuFeatures::xcr0, 17, Isa::kAvx512Bf16},
    {"tile data", &CpuFeatures::xcr0, 18, Isa::kAvx512Bf16},
};

TEST(IsaTest, EachFeatureThatBodiesMayUseIsAskedFor) {
  EXPECT_EQ(WidestIsa(kAll), Isa::kAmx);
  EXPECT_EQ(WidestIsa({}), Isa::kPortable);
  for (const Feature& feature : kFeatures) {
    CpuFeatures cpu = kAll;
    cpu.*feature.word &= ~(1u << feature.bit);
    EXPECT_EQ(WidestIsa(cpu), feature.without) << "without " << feature.name;
  }
}

TEST(IsaTest, NothingElseIsAskedFor) {
  CpuFeatures cpu;
  for (const Feature& feature : kFeatures) cpu.*feature.word |= 1u << feature.bit;
  EXPECT_EQ(WidestIsa(cpu), Isa::kAmx);
}

// The compiler's own check is narrower here and there, and never wider.
TEST(IsaTest, ThisMachineHasWhatIsFound) {
  __builtin_cpu_init();
  if (BestIsa() >= Isa::kAvx2) {
    EXPECT_TRUE(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  }
  if (BestIsa() >= Isa::kAvx512) {
    EXPECT_TRUE(__builtin_cpu_supports("avx512bw"));
  } else {
    EXPECT_FALSE(BestIsa() == Isa::kAvx2 && __builtin_cpu_supports("avx512f") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
  }
}

#endif

}  // namespace
}  // namespace lynx::kernels
