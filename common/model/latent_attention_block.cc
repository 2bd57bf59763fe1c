#include "common/model/latent_attention_block.h"

#include "common/base/status_macros.h"
#include "common/kv/kv_layout.h"
#include "common/model/linear.h"
#include "kernels/attention/latent_attention.h"
#include "kernels/cast/cast.h"
#include "kernels/gemm/gemm.h"
#include "kernels/kv/kv_write.h"
#include "kernels/norm/rms_norm.h"

namespace lynx::model {

static_assert(kernels::kAttentionBlockTokens == kv::kBlockTokens);
static_assert(kernels::kKvBlockTokens == kv::kBlockTokens);

namespace {

// These norms have their class's default, whatever rms_norm_eps says.
constexpr float kLatentNormEpsilon = 1e-6f;

size_t Size(int64_t rows, int64_t width) {
  return static_cast<size_t>(rows) * static_cast<size_t>(width);
}

const std::byte* At(ActivationBuffer& x, int64_t element) {
  return static_cast<const std::byte*>(x.data()) +
         element * static_cast<int64_t>(SizeOf(x.dtype()));
}

}  // namespace

LatentAttentionBlock::LatentAttentionBlock(const ModelSpec& spec, int64_t max_rows,
                                           int64_t positions, DType compute_dtype, int32_t threads,
                                           kernels::Device* device)
    : spec_(spec),
      round_bf16_(compute_dtype == DType::kBf16),
      nope_stride_(kernels::PaddedDepth(spec.qk_nope_head_dim, compute_dtype)),
      latent_stride_(kernels::PaddedDepth(spec.kv_lora_rank, compute_dtype)),
      rotary_(spec, positions, device),
      x_(max_rows, spec.hidden_size, compute_dtype, device),
      q_a_(device, Size(max_rows, spec.q_lora_rank)),
      q_a_normed_(max_rows, spec.q_lora_rank, compute_dtype, device),
      q_(device, Size(max_rows, int64_t{spec.query_heads} * spec.head_dim)),
      kv_(device, Size(max_rows, int64_t{spec.kv_lora_rank} + spec.qk_rope_head_dim)),
      q_nope_(max_rows, spec.query_heads * nope_stride_, compute_dtype, device),
      q_latent_(device, Size(max_rows, int64_t{spec.query_heads} *
                                           (spec.kv_lora_rank + spec.qk_rope_head_dim))),
      o_latent_(max_rows, spec.query_heads * latent_stride_, compute_dtype, device),
      o_(device, Size(max_rows, int64_t{spec.query_heads} * spec.v_head_dim)),
      attended_(max_rows, int64_t{spec.query_heads} * spec.v_head_dim, compute_dtype, device),
      head_products_(static_cast<size_t>(spec.query_heads)),
      workspace_(kernels::AttentionWorkspace::BytesFor(threads)) {}

absl::Status LatentAttentionBlock::Run(const LatentAttentionWeights& weights,
                                       const RowPlaces& places, int32_t layer, kv::KvArena& kv,
                                       float* hidden, RankSum& sum,
                                       const kernels::ExecContext& ctx) {
  const auto rows = static_cast<int64_t>(places.positions.size());
  const int64_t width = spec_.kv_lora_rank + spec_.qk_rope_head_dim;
  LYNX_RETURN_IF_ERROR(Project(weights, rows, hidden, ctx));
  LYNX_RETURN_IF_ERROR(WriteKv(weights, places, layer, kv, ctx));
  LYNX_RETURN_IF_ERROR(AbsorbQueries(weights, places, ctx));
  LYNX_RETURN_IF_ERROR(kernels::LatentAttention({.q = q_latent_.data(),
                                                 .rows = places.attention.data(),
                                                 .kv = kv.Layer(layer),
                                                 .y = o_latent_.data(),
                                                 .row_count = rows,
                                                 .heads = spec_.query_heads,
                                                 .latent_dim = spec_.kv_lora_rank,
                                                 .rope_dim = spec_.qk_rope_head_dim,
                                                 .q_stride = spec_.query_heads * width,
                                                 .y_head_stride = latent_stride_,
                                                 .y_stride = o_latent_.stride(),
                                                 .block_stride_bytes = kv.block_stride_bytes(),
                                                 .kv_dtype = kv.layout().dtype,
                                                 .compute_dtype = o_latent_.dtype(),
                                                 .scale = spec_.attention_scale},
                                                workspace_, ctx));
  LYNX_RETURN_IF_ERROR(ExpandValues(weights, rows, ctx));
  kernels::GemmArgs output = Projection(attended_, weights.o, {}, rows, sum.Begin(hidden, rows));
  output.accumulate = true;
  output.scale = spec_.residual_multiplier;
  LYNX_RETURN_IF_ERROR(kernels::Gemm(output, ctx));
  return sum.End(hidden, rows);
}

absl::Status LatentAttentionBlock::Project(const LatentAttentionWeights& weights, int64_t rows,
                                           const float* hidden, const kernels::ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(
      Normalise(hidden, weights.input_norm, spec_.rms_norm_epsilon, rows, x_, ctx));
  const kernels::GemmArgs kv = Projection(x_, weights.kv_a, {}, rows, kv_.data());
  if (spec_.q_lora_rank == 0) {
    const kernels::GemmArgs products[] = {Projection(x_, weights.q, {}, rows, q_.data()), kv};
    return kernels::Gemm(products, ctx);
  }
  const kernels::GemmArgs products[] = {Projection(x_, weights.q_a, {}, rows, q_a_.data()), kv};
  LYNX_RETURN_IF_ERROR(kernels::Gemm(products, ctx));
  LYNX_RETURN_IF_ERROR(
      Normalise(q_a_.data(), weights.q_a_norm, kLatentNormEpsilon, rows, q_a_normed_, ctx));
  return kernels::Gemm(Projection(q_a_normed_, weights.q, {}, rows, q_.data()), ctx);
}

absl::Status LatentAttentionBlock::WriteKv(const LatentAttentionWeights& weights,
                                           const RowPlaces& places, int32_t layer, kv::KvArena& kv,
                                           const kernels::ExecContext& ctx) {
  const auto rows = static_cast<int64_t>(places.positions.size());
  const int64_t latent = spec_.kv_lora_rank;
  const int64_t width = latent + spec_.qk_rope_head_dim;
  LYNX_RETURN_IF_ERROR(kernels::RmsNorm({.x = kv_.data(),
                                         .gain = weights.kv_a_norm.data(),
                                         .y = kv_.data(),
                                         .rows = rows,
                                         .hidden = latent,
                                         .x_stride = width,
                                         .y_stride = width,
                                         .epsilon = kLatentNormEpsilon,
                                         .round_bf16 = round_bf16_},
                                        ctx));
  LYNX_RETURN_IF_ERROR(
      rotary_.Rotate(places.positions, /*heads=*/1, width, width, kv_.data() + latent, ctx));
  return kernels::LatentWrite({.x = kv_.data(),
                               .slots = places.slots.data(),
                               .kv = kv.Layer(layer),
                               .rows = rows,
                               .width = width,
                               .x_stride = width,
                               .block_stride_bytes = kv.block_stride_bytes(),
                               .kv_dtype = kv.layout().dtype},
                              ctx);
}

absl::Status LatentAttentionBlock::AbsorbQueries(const LatentAttentionWeights& weights,
                                                 const RowPlaces& places,
                                                 const kernels::ExecContext& ctx) {
  const auto rows = static_cast<int64_t>(places.positions.size());
  const int64_t heads = spec_.query_heads;
  const int64_t head_dim = spec_.head_dim;
  const int64_t nope = spec_.qk_nope_head_dim;
  const int64_t rope = spec_.qk_rope_head_dim;
  const int64_t latent = spec_.kv_lora_rank;
  const int64_t width = latent + rope;
  LYNX_RETURN_IF_ERROR(kernels::Cast({.x = q_.data(),
                                      .y = q_nope_.data(),
                                      .rows = rows,
                                      .heads = heads,
                                      .width = nope,
                                      .y_width = nope_stride_,
                                      .x_head_stride = head_dim,
                                      .x_stride = heads * head_dim,
                                      .y_head_stride = nope_stride_,
                                      .y_stride = q_nope_.stride(),
                                      .y_dtype = q_nope_.dtype()},
                                     ctx));
  for (int64_t h = 0; h < heads; ++h) {
    head_products_[static_cast<size_t>(h)] = {.x = At(q_nope_, h * nope_stride_),
                                              .w = weights.k_up[static_cast<size_t>(h)],
                                              .y = q_latent_.data() + h * width,
                                              .rows = rows,
                                              .x_stride = q_nope_.stride(),
                                              .y_stride = heads * width,
                                              .x_dtype = q_nope_.dtype()};
  }
  LYNX_RETURN_IF_ERROR(kernels::Gemm(head_products_, ctx));
  LYNX_RETURN_IF_ERROR(kernels::Cast({.x = q_.data() + nope,
                                      .y = q_latent_.data() + latent,
                                      .rows = rows,
                                      .heads = heads,
                                      .width = rope,
                                      .y_width = rope,
                                      .x_head_stride = head_dim,
                                      .x_stride = heads * head_dim,
                                      .y_head_stride = width,
                                      .y_stride = heads * width},
                                     ctx));
  return rotary_.Rotate(places.positions, heads, width, heads * width, q_latent_.data() + latent,
                        ctx);
}

absl::Status LatentAttentionBlock::ExpandValues(const LatentAttentionWeights& weights, int64_t rows,
                                                const kernels::ExecContext& ctx) {
  const int64_t heads = spec_.query_heads;
  const int64_t v_dim = spec_.v_head_dim;
  for (int64_t h = 0; h < heads; ++h) {
    head_products_[static_cast<size_t>(h)] = {.x = At(o_latent_, h * latent_stride_),
                                              .w = weights.v_up[static_cast<size_t>(h)],
                                              .y = o_.data() + h * v_dim,
                                              .rows = rows,
                                              .x_stride = o_latent_.stride(),
                                              .y_stride = heads * v_dim,
                                              .x_dtype = o_latent_.dtype()};
  }
  LYNX_RETURN_IF_ERROR(kernels::Gemm(head_products_, ctx));
  return kernels::Cast({.x = o_.data(),
                        .y = attended_.data(),
                        .rows = rows,
                        .heads = 1,
                        .width = heads * v_dim,
                        .y_width = heads * v_dim,
                        .x_head_stride = heads * v_dim,
                        .x_stride = heads * v_dim,
                        .y_head_stride = attended_.stride(),
                        .y_stride = attended_.stride(),
                        .y_dtype = attended_.dtype()},
                       ctx);
}

}  // namespace lynx::model
