#pragma once

#include <cstdint>

#include "kernels/core/isa.h"

// Functions of kernels/core/simd.h made callable from a test; n is a multiple of 16.
LYNX_KERNEL_BODY(void, ProbeExp, const float* x, float* y, int64_t n)
LYNX_KERNEL_BODY(void, ProbeSilu, const float* x, float* y, int64_t n)
LYNX_KERNEL_BODY(void, ProbeRoundBf16, const float* x, float* y, int64_t n)
LYNX_KERNEL_BODY(void, ProbeLoadF16, const uint16_t* x, float* y, int64_t n)
LYNX_KERNEL_BODY(void, ProbeLoadBf16, const uint16_t* x, float* y, int64_t n)
LYNX_KERNEL_BODY(void, ProbeStoreBf16, const float* x, uint16_t* y, int64_t n)
// [16] -> the sum; [64] -> four sums; [16] -> the largest.
LYNX_KERNEL_BODY(float, ProbeReduceAdd, const float* x)
LYNX_KERNEL_BODY(void, ProbeReduceAdd4, const float* x, float* y)
LYNX_KERNEL_BODY(float, ProbeReduceMax, const float* x)
// Copies n < 16 elements through a partial load and store.
LYNX_KERNEL_BODY(void, ProbePartialCopy, const float* x, float* y, int64_t n)
