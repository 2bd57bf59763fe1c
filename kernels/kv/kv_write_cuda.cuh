#pragma once

#include "kernels/core/device.cuh"
#include "kernels/core/device_kernels.h"
#include "kernels/kv/kv_write_args.h"

namespace lynx::kernels::device {

inline constexpr int kKvWriteThreads = 128;

// A block a row.
template <typename T>
__global__ void __launch_bounds__(kKvWriteThreads) KvWriteKernel(KvWriteArgs args) {
  const int64_t row = blockIdx.x;
  const KvSlot slot = args.slots[row];
  T* block = reinterpret_cast<T*>(args.kv + slot.block * args.block_stride_bytes);
  const int64_t width = args.kv_heads * args.head_dim;
  for (int64_t i = threadIdx.x; i < 2 * width; i += kKvWriteThreads) {
    const float value = i < width ? args.k[row * width + i] : args.v[(row - 1) * width + i];
    const int64_t head = i / args.head_dim;
    block[(head * kKvBlockTokens + slot.offset) * args.head_dim + i % args.head_dim] =
        Narrow<T>(value);
  }
}

template <typename T>
__global__ void __launch_bounds__(kKvWriteThreads) LatentWriteKernel(LatentWriteArgs args) {
  const int64_t row = blockIdx.x;
  const KvSlot slot = args.slots[row];
  T* block = reinterpret_cast<T*>(args.kv + slot.block * args.block_stride_bytes);
  for (int64_t i = threadIdx.x; i < args.width; i += kKvWriteThreads) {
    block[slot.offset * args.width + i] = Narrow<T>(args.x[row * args.x_stride + i]);
  }
}

inline int QueueKvWrite(const KvWriteArgs& args, const DeviceQueue& queue) {
  const auto grid = static_cast<unsigned>(args.rows);
  if (args.kv_dtype == DType::kF32) {
    LYNX_LAUNCH(KvWriteKernel<float>, grid, kKvWriteThreads, 0, queue.stream, args);
  } else {
    LYNX_LAUNCH(KvWriteKernel<uint16_t>, grid, kKvWriteThreads, 0, queue.stream, args);
  }
  return static_cast<int>(cudaGetLastError());
}

inline int QueueLatentWrite(const LatentWriteArgs& args, const DeviceQueue& queue) {
  const auto grid = static_cast<unsigned>(args.rows);
  if (args.kv_dtype == DType::kF32) {
    LYNX_LAUNCH(LatentWriteKernel<float>, grid, kKvWriteThreads, 0, queue.stream, args);
  } else {
    LYNX_LAUNCH(LatentWriteKernel<uint16_t>, grid, kKvWriteThreads, 0, queue.stream, args);
  }
  return static_cast<int>(cudaGetLastError());
}

}  // namespace lynx::kernels::device
