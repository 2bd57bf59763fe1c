#pragma once

#include "kernels/core/device.cuh"
#include "kernels/core/device_kernels.h"
#include "kernels/elementwise/elementwise_args.h"

namespace lynx::kernels::device {

inline constexpr int kElementwiseThreads = 256;

// The columns of a thread, a block a row.
template <typename Use>
__device__ void ForColumns(int64_t width, const Use& use) {
  for (int64_t c = threadIdx.x; c < width; c += kElementwiseThreads) use(c);
}

static __global__ void __launch_bounds__(kElementwiseThreads) ClipKernel(ClipArgs args) {
  float* const x = args.x + int64_t{blockIdx.x} * args.x_stride;
  ForColumns(args.width, [&](int64_t c) {
    const float value = x[c];
    x[c] = value < -args.limit ? -args.limit : args.limit < value ? args.limit : value;
  });
}

static __global__ void __launch_bounds__(kElementwiseThreads) GrowKernel(GrowArgs args) {
  float* const x = args.x + int64_t{blockIdx.x} * args.x_stride;
  const float reached = static_cast<float>(args.positions[blockIdx.x] + 1) / args.floor;
  const float growth = 1.0f + args.growth * log1pf(floorf(reached));
  ForColumns(args.width, [&](int64_t c) { x[c] = x[c] * growth; });
}

static __global__ void __launch_bounds__(kElementwiseThreads)
    GateWeightsKernel(GateWeightsArgs args) {
  const int64_t r = int64_t{blockIdx.x} * kElementwiseThreads + threadIdx.x;
  if (r < args.rows) args.weights[r] = args.scale / (1.0f + expf(-args.weights[r]));
}

static __global__ void __launch_bounds__(kElementwiseThreads)
    GatherRowsKernel(GatherRowsArgs args) {
  const float* const x = args.x + int64_t{args.numbers[blockIdx.x]} * args.x_stride;
  float* const y = args.y + int64_t{blockIdx.x} * args.y_stride;
  ForColumns(args.width, [&](int64_t c) { y[c] = x[c]; });
}

template <typename Args>
int QueueRows(void (*kernel)(Args), const Args& args, int64_t blocks, const DeviceQueue& queue) {
  LYNX_LAUNCH(kernel, static_cast<unsigned>(blocks), kElementwiseThreads, 0, queue.stream, args);
  return static_cast<int>(cudaGetLastError());
}

inline int QueueClip(const ClipArgs& args, const DeviceQueue& queue) {
  return QueueRows(&ClipKernel, args, args.rows, queue);
}
inline int QueueGrow(const GrowArgs& args, const DeviceQueue& queue) {
  return QueueRows(&GrowKernel, args, args.rows, queue);
}
inline int QueueGateWeights(const GateWeightsArgs& args, const DeviceQueue& queue) {
  return QueueRows(&GateWeightsKernel, args, CeilDiv<int64_t>(args.rows, kElementwiseThreads),
                   queue);
}
inline int QueueGatherRows(const GatherRowsArgs& args, const DeviceQueue& queue) {
  return QueueRows(&GatherRowsKernel, args, args.rows, queue);
}

}  // namespace lynx::kernels::device
