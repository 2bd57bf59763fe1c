#include "tests/kernels/core/simd_probe.h"

#include "kernels/core/simd.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

void ProbeExp(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) Store(y + i, Exp(Load(x + i)));
}
void ProbeSilu(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) Store(y + i, Silu(Load(x + i)));
}
void ProbeRoundBf16(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) Store(y + i, RoundBf16(Load(x + i)));
}
void ProbeLoadF16(const uint16_t* x, float* y, int64_t n) {
  const auto* from = reinterpret_cast<const F16*>(x);
  for (int64_t i = 0; i < n; i += kLanes) Store(y + i, Load(from + i));
}
void ProbeLoadBf16(const uint16_t* x, float* y, int64_t n) {
  const auto* from = reinterpret_cast<const Bf16*>(x);
  for (int64_t i = 0; i < n; i += kLanes) Store(y + i, Load(from + i));
}
void ProbeStoreBf16(const float* x, uint16_t* y, int64_t n) {
  auto* to = reinterpret_cast<Bf16*>(y);
  for (int64_t i = 0; i < n; i += kLanes) Store(to + i, RoundBf16(Load(x + i)));
}
float ProbeReduceAdd(const float* x) { return ReduceAdd(Load(x)); }
void ProbeReduceAdd4(const float* x, float* y) {
  ReduceAdd4(Load(x), Load(x + 16), Load(x + 32), Load(x + 48), y);
}
float ProbeReduceMax(const float* x) { return ReduceMax(Load(x)); }
void ProbePartialCopy(const float* x, float* y, int64_t n) {
  StorePartial(y, LoadPartial(x, n), n);
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
