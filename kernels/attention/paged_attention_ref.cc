#include <cmath>
#include <vector>

#include "kernels/attention/paged_attention_backends.h"
#include "kernels/core/float_convert.h"

namespace lynx::kernels::internal {
namespace {

// K (or V, `value`) of one token and KV head, element d.
double Element(const PagedAttentionArgs& args, const AttentionRow& row, int32_t token, bool value,
               int64_t kv_head, int64_t d) {
  const std::byte* block =
      args.kv + row.blocks[token / kAttentionBlockTokens] * args.block_stride_bytes;
  const int64_t head = (value ? args.kv_heads : 0) + kv_head;
  const int64_t index =
      (head * kAttentionBlockTokens + token % kAttentionBlockTokens) * args.head_dim + d;
  return args.kv_dtype == DType::kF32 ? reinterpret_cast<const float*>(block)[index]
                                      : Bf16ToF32(reinterpret_cast<const uint16_t*>(block)[index]);
}

}  // namespace

// Written to be read next to the formula in paged_attention_args.h. Do not tune it.
void PagedAttentionReference(const PagedAttentionArgs& args) {
  for (int64_t r = 0; r < args.row_count; ++r) {
    const AttentionRow& row = args.rows[r];
    for (int64_t h = 0; h < args.heads; ++h) {
      const int64_t g = h / (args.heads / args.kv_heads);
      const float* q = args.q + r * args.q_stride + h * args.head_dim;
      std::vector<double> scores;
      double largest = args.sinks == nullptr ? -INFINITY : args.sinks[h];
      for (int32_t t = row.first; t <= row.position; ++t) {
        double dot = 0;
        for (int64_t d = 0; d < args.head_dim; ++d)
          dot += q[d] * Element(args, row, t, false, g, d);
        scores.push_back(dot * args.scale);
        largest = std::fmax(largest, scores.back());
      }
      double total = args.sinks == nullptr ? 0 : std::exp(args.sinks[h] - largest);
      for (double& score : scores) total += score = std::exp(score - largest);
      for (int64_t d = 0; d < args.head_dim; ++d) {
        double sum = 0;
        for (int32_t t = row.first; t <= row.position; ++t) {
          sum += scores[static_cast<size_t>(t - row.first)] * Element(args, row, t, true, g, d);
        }
        const float y = static_cast<float>(sum / total);
        const int64_t at = r * args.y_stride + h * args.head_dim + d;
        if (args.compute_dtype == DType::kBf16) {
          static_cast<uint16_t*>(args.y)[at] = F32ToBf16(y);
        } else {
          static_cast<float*>(args.y)[at] = y;
        }
      }
    }
  }
}

}  // namespace lynx::kernels::internal
