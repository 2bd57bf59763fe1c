#pragma once

#include "kernels/core/device.cuh"
#include "kernels/core/device_kernels.h"
#include "kernels/rope/rope_args.h"

namespace lynx::kernels::device {

inline constexpr int kRopeThreads = 128;

// A block a row; a thread turns both elements of a pair, so that nothing is shared.
static __global__ void __launch_bounds__(kRopeThreads) RopeKernel(RopeArgs args) {
  const int64_t half = args.rotary_dim / 2;
  const int64_t row = blockIdx.x;
  const int64_t at = args.positions[row] * half;
  for (int64_t i = threadIdx.x; i < args.heads * half; i += kRopeThreads) {
    const int64_t j = i % half;
    float* x = args.x + row * args.x_stride + i / half * args.head_stride + j;
    const float cosine = args.cosines[at + j], sine = args.sines[at + j];
    const float a = x[0], b = x[half];
    x[0] = a * cosine - b * sine;
    x[half] = b * cosine + a * sine;
  }
}

inline int QueueRope(const RopeArgs& args, const DeviceQueue& queue) {
  LYNX_LAUNCH(RopeKernel, static_cast<unsigned>(args.rows), kRopeThreads, 0, queue.stream, args);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace lynx::kernels::device
