#include "kernels/core/float_convert.h"
#include "kernels/kv/kv_write_backends.h"

namespace lynx::kernels::internal {

// Written to be read next to the layout in kv_write_args.h. Do not tune it.
void KvWriteReference(const KvWriteArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    std::byte* block = args.kv + args.slots[r].block * args.block_stride_bytes;
    for (int64_t head = 0; head < 2 * args.kv_heads; ++head) {
      const bool value = head >= args.kv_heads;
      const float* from =
          (value ? args.v : args.k) + (r * args.kv_heads + head % args.kv_heads) * args.head_dim;
      const int64_t to = (head * kKvBlockTokens + args.slots[r].offset) * args.head_dim;
      for (int64_t d = 0; d < args.head_dim; ++d) {
        if (args.kv_dtype == DType::kF32) {
          reinterpret_cast<float*>(block)[to + d] = from[d];
        } else {
          reinterpret_cast<uint16_t*>(block)[to + d] = F32ToBf16(from[d]);
        }
      }
    }
  }
}

}  // namespace lynx::kernels::internal
