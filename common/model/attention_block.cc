#include "common/model/attention_block.h"

#include <cmath>
#include <span>

#include "common/base/status_macros.h"
#include "common/kv/kv_layout.h"
#include "common/model/linear.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/core/float_convert.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "kernels/kv/kv_write.h"
#include "kernels/norm/rms_norm.h"

namespace lynx::model {

static_assert(kernels::kAttentionBlockTokens == kv::kBlockTokens);
static_assert(kernels::kKvBlockTokens == kv::kBlockTokens);

AttentionBlock::AttentionBlock(const ModelSpec& spec, int64_t max_rows, int64_t positions,
                               DType compute_dtype, int32_t threads, kernels::Device* device)
    : spec_(spec),
      round_bf16_(compute_dtype == DType::kBf16),
      rotary_(spec, positions, device),
      x_(max_rows, spec.hidden_size, compute_dtype, device),
      attended_(max_rows, int64_t{spec.query_heads} * spec.head_dim, compute_dtype, device),
      workspace_(kernels::AttentionWorkspace::BytesFor(threads)) {
  const auto rows = static_cast<size_t>(max_rows);
  const auto q_width = static_cast<size_t>(spec.query_heads) * static_cast<size_t>(spec.head_dim);
  const auto kv_width = static_cast<size_t>(spec.kv_heads) * static_cast<size_t>(spec.head_dim);
  q_ = StepArray<float>(device, rows * q_width);
  k_ = StepArray<float>(device, rows * kv_width);
  v_ = StepArray<float>(device, rows * kv_width);
  if (spec.query_key_norm == QueryKeyNorm::kRotated) {
    rotated_gain_ = std::vector<float>(static_cast<size_t>(spec.head_dim), 1.0f);
    ones_ = CopyOf(std::span<const float>(rotated_gain_.host()), device);
    rotated_gain_.MoveTo(ones_.data());
  }
}

absl::Status AttentionBlock::Run(const AttentionWeights& weights, const RowPlaces& places,
                                 int32_t layer, kv::KvArena& kv, float* hidden, RankSum& sum,
                                 const kernels::ExecContext& ctx) {
  const auto rows = static_cast<int64_t>(places.positions.size());
  const int64_t head_dim = spec_.head_dim;
  const int64_t q_width = spec_.query_heads * head_dim;

  LYNX_RETURN_IF_ERROR(
      Normalise(hidden, weights.input_norm, spec_.rms_norm_epsilon, rows, x_, ctx));
  const kernels::GemmArgs projections[] = {
      Projection(x_, weights.q, weights.q_bias, rows, q_.data()),
      Projection(x_, weights.k, weights.k_bias, rows, k_.data()),
      Projection(x_, weights.v, weights.v_bias, rows, v_.data())};
  LYNX_RETURN_IF_ERROR(kernels::Gemm(projections, ctx));

  const LayerAttention& kind = spec_.attention[static_cast<size_t>(layer)];
  if (spec_.query_key_norm == QueryKeyNorm::kWholeVector && !sum.alone()) {
    LYNX_RETURN_IF_ERROR(NormOverRanks(weights, rows, sum));
  } else {
    LYNX_RETURN_IF_ERROR(NormHeads(weights.q_norm, rows, spec_.query_heads, q_, ctx));
    LYNX_RETURN_IF_ERROR(NormHeads(weights.k_norm, rows, spec_.kv_heads, k_, ctx));
  }
  if (spec_.clip_qkv > 0) {
    LYNX_RETURN_IF_ERROR(ClipHeads(rows, spec_.query_heads, q_, ctx));
    LYNX_RETURN_IF_ERROR(ClipHeads(rows, spec_.kv_heads, k_, ctx));
    LYNX_RETURN_IF_ERROR(ClipHeads(rows, spec_.kv_heads, v_, ctx));
  }
  if (kind.rope) {
    LYNX_RETURN_IF_ERROR(
        rotary_.Rotate(places.positions, spec_.query_heads, head_dim, q_width, q_.data(), ctx));
    LYNX_RETURN_IF_ERROR(rotary_.Rotate(places.positions, spec_.kv_heads, head_dim,
                                        spec_.kv_heads * head_dim, k_.data(), ctx));
    LYNX_RETURN_IF_ERROR(NormHeads(rotated_gain_, rows, spec_.query_heads, q_, ctx));
    LYNX_RETURN_IF_ERROR(NormHeads(rotated_gain_, rows, spec_.kv_heads, k_, ctx));
  } else if (spec_.query_growth > 0) {
    LYNX_RETURN_IF_ERROR(kernels::Grow({.x = q_.data(),
                                        .positions = places.positions.data(),
                                        .rows = rows,
                                        .width = q_width,
                                        .x_stride = q_width,
                                        .growth = spec_.query_growth,
                                        .floor = spec_.query_growth_floor},
                                       ctx));
  }

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
  LYNX_RETURN_IF_ERROR(kernels::PagedAttention({.q = q_.data(),
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
                                                .scale = spec_.attention_scale,
                                                .sinks = DataOrNull(weights.sinks)},
                                               workspace_, ctx));
  kernels::GemmArgs output =
      Projection(attended_, weights.o, weights.o_bias, rows, sum.Begin(hidden, rows));
  if (!sum.first()) output.bias = nullptr;
  output.accumulate = true;
  output.scale = spec_.residual_multiplier;
  LYNX_RETURN_IF_ERROR(kernels::Gemm(output, ctx));
  return sum.End(hidden, rows);
}

absl::Status AttentionBlock::NormHeads(const Floats& gain, int64_t rows, int64_t heads,
                                       StepArray<float>& x, const kernels::ExecContext& ctx) {
  if (gain.empty()) return absl::OkStatus();
  const auto width = static_cast<int64_t>(gain.size());
  return kernels::RmsNorm({.x = x.data(),
                           .gain = gain.data(),
                           .y = x.data(),
                           .rows = rows * heads * spec_.head_dim / width,
                           .hidden = width,
                           .x_stride = width,
                           .y_stride = width,
                           .epsilon = spec_.rms_norm_epsilon,
                           .round_bf16 = round_bf16_},
                          ctx);
}

absl::Status AttentionBlock::NormOverRanks(const AttentionWeights& weights, int64_t rows,
                                           RankSum& sum) {
  struct Vectors {
    std::span<float> x;
    const std::vector<float>& gain;
  };
  const Vectors both[] = {{q_.host(), weights.q_norm.host()}, {k_.host(), weights.k_norm.host()}};
  // Of each row and rank, sum of squares and number of elements: KV heads may be on several ranks.
  squares_.clear();
  for (const auto& [x, gain] : both) {
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      float total = 0;
      for (const float value : x.subspan(r * gain.size(), gain.size())) {
        total += value * value;
      }
      squares_.push_back(total);
      squares_.push_back(static_cast<float>(gain.size()));
    }
  }
  LYNX_RETURN_IF_ERROR(sum.Add(squares_));
  const float* of_row = squares_.data();
  const auto round = [&](float value) { return round_bf16_ ? kernels::RoundToBf16(value) : value; };
  for (const auto& [x, gain] : both) {
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r, of_row += 2) {
      const float scale = 1 / std::sqrt(of_row[0] / of_row[1] + spec_.rms_norm_epsilon);
      float* const row = x.data() + r * gain.size();
      for (size_t c = 0; c < gain.size(); ++c) row[c] = round(gain[c] * round(row[c] * scale));
    }
  }
  return absl::OkStatus();
}

absl::Status AttentionBlock::ClipHeads(int64_t rows, int64_t heads, StepArray<float>& x,
                                       const kernels::ExecContext& ctx) const {
  const int64_t width = heads * spec_.head_dim;
  return kernels::Clip(
      {.x = x.data(), .rows = rows, .width = width, .x_stride = width, .limit = spec_.clip_qkv},
      ctx);
}

}  // namespace lynx::model
