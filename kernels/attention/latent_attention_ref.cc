#include <cmath>
#include <vector>

#include "kernels/attention/latent_attention_backends.h"
#include "kernels/core/float_convert.h"

namespace lynx::kernels::internal {
namespace {

// Element d of what the cache has of one token.
double Element(const LatentAttentionArgs& args, const AttentionRow& row, int32_t token, int64_t d) {
  const std::byte* block =
      args.kv + row.blocks[token / kAttentionBlockTokens] * args.block_stride_bytes;
  const int64_t index = token % kAttentionBlockTokens * (args.latent_dim + args.rope_dim) + d;
  return args.kv_dtype == DType::kF32 ? reinterpret_cast<const float*>(block)[index]
                                      : Bf16ToF32(reinterpret_cast<const uint16_t*>(block)[index]);
}

}  // namespace

// Written to be read next to the formula in latent_attention_args.h. Do not tune it.
void LatentAttentionReference(const LatentAttentionArgs& args) {
  const int64_t width = args.latent_dim + args.rope_dim;
  for (int64_t r = 0; r < args.row_count; ++r) {
    const AttentionRow& row = args.rows[r];
    for (int64_t h = 0; h < args.heads; ++h) {
      const float* q = args.q + r * args.q_stride + h * width;
      std::vector<double> scores;
      double largest = -INFINITY;
      for (int32_t t = 0; t <= row.position; ++t) {
        double dot = 0;
        for (int64_t d = 0; d < width; ++d) dot += q[d] * Element(args, row, t, d);
        scores.push_back(dot * args.scale);
        largest = std::fmax(largest, scores.back());
      }
      double total = 0;
      for (double& score : scores) total += score = std::exp(score - largest);
      for (int64_t d = 0; d < args.latent_dim; ++d) {
        double sum = 0;
        for (int32_t t = 0; t <= row.position; ++t) {
          sum += scores[static_cast<size_t>(t)] * Element(args, row, t, d);
        }
        const float y = static_cast<float>(sum / total);
        const int64_t at = r * args.y_stride + h * args.y_head_stride + d;
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
