#include "common/model/attention_block.h"

#include <cmath>

#include "common/base/status_macros.h"
#include "common/kv/kv_layout.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/gemm/gemm.h"
#include "kernels/kv/kv_write.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/rope/rope.h"

namespace lynx::model {

static_assert(kernels::kAttentionBlockTokens == kv::kBlockTokens);
static_assert(kernels::kKvBlockTokens == kv::kBlockTokens);

AttentionBlock::AttentionBlock(const ModelSpec& spec, int64_t max_rows, int64_t positions,
                               DType compute_dtype)
    : spec_(spec),
      round_bf16_(compute_dtype == DType::kBf16),
      positions_(positions),
      rope_(kernels::MakeRopeTable(
          positions, kernels::MakeRopeFrequencies(spec.head_dim, spec.rope_theta, {}))),
      x_(max_rows, spec.hidden_size, compute_dtype),
      attended_(max_rows, int64_t{spec.query_heads} * spec.head_dim, compute_dtype) {
  const auto rows = static_cast<size_t>(max_rows);
  const auto q_width = static_cast<size_t>(spec.query_heads) * static_cast<size_t>(spec.head_dim);
  const auto kv_width = static_cast<size_t>(spec.kv_heads) * static_cast<size_t>(spec.head_dim);
  q_.resize(rows * q_width);
  k_.resize(rows * kv_width);
  v_.resize(rows * kv_width);
}

absl::Status AttentionBlock::Run(const AttentionWeights& weights, const RowPlaces& places,
                                 int32_t layer, kv::KvArena& kv, float* hidden,
                                 const kernels::ExecContext& ctx) {
  const auto rows = static_cast<int64_t>(places.positions.size());
  const int64_t hidden_size = spec_.hidden_size;
  const int64_t head_dim = spec_.head_dim;
  const int64_t q_width = spec_.query_heads * head_dim;

  LYNX_RETURN_IF_ERROR(kernels::RmsNorm({.x = hidden,
                                         .gain = weights.input_norm.data(),
                                         .y = x_.data(),
                                         .rows = rows,
                                         .hidden = hidden_size,
                                         .x_stride = hidden_size,
                                         .y_stride = x_.stride(),
                                         .epsilon = spec_.rms_norm_epsilon,
                                         .y_dtype = x_.dtype()},
                                        ctx));
  auto projection = [&](const kernels::Matrix& w, std::vector<float>& y) {
    return kernels::GemmArgs{.x = x_.data(),
                             .w = w,
                             .y = y.data(),
                             .rows = rows,
                             .x_stride = x_.stride(),
                             .y_stride = w.out,
                             .x_dtype = x_.dtype()};
  };
  const kernels::GemmArgs projections[] = {projection(weights.q, q_), projection(weights.k, k_),
                                           projection(weights.v, v_)};
  LYNX_RETURN_IF_ERROR(kernels::Gemm(projections, ctx));

  auto norm_and_rotate = [&](float* x, int64_t heads, const std::vector<float>& gain) {
    if (spec_.head_norm) {
      LYNX_RETURN_IF_ERROR(kernels::RmsNorm({.x = x,
                                             .gain = gain.data(),
                                             .y = x,
                                             .rows = rows * heads,
                                             .hidden = head_dim,
                                             .x_stride = head_dim,
                                             .y_stride = head_dim,
                                             .epsilon = spec_.rms_norm_epsilon,
                                             .round_bf16 = round_bf16_},
                                            ctx));
    }
    return kernels::Rope({.x = x,
                          .positions = places.positions.data(),
                          .cosines = rope_.cosines.data(),
                          .sines = rope_.sines.data(),
                          .rows = rows,
                          .heads = heads,
                          .rotary_dim = head_dim,
                          .head_stride = head_dim,
                          .x_stride = heads * head_dim,
                          .table_positions = positions_},
                         ctx);
  };
  LYNX_RETURN_IF_ERROR(norm_and_rotate(q_.data(), spec_.query_heads, weights.q_norm));
  LYNX_RETURN_IF_ERROR(norm_and_rotate(k_.data(), spec_.kv_heads, weights.k_norm));

  LYNX_RETURN_IF_ERROR(kernels::KvWrite({.k = k_.data(),
                                         .v = v_.data(),
                                         .slots = places.slots.data(),
                                         .kv = kv.Layer(layer),
                                         .rows = rows,
                                         .kv_heads = spec_.kv_heads,
                                         .head_dim = head_dim,
                                         .block_stride_bytes = kv.block_stride_bytes(),
                                         .kv_dtype = kv.layout().dtype},
                                        ctx));
  LYNX_RETURN_IF_ERROR(kernels::PagedAttention(
      {.q = q_.data(),
       .rows = places.attention.data(),
       .kv = kv.Layer(layer),
       .y = attended_.data(),
       .row_count = rows,
       .heads = spec_.query_heads,
       .kv_heads = spec_.kv_heads,
       .head_dim = head_dim,
       .q_stride = q_width,
       .y_stride = attended_.stride(),
       .block_stride_bytes = kv.block_stride_bytes(),
       .kv_dtype = kv.layout().dtype,
       .compute_dtype = attended_.dtype(),
       .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)))},
      ctx));
  return kernels::Gemm({.x = attended_.data(),
                        .w = weights.o,
                        .y = hidden,
                        .rows = rows,
                        .x_stride = attended_.stride(),
                        .y_stride = hidden_size,
                        .x_dtype = attended_.dtype(),
                        .accumulate = true},
                       ctx);
}

}  // namespace lynx::model
