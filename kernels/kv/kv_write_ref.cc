#include "kernels/core/float_convert.h"
#include "kernels/kv/kv_write_backends.h"

namespace lynx::kernels::internal {

namespace {

void Store(std::byte* block, DType dtype, int64_t i, float value) {
  if (dtype == DType::kF32) {
    reinterpret_cast<float*>(block)[i] = value;
  } else {
    reinterpret_cast<uint16_t*>(block)[i] = F32ToBf16(value);
  }
}

}  // namespace

// Written to be read next to the layouts in kv_write_args.h. Do not tune it.
void KvWriteReference(const KvWriteArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    std::byte* block = args.kv + args.slots[r].block * args.block_stride_bytes;
    for (int64_t head = 0; head < 2 * args.kv_heads; ++head) {
      const bool value = head >= args.kv_heads;
      const float* from =
          (value ? args.v : args.k) + (r * args.kv_heads + head % args.kv_heads) * args.head_dim;
      const int64_t to = (head * kKvBlockTokens + args.slots[r].offset) * args.head_dim;
      for (int64_t d = 0; d < args.head_dim; ++d) Store(block, args.kv_dtype, to + d, from[d]);
    }
  }
}

void LatentWriteReference(const LatentWriteArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    std::byte* block = args.kv + args.slots[r].block * args.block_stride_bytes;
    for (int64_t d = 0; d < args.width; ++d) {
      Store(block, args.kv_dtype, args.slots[r].offset * args.width + d,
            args.x[r * args.x_stride + d]);
    }
  }
}

}  // namespace lynx::kernels::internal
