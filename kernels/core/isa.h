#pragma once

#include <cstdint>
#include <string_view>

namespace lynx::kernels {

// The instruction set of the kCpu bodies. Sums are ordered alike in all three, but kPortable rounds
// products where the others fuse, so the instruction set is part of a numeric class.
enum class Isa : uint8_t { kPortable, kAvx2, kAvx512 };

std::string_view Name(Isa isa);

// The widest this machine runs. Cheap after the first call.
Isa BestIsa();

}  // namespace lynx::kernels

// Declares one body per instruction set: LYNX_KERNEL_BODY(void, RmsNormRows, const RmsNormArgs&)
// declares portable::RmsNormRows, avx2::RmsNormRows and avx512::RmsNormRows in lynx::kernels, and
// RmsNormRowsFor(Isa), which returns the address of one of them.
#if defined(__x86_64__)
#define LYNX_KERNEL_BODY(result, name, ...)       \
  namespace lynx::kernels::portable {             \
  result name(__VA_ARGS__);                       \
  }                                               \
  namespace lynx::kernels::avx2 {                 \
  result name(__VA_ARGS__);                       \
  }                                               \
  namespace lynx::kernels::avx512 {               \
  result name(__VA_ARGS__);                       \
  }                                               \
  namespace lynx::kernels::internal {             \
  inline auto name##For(Isa isa) {                \
    return isa == Isa::kAvx512 ? &avx512::name    \
           : isa == Isa::kAvx2 ? &avx2::name      \
                               : &portable::name; \
  }                                               \
  }
#else
#define LYNX_KERNEL_BODY(result, name, ...)              \
  namespace lynx::kernels::portable {                    \
  result name(__VA_ARGS__);                              \
  }                                                      \
  namespace lynx::kernels::internal {                    \
  inline auto name##For(Isa) { return &portable::name; } \
  }
#endif
