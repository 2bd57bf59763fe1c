#pragma once

#include <cstdint>
#include <string_view>

namespace lynx::kernels {

// The instruction set of the kCpu bodies, each with all that those before it have. Sums are ordered
// alike in the first three, but kPortable rounds products where the others fuse; the last two have
// products of bf16 by bf16 of their own (vdpbf16ps, tdpbf16ps), which round otherwise and flush
// denormal numbers. So the instruction set is part of a numeric class.
enum class Isa : uint8_t { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };

inline constexpr Isa kAllIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16,
                                   Isa::kAmx};

std::string_view Name(Isa isa);

// The last that this machine runs. Cheap after the first call, which asks the system for the use of
// the tile registers on behalf of the process.
Isa BestIsa();

}  // namespace lynx::kernels

// Declares one body per instruction set: LYNX_KERNEL_BODY(void, RmsNormRows, const RmsNormArgs&)
// declares portable::RmsNormRows, avx2::RmsNormRows and avx512::RmsNormRows in lynx::kernels, and
// RmsNormRowsFor(Isa), which returns the address of one of them.
//
// LYNX_BF16_KERNEL_BODY declares avx512bf16 and amx bodies as well, for operations whose files are
// BF16_BODIES of lynx_kernel_library() as well as CPU_BODIES.
#if defined(__x86_64__)
#define LYNX_KERNEL_BODY_IN(isa, result, name, ...) \
  namespace lynx::kernels::isa {                    \
  result name(__VA_ARGS__);                         \
  }
#define LYNX_KERNEL_BODY(result, name, ...)                \
  LYNX_KERNEL_BODY_IN(portable, result, name, __VA_ARGS__) \
  LYNX_KERNEL_BODY_IN(avx2, result, name, __VA_ARGS__)     \
  LYNX_KERNEL_BODY_IN(avx512, result, name, __VA_ARGS__)   \
  namespace lynx::kernels::internal {                      \
  inline auto name##For(Isa isa) {                         \
    return isa >= Isa::kAvx512 ? &avx512::name             \
           : isa == Isa::kAvx2 ? &avx2::name               \
                               : &portable::name;          \
  }                                                        \
  }
#define LYNX_BF16_KERNEL_BODY(result, name, ...)             \
  LYNX_KERNEL_BODY_IN(portable, result, name, __VA_ARGS__)   \
  LYNX_KERNEL_BODY_IN(avx2, result, name, __VA_ARGS__)       \
  LYNX_KERNEL_BODY_IN(avx512, result, name, __VA_ARGS__)     \
  LYNX_KERNEL_BODY_IN(avx512bf16, result, name, __VA_ARGS__) \
  LYNX_KERNEL_BODY_IN(amx, result, name, __VA_ARGS__)        \
  namespace lynx::kernels::internal {                        \
  inline auto name##For(Isa isa) {                           \
    return isa == Isa::kAmx          ? &amx::name            \
           : isa == Isa::kAvx512Bf16 ? &avx512bf16::name     \
           : isa == Isa::kAvx512     ? &avx512::name         \
           : isa == Isa::kAvx2       ? &avx2::name           \
                                     : &portable::name;            \
  }                                                          \
  }
#else
#define LYNX_KERNEL_BODY(result, name, ...)              \
  namespace lynx::kernels::portable {                    \
  result name(__VA_ARGS__);                              \
  }                                                      \
  namespace lynx::kernels::internal {                    \
  inline auto name##For(Isa) { return &portable::name; } \
  }
#define LYNX_BF16_KERNEL_BODY LYNX_KERNEL_BODY
#endif
