#pragma once

#include "kernels/core/device.cuh"
#include "kernels/core/device_kernels.h"
#include "kernels/norm/rms_norm_args.h"

namespace lynx::kernels::device {

inline constexpr int kRmsNormThreads = 256;

// A block a row, which it reads twice, the second time from cache: bound by memory. In place is
// safe, as the barrier lies between the last read of the first pass and the first write.
template <bool kRound, typename T>
__global__ void __launch_bounds__(kRmsNormThreads) RmsNormKernel(RmsNormArgs args) {
  LYNX_SHARED(partial, float[kRmsNormThreads / kWarp]);
  const float* x = args.x + blockIdx.x * args.x_stride;
  T* y = static_cast<T*>(args.y) + blockIdx.x * args.y_stride;

  float sum = 0;
  for (int64_t c = threadIdx.x; c < args.hidden; c += kRmsNormThreads) sum = fmaf(x[c], x[c], sum);
  sum = WarpSum(sum);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = sum;
  __syncthreads();
  float total = 0;
  for (const float each : partial) total = total + each;

  const float scale = 1.0f / sqrtf(total / static_cast<float>(args.hidden) + args.epsilon);
  for (int64_t c = threadIdx.x; c < args.hidden; c += kRmsNormThreads) {
    const float normed = x[c] * scale;
    y[c] =
        Narrow<T>(kRound ? RoundToBf16(args.gain[c] * RoundToBf16(normed)) : args.gain[c] * normed);
  }
}

inline int QueueRmsNorm(const RmsNormArgs& args, const DeviceQueue& queue) {
  const auto grid = static_cast<unsigned>(args.rows);
  if (args.y_dtype == DType::kBf16) {
    LYNX_LAUNCH((RmsNormKernel<true, uint16_t>), grid, kRmsNormThreads, 0, queue.stream, args);
  } else if (args.round_bf16) {
    LYNX_LAUNCH((RmsNormKernel<true, float>), grid, kRmsNormThreads, 0, queue.stream, args);
  } else {
    LYNX_LAUNCH((RmsNormKernel<false, float>), grid, kRmsNormThreads, 0, queue.stream, args);
  }
  return static_cast<int>(cudaGetLastError());
}

}  // namespace lynx::kernels::device
