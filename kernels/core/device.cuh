#pragma once

// For CUDA kernels only: what they share, and the few things that plain C++ has no word for. Under
// emulation (tests/support/cuda_emulation) <cuda_runtime.h> is another, and brings these macros.
//
//   LYNX_LAUNCH(kernel, grid, block, shared bytes, stream, arguments ...)
//   LYNX_SHARED(name, type)            a variable in shared memory; of a kernel, not of a function
//   LYNX_DYNAMIC_SHARED(type, name)    the launch's shared bytes, aligned to 16, as type*
//   LYNX_UNROLL, LYNX_NO_UNROLL        before a loop: over registers, or to spare them
//
// Multiplications and additions fuse where the source says fmaf() and nowhere else (-fmad=false):
// bits must not depend on what a compiler made of a line.

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#define LYNX_LAUNCH(kernel, grid, block, shared, stream, ...) \
  kernel<<<grid, block, shared, static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__)
#define LYNX_UNROLL _Pragma("unroll")
#define LYNX_NO_UNROLL _Pragma("unroll 1")
#define LYNX_SHARED(name, ...) __shared__ std::type_identity_t<__VA_ARGS__> name
#define LYNX_DYNAMIC_SHARED(type, name)                        \
  extern __shared__ __align__(16) unsigned char lynx_shared[]; \
  auto* const name = reinterpret_cast<type*>(lynx_shared)
#endif

namespace lynx::kernels::device {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

template <typename T>
__host__ __device__ constexpr T Min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
__host__ __device__ constexpr T Max(T a, T b) {
  return a < b ? b : a;
}
template <typename T>
__host__ __device__ constexpr T CeilDiv(T a, T b) {
  return (a + b - 1) / b;
}

// bf16 by its bits, as kernels/core/float_convert.h.
__device__ inline float Bf16ToF32(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }
__device__ inline uint16_t F32ToBf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
__device__ inline float RoundToBf16(float value) { return Bf16ToF32(F32ToBf16(value)); }
__device__ inline float F16ToF32(uint16_t bits) {
#if defined(__CUDACC__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  const uint32_t magnitude = (bits & 0x7fffu) << 13, sign = (bits & 0x8000u) << 16;
  if (magnitude >= 0x0f800000u) return __uint_as_float(sign | 0x70000000u | magnitude);
  // Another bias of the exponent, 2^112 apart: exact, of denormal numbers too.
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude) * 0x1p112f));
#endif
}
// Of two in one word, the first in the low half.
__device__ inline float Low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float High(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// Elements of a tensor in f32 or bf16, by type: float or uint16_t.
__device__ inline float Widen(float value) { return value; }
__device__ inline float Widen(uint16_t value) { return Bf16ToF32(value); }
template <typename T>
__device__ T Narrow(float value) {
  if constexpr (sizeof(T) == 4)
    return value;
  else
    return F32ToBf16(value);
}

// Sums over a warp, in a fixed order; the same bits in every lane.
template <typename T>
__device__ T WarpSum(T value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value = value + __shfl_xor_sync(kAllLanes, value, lanes);
  }
  return value;
}
__device__ inline float WarpMax(float value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, lanes));
  }
  return value;
}

// A number that is larger where the float is; of -0 and 0 alike, never 0. No NaN.
__device__ inline uint32_t OrderedBits(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// 16 bytes from global to shared memory, both at multiples of 16, that this thread has after the
// wait and others of its block after a barrier beyond it.
__device__ inline void CopyAsync16(void* shared, const void* global) {
#if defined(__CUDACC__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
#else
  cuda_emulation::CopyAsync16(shared, global);
#endif
}
// Those since the last commit are a group.
__device__ inline void CommitCopies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#else
  cuda_emulation::CommitCopies();
#endif
}
// Until at most kLeft groups are under way.
template <int kLeft>
__device__ void WaitForCopies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kLeft) : "memory");
#else
  cuda_emulation::WaitForCopies(kLeft);
#endif
}

// c += a * b of one warp: m16n8k16, bf16 with float32 sums; fragments as PTX defines them.
__device__ inline void MmaBf16(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  cuda_emulation::MmaFragments all{
      {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {c[0], c[1], c[2], c[3]}};
  cuda_emulation::WarpMma(all);
  for (int i = 0; i < 4; ++i) c[i] = all.c[i];
#endif
}

// What another block wrote before its Publish() of the same counter is seen after.
__device__ inline uint32_t LoadAcquire(const uint32_t* counter) {
#if defined(__CUDACC__)
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(value) : "l"(counter) : "memory");
  return value;
#else
  return cuda_emulation::AtomicLoad(counter);
#endif
}
// Adds 1, after all that this thread wrote or saw written, by a barrier; returns what was there.
__device__ inline uint32_t Publish(uint32_t* counter) {
  __threadfence();
  const uint32_t before = atomicAdd(counter, 1u);
  __threadfence();
  return before;
}
// For a loop that waits for others.
__device__ inline void Pause() {
#if defined(__CUDACC__)
  __nanosleep(40);
#else
  cuda_emulation::Yield();
#endif
}

}  // namespace lynx::kernels::device
