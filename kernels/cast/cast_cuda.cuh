#pragma once

#include "kernels/cast/cast_args.h"
#include "kernels/core/device.cuh"
#include "kernels/core/device_kernels.h"

namespace lynx::kernels::device {

inline constexpr int kCastThreads = 256;

// Blocks of a row, in y, each as many elements as it has threads.
template <typename T>
__global__ void __launch_bounds__(kCastThreads) CastKernel(CastArgs args) {
  const int64_t i = int64_t{blockIdx.y} * kCastThreads + threadIdx.x;
  if (i >= args.heads * args.y_width) return;
  const int64_t row = blockIdx.x, head = i / args.y_width, d = i % args.y_width;
  const float value =
      d < args.width ? args.x[row * args.x_stride + head * args.x_head_stride + d] : 0.0f;
  static_cast<T*>(args.y)[row * args.y_stride + head * args.y_head_stride + d] = Narrow<T>(value);
}

inline int QueueCast(const CastArgs& args, const DeviceQueue& queue) {
  const int64_t blocks = CeilDiv<int64_t>(args.heads * args.y_width, kCastThreads);
  const dim3 grid{static_cast<unsigned>(args.rows), static_cast<unsigned>(blocks), 1};
  if (args.y_dtype == DType::kBf16) {
    LYNX_LAUNCH(CastKernel<uint16_t>, grid, kCastThreads, 0, queue.stream, args);
  } else {
    LYNX_LAUNCH(CastKernel<float>, grid, kCastThreads, 0, queue.stream, args);
  }
  return static_cast<int>(cudaGetLastError());
}

}  // namespace lynx::kernels::device
