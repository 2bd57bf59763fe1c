#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/kv/kv_arena.h"
#include "common/model/activation_buffer.h"
#include "common/model/model_spec.h"
#include "common/model/model_weights.h"
#include "common/model/rank_sum.h"
#include "common/model/rotary.h"
#include "common/model/row_places.h"
#include "common/model/step_memory.h"
#include "kernels/attention/attention_workspace.h"
#include "kernels/core/exec_context.h"
#include "kernels/gemm/gemm_args.h"

namespace lynx::model {

// Multi-head latent attention (DeepSeek-V2 and V3) in place of AttentionBlock. A token's keys and
// values are linear in its latent, so they are never made: queries are taken to the latents' space
// instead, and what is attended to there back to the heads'. Rows of prompts do the same, so that a
// row's bits do not tell which it is.
//
// Owns the buffers that all layers of a model take turns in. One call at a time.
class LatentAttentionBlock {
 public:
  // Positions [0, positions) can be run, on a team of `threads`; or, if not null, on `device`,
  // where then everything is that Run() takes, but for the spec.
  LatentAttentionBlock(const ModelSpec& spec, int64_t max_rows, int64_t positions,
                       DType compute_dtype, int32_t threads, kernels::Device* device = nullptr);

  // Writes latent and rotated key of every row into `layer` of `kv`, then updates `hidden`
  // [rows, hidden_size].
  absl::Status Run(const LatentAttentionWeights& weights, const RowPlaces& rows, int32_t layer,
                   kv::KvArena& kv, float* hidden, RankSum& sum, const kernels::ExecContext& ctx);

 private:
  // Fills q_ and kv_ from `hidden`.
  absl::Status Project(const LatentAttentionWeights& weights, int64_t rows, const float* hidden,
                       const kernels::ExecContext& ctx);
  absl::Status WriteKv(const LatentAttentionWeights& weights, const RowPlaces& places,
                       int32_t layer, kv::KvArena& kv, const kernels::ExecContext& ctx);
  // Fills q_latent_ from q_.
  absl::Status AbsorbQueries(const LatentAttentionWeights& weights, const RowPlaces& places,
                             const kernels::ExecContext& ctx);
  // Fills attended_ from o_latent_.
  absl::Status ExpandValues(const LatentAttentionWeights& weights, int64_t rows,
                            const kernels::ExecContext& ctx);

  const ModelSpec& spec_;  // Outlives this.
  const bool round_bf16_;
  // Between heads of what products of each head take: room for the zeros that end bf16 rows.
  const int64_t nope_stride_;
  const int64_t latent_stride_;
  Rotary rotary_;
  ActivationBuffer x_;           // [max_rows, hidden]
  StepArray<float> q_a_;         // [max_rows, q_lora_rank]
  ActivationBuffer q_a_normed_;  // [max_rows, q_lora_rank]
  StepArray<float> q_;           // [max_rows, query_heads, head_dim]
  StepArray<float> kv_;          // [max_rows, kv_lora_rank + qk_rope_head_dim]
  ActivationBuffer q_nope_;      // [max_rows, query_heads, nope_stride_]
  StepArray<float> q_latent_;    // [max_rows, query_heads, kv_lora_rank + qk_rope_head_dim]
  ActivationBuffer o_latent_;    // [max_rows, query_heads, latent_stride_]
  StepArray<float> o_;           // [max_rows, query_heads, v_head_dim]
  ActivationBuffer attended_;    // [max_rows, query_heads * v_head_dim]
  std::vector<kernels::GemmArgs> head_products_;
  kernels::AttentionWorkspace workspace_;
};

}  // namespace lynx::model
