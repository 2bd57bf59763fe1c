#include "kernels/core/simd.h"
#include "kernels/kv/kv_write_backends.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {
namespace {

inline F32x16 Rounded(const float*, F32x16 a) { return a; }
inline F32x16 Rounded(const Bf16*, F32x16 a) { return RoundBf16(a); }

template <typename T>
void Copy(const float* from, int64_t size, T* to) {
  const int64_t whole = size / kLanes * kLanes;
  const int64_t tail = size - whole;
  for (int64_t d = 0; d < whole; d += kLanes) Store(to + d, Rounded(to, Load(from + d)));
  if (tail > 0) StorePartial(to + whole, Rounded(to, LoadPartial(from + whole, tail)), tail);
}

template <typename T>
void Rows(const KvWriteArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    auto* block = reinterpret_cast<T*>(args.kv + args.slots[r].block * args.block_stride_bytes);
    for (int64_t head = 0; head < 2 * args.kv_heads; ++head) {
      const float* from = head < args.kv_heads
                              ? args.k + (r * args.kv_heads + head) * args.head_dim
                              : args.v + ((r - 1) * args.kv_heads + head) * args.head_dim;
      Copy(from, args.head_dim,
           block + (head * kKvBlockTokens + args.slots[r].offset) * args.head_dim);
    }
  }
}

template <typename T>
void Rows(const LatentWriteArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    auto* block = reinterpret_cast<T*>(args.kv + args.slots[r].block * args.block_stride_bytes);
    Copy(args.x + r * args.x_stride, args.width, block + args.slots[r].offset * args.width);
  }
}

template <typename Args>
void RowsOf(const Args& args, int64_t begin, int64_t end) {
  if (args.kv_dtype == DType::kF32) {
    Rows<float>(args, begin, end);
  } else {
    Rows<Bf16>(args, begin, end);
  }
}

}  // namespace

void KvWriteRows(const KvWriteArgs& args, int64_t begin, int64_t end) { RowsOf(args, begin, end); }

void LatentWriteRows(const LatentWriteArgs& args, int64_t begin, int64_t end) {
  RowsOf(args, begin, end);
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
