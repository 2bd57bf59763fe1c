#include "tests/kernels/cuda/planted_kernels.h"

#include "kernels/core/device.cuh"

namespace lynx::testing {
namespace {

using namespace kernels::device;  // NOLINT: kernels are written within it.

__global__ void SumKernel(Planted fault, const float* values, float* sum) {
  LYNX_SHARED(partial, float[32]);
  LYNX_SHARED(lanes, float[33]);
  LYNX_DYNAMIC_SHARED(float, copied);
  const unsigned thread = threadIdx.x, warps = blockDim.x / kWarp;
  const unsigned lane = thread % kWarp;
  if (fault == Planted::kEarlyExit && thread >= blockDim.x / 2) return;
  float value;
  if (thread % 4 == 0) CopyAsync16(copied + thread, values + thread);
  CommitCopies();
  if (fault == Planted::kMissingWait && thread % 4 == 0) sum[1] = copied[thread];
  WaitForCopies<0>();
  if (fault == Planted::kDivergentBarrier && thread < kWarp) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  value = copied[thread];
  if (fault == Planted::kDivergentShuffle) {
    if (lane < 16) value = value + __shfl_xor_sync(kAllLanes, value, 1);
  } else {
    value = WarpSum(value);
  }
  // Once more, by way of a neighbour's memory.
  if (thread < kWarp) {
    lanes[lane] = value;
    if (fault != Planted::kMissingWarpSync) __syncwarp();
    value = lanes[(lane + 1) % kWarp];
    if (fault == Planted::kOutside && lane == 31) value = lanes[lane + warps / 4];
    if (fault == Planted::kUnwritten && lane == 31) value = lanes[32];
    __syncwarp();
  }
  for (int round = 0; round < 2; ++round) {
    if (lane == 0) partial[thread / kWarp] = value;
    if (fault != Planted::kMissingBarrier) __syncthreads();
    float total = 0;
    for (unsigned w = 0; w < warps; ++w) total = total + partial[w];
    if (thread == 0) *sum = total;
    if (fault != Planted::kMissingSecond && fault != Planted::kMissingBarrier) __syncthreads();
  }
  if (fault == Planted::kEndlessWait) {
    while (*sum == *sum) Pause();
  }
}

__global__ void WarpKernel(const unsigned* values, WarpResults* results) {
  const unsigned lane = threadIdx.x, value = values[lane];
  results->shuffled[lane] = __shfl_sync(kAllLanes, value, static_cast<int>(31 - lane));
  results->crossed[lane] = __shfl_xor_sync(kAllLanes, value, 4);
  results->down[lane] = __shfl_down_sync(kAllLanes, value, 3);
  results->ballot[lane] = __ballot_sync(kAllLanes, value % 3 == 0);
  results->most[lane] = __reduce_max_sync(kAllLanes, value);
  results->least[lane] = __reduce_min_sync(kAllLanes, value);
  results->added[lane] = __reduce_add_sync(kAllLanes, value);
}

__global__ void MmaKernel(const float* a, const float* b, float* c) {
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
  const auto pair = [](float low, float high) {
    return uint32_t{F32ToBf16(low)} | uint32_t{F32ToBf16(high)} << 16;
  };
  const auto of_a = [&](int row, int k) { return pair(a[row * 16 + k], a[row * 16 + k + 1]); };
  const auto of_b = [&](int k) { return pair(b[k * 8 + g], b[(k + 1) * 8 + g]); };
  const uint32_t a_part[4] = {of_a(g, 2 * t), of_a(g + 8, 2 * t), of_a(g, 2 * t + 8),
                              of_a(g + 8, 2 * t + 8)};
  const uint32_t b_part[2] = {of_b(2 * t), of_b(2 * t + 8)};
  float sums[4] = {};
  MmaBf16(a_part, b_part, sums);
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
}

__global__ void LastBlockKernel(unsigned* counter, unsigned* result) {
  if (threadIdx.x != 0) return;
  if (Publish(counter) == gridDim.x - 1) *result = LoadAcquire(counter);
}

}  // namespace

int RunPlanted(Planted fault, const float* values, int threads, float* sum) {
  LYNX_LAUNCH(SumKernel, 1u, static_cast<unsigned>(threads),
              static_cast<size_t>(threads) * sizeof(float), nullptr, fault, values, sum);
  return cudaGetLastError();
}

int RunWarpOperations(const unsigned* values, WarpResults* results) {
  LYNX_LAUNCH(WarpKernel, 1u, 32u, 0, nullptr, values, results);
  return cudaGetLastError();
}

int RunMma(const float* a, const float* b, float* c) {
  LYNX_LAUNCH(MmaKernel, 1u, 32u, 0, nullptr, a, b, c);
  return cudaGetLastError();
}

int RunLastBlock(int blocks, unsigned* counter, unsigned* result) {
  LYNX_LAUNCH(LastBlockKernel, static_cast<unsigned>(blocks), 64u, 0, nullptr, counter, result);
  return cudaGetLastError();
}

}  // namespace lynx::testing
