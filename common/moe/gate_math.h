#pragma once

#include <cstddef>
#include <cstdint>

namespace lynx::moe {

// e^x in float32 within 2 ulp for x <= 0: 0 below -87.3, NaN for NaN.
//
// A fixed polynomial with explicit fused multiply-adds, not the C library's: weights of a plan have
// the same bits on every machine and back end that computes them so.
float GateExp(float x);

// y[i] = GateExp(x[i] - offset) for i < count, the same bits, faster. x and y may be the same.
void GateExps(const float* x, size_t count, float offset, float* y);
// y[i] = GateExp(x[ids[i]] - offset)
void GateExpsOf(const float* x, const int32_t* ids, size_t count, float offset, float* y);

// 1 / (1 + e^-x) for any x that is not NaN. Built on GateExp.
float GateSigmoid(float x);

}  // namespace lynx::moe
