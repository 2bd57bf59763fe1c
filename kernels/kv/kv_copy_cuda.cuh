#pragma once

#include "kernels/core/device.cuh"
#include "kernels/core/device_kernels.h"
#include "kernels/kv/kv_copy_args.h"

namespace lynx::kernels::device {

inline constexpr int kKvCopyThreads = 256;
inline constexpr int kKvCopyLoads = 4;  // Of a thread, 16 bytes each.

// Some thread blocks a block of KV.
template <bool kGather>
__global__ void __launch_bounds__(kKvCopyThreads)
    KvCopyKernel(const __grid_constant__ KvCopyArgs args, int units) {
  static_assert(sizeof(uint4) == kKvCopyUnit);
  const int64_t block = args.blocks[blockIdx.x];
  std::byte* const kv = args.kv + block * args.block_stride_bytes;
  uint4* const packed =
      reinterpret_cast<uint4*>(args.packed) + int64_t{blockIdx.x} * int64_t{units};
  for (int i = static_cast<int>(blockIdx.y * kKvCopyThreads + threadIdx.x); i < units;
       i += static_cast<int>(gridDim.y * kKvCopyThreads)) {
    int64_t at = int64_t{i} * kKvCopyUnit;
    int p = 0;
    for (; at >= args.pieces[p].bytes; ++p) at -= args.pieces[p].bytes;
    uint4* const in_block = reinterpret_cast<uint4*>(kv + args.pieces[p].offset + at);
    if constexpr (kGather) {
      packed[i] = *in_block;
    } else {
      *in_block = packed[i];
    }
  }
}

template <bool kGather>
int QueueKvCopy(const KvCopyArgs& args, const DeviceQueue& queue) {
  const auto units = static_cast<int>(args.PackedBlockBytes() / kKvCopyUnit);
  const dim3 grid{static_cast<unsigned>(args.block_count),
                  static_cast<unsigned>(Min(CeilDiv(units, kKvCopyThreads * kKvCopyLoads), 65535)),
                  1};
  LYNX_LAUNCH(KvCopyKernel<kGather>, grid, kKvCopyThreads, 0, queue.stream, args, units);
  return static_cast<int>(cudaGetLastError());
}

inline int QueueKvGather(const KvCopyArgs& args, const DeviceQueue& queue) {
  return QueueKvCopy<true>(args, queue);
}
inline int QueueKvScatter(const KvCopyArgs& args, const DeviceQueue& queue) {
  return QueueKvCopy<false>(args, queue);
}

}  // namespace lynx::kernels::device
