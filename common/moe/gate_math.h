#pragma once

namespace lynx::moe {

// e^x in float32 within 2 ulp for x <= 0: 0 below -87.3, NaN for NaN.
//
// A fixed polynomial with explicit fused multiply-adds, not the C library's: weights of a plan have
// the same bits on every machine and back end that computes them so.
float GateExp(float x);

}  // namespace lynx::moe
