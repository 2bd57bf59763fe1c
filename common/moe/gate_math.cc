#include "common/moe/gate_math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace lynx::moe {
namespace {

[[gnu::always_inline]] inline float Exp(float x) {
  if (std::isnan(x)) return x;
  if (x < -87.3f) return 0.0f;
  const float n = std::nearbyint(x * 1.44269504f);  // log2(e)
  // ln 2 in two parts, of which n times the first is exact.
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  // (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2.
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  p = std::fma(p, r * r, r) + 1.0f;
  return p * std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

void ExpsPortable(const float* x, size_t count, float offset, float* y) {
  for (size_t i = 0; i < count; ++i) y[i] = Exp(x[i] - offset);
}

#if defined(__x86_64__)
// The same arithmetic in instructions instead of calls into the C library.
[[gnu::target("avx2,fma")]] void ExpsFma(const float* x, size_t count, float offset, float* y) {
  for (size_t i = 0; i < count; ++i) y[i] = Exp(x[i] - offset);
}
#endif

using ExpsFunction = void (*)(const float* x, size_t count, float offset, float* y);

ExpsFunction BestExps() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return ExpsFma;
#endif
  return ExpsPortable;
}

}  // namespace

float GateExp(float x) { return Exp(x); }

void GateExps(const float* x, size_t count, float offset, float* y) {
  static const ExpsFunction exps = BestExps();
  exps(x, count, offset, y);
}

float GateSigmoid(float x) { return Exp(std::min(x, 0.0f)) / (1.0f + Exp(-std::abs(x))); }

}  // namespace lynx::moe
