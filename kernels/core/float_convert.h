#pragma once

#include <bit>
#include <cstdint>

namespace lynx::kernels {

// Scalar conversions between float32 and the two 16-bit formats, by their bits. Rounding is to
// nearest, ties to even; NaN stays NaN; nothing is flushed to zero.

inline float Bf16ToF32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t F32ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float RoundToBf16(float value) { return Bf16ToF32(F32ToBf16(value)); }

float F16ToF32(uint16_t bits);
uint16_t F32ToF16(float value);

}  // namespace lynx::kernels
