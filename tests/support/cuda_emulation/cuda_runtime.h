#pragma once

// What a CUDA kernel sees in place of the toolkit's header where it is compiled as plain C++20: the
// folder of this file comes first on the include path. A kernel runs as it is written, one fiber a
// CUDA thread (see emulator.h for what is checked meanwhile); inline PTX, the memory model between
// blocks and the order of floating-point sums in hardware are not emulated.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tests/support/cuda_emulation/emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

using cudaStream_t = void*;
using cudaError_t = int;
inline constexpr cudaError_t cudaSuccess = 0;
// Of the launches since the last call: 719, a fault of a kernel, whose text emulator.h has.
inline cudaError_t cudaGetLastError() { return lynx::cuda_emulation::TakeError(); }

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
inline cudaError_t cudaGetDevice(int* device) { return *device = 0; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 3;  // As many as make blocks share work, and few enough to be quick.
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel*, int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}

#define threadIdx (::lynx::cuda_emulation::ThreadIdx())
#define blockIdx (::lynx::cuda_emulation::BlockIdx())
#define blockDim (::lynx::cuda_emulation::BlockDim())
#define gridDim (::lynx::cuda_emulation::GridDim())

// What kernels/core/device.cuh defines for nvcc.
#define LYNX_LAUNCH(kernel, grid, block, shared, stream, ...)                           \
  ::lynx::cuda_emulation::Launch(#kernel, {dim3(grid).x, dim3(grid).y, dim3(grid).z},   \
                                 {dim3(block).x, dim3(block).y, dim3(block).z}, shared, \
                                 stream, [=](auto... each) { kernel(each...); }, __VA_ARGS__)
#define LYNX_UNROLL
#define LYNX_NO_UNROLL
#define LYNX_SHARED(name, ...)                                                               \
  auto& name =                                                                               \
      *static_cast<std::type_identity_t<__VA_ARGS__>*>(::lynx::cuda_emulation::StaticShared( \
          [] {                                                                               \
            static char site;                                                                \
            return &site;                                                                    \
          }(),                                                                               \
          sizeof(std::type_identity_t<__VA_ARGS__>), alignof(std::type_identity_t<__VA_ARGS__>)))
#define LYNX_DYNAMIC_SHARED(type, name) \
  auto* const name = static_cast<type*>(::lynx::cuda_emulation::DynamicShared())

#define __syncthreads() ::lynx::cuda_emulation::SyncThreads(__FILE__, __LINE__)
#define __threadfence() ((void)0)

namespace lynx::cuda_emulation {
template <typename T>
uint64_t ToBits(T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4)
    return std::bit_cast<uint32_t>(value);
  else
    return std::bit_cast<uint64_t>(value);
}
template <typename T>
T FromBits(uint64_t bits) {
  if constexpr (sizeof(T) == 4)
    return std::bit_cast<T>(static_cast<uint32_t>(bits));
  else
    return std::bit_cast<T>(bits);
}
}  // namespace lynx::cuda_emulation

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  lynx::cuda_emulation::WarpExchange(lynx::cuda_emulation::WarpOp::kSync, mask, 0, 0);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  namespace e = lynx::cuda_emulation;
  return e::FromBits<T>(e::WarpExchange(e::WarpOp::kShuffle, mask, e::ToBits(value), lane & 31));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  namespace e = lynx::cuda_emulation;
  return e::FromBits<T>(e::WarpExchange(e::WarpOp::kShuffleXor, mask, e::ToBits(value), lanes));
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int lanes) {
  namespace e = lynx::cuda_emulation;
  return e::FromBits<T>(e::WarpExchange(e::WarpOp::kShuffleDown, mask, e::ToBits(value), lanes));
}
inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  namespace e = lynx::cuda_emulation;
  return static_cast<unsigned>(e::WarpExchange(e::WarpOp::kBallot, mask, predicate ? 1 : 0, 0));
}
inline bool __any_sync(unsigned mask, bool predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline bool __all_sync(unsigned mask, bool predicate) {
  return __ballot_sync(mask, predicate) == mask;
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  namespace e = lynx::cuda_emulation;
  return static_cast<unsigned>(e::WarpExchange(e::WarpOp::kMax, mask, value, 0));
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  namespace e = lynx::cuda_emulation;
  return static_cast<unsigned>(e::WarpExchange(e::WarpOp::kMin, mask, value, 0));
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  namespace e = lynx::cuda_emulation;
  return static_cast<unsigned>(e::WarpExchange(e::WarpOp::kAdd, mask, value, 0));
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  namespace e = lynx::cuda_emulation;
  return static_cast<unsigned>(e::WarpExchange(e::WarpOp::kOr, mask, value, 0));
}

template <typename T>
T atomicAdd(T* to, std::type_identity_t<T> value) {
  return lynx::cuda_emulation::Atomic(to, [&](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicOr(T* to, std::type_identity_t<T> value) {
  return lynx::cuda_emulation::Atomic(to, [&](T old) { return static_cast<T>(old | value); });
}
template <typename T>
T atomicMax(T* to, std::type_identity_t<T> value) {
  return lynx::cuda_emulation::Atomic(to, [&](T old) { return old < value ? value : old; });
}
template <typename T>
T atomicExch(T* to, std::type_identity_t<T> value) {
  return lynx::cuda_emulation::Atomic(to, [&](T) { return value; });
}

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
