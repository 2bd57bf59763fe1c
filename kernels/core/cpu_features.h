#pragma once

// How BestIsa() is found on x86-64; for it and its test only.

#include <cstdint>

#include "kernels/core/isa.h"

namespace lynx::kernels::internal {

// Words of CPUID and of the register that says which state the system saves.
struct CpuFeatures {
  uint32_t leaf1_ecx = 0;
  uint32_t extended1_ecx = 0;  // Leaf 0x80000001.
  uint32_t leaf7_ebx = 0;
  uint32_t leaf7_edx = 0;
  uint32_t leaf7_1_eax = 0;  // Of subleaf 1.
  uint32_t xcr0 = 0;
};

// The last whose bodies find there all that their compiler may have used.
Isa WidestIsa(const CpuFeatures& cpu);

}  // namespace lynx::kernels::internal
