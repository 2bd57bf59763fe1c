#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/kv/kv_arena.h"
#include "common/model/activation_buffer.h"
#include "common/model/floats.h"
#include "common/model/model_spec.h"
#include "common/model/model_weights.h"
#include "common/model/rank_sum.h"
#include "common/model/rotary.h"
#include "common/model/row_places.h"
#include "common/model/step_memory.h"
#include "kernels/attention/attention_workspace.h"
#include "kernels/core/exec_context.h"

namespace lynx::model {

// The attention half of a decoder layer:
//   h += o_proj(attention(rope(norm(q_proj(norm(h)))), ...))
// Owns the buffers that all layers of a model take turns in. One call at a time.
class AttentionBlock {
 public:
  // Positions [0, positions) can be run, on a team of `threads`; or, if not null, on `device`,
  // where then everything is that Run() takes, but for the spec: without other ranks.
  AttentionBlock(const ModelSpec& spec, int64_t max_rows, int64_t positions, DType compute_dtype,
                 int32_t threads, kernels::Device* device = nullptr);

  // Writes KV of every row into `layer` of `kv`, then updates `hidden` [rows, hidden_size].
  absl::Status Run(const AttentionWeights& weights, const RowPlaces& rows, int32_t layer,
                   kv::KvArena& kv, float* hidden, RankSum& sum, const kernels::ExecContext& ctx);

 private:
  // The same of whole vectors that ranks hold parts of.
  absl::Status NormOverRanks(const AttentionWeights& weights, int64_t rows, RankSum& sum);
  // `x` [rows, heads, head_dim] in place; nothing without a gain.
  absl::Status NormHeads(const Floats& gain, int64_t rows, int64_t heads, StepArray<float>& x,
                         const kernels::ExecContext& ctx);
  absl::Status ClipHeads(int64_t rows, int64_t heads, StepArray<float>& x,
                         const kernels::ExecContext& ctx) const;

  const ModelSpec& spec_;  // Outlives this.
  const bool round_bf16_;
  Rotary rotary_;
  ActivationBuffer x_;          // [max_rows, hidden]
  ActivationBuffer attended_;   // [max_rows, query_heads, head_dim]
  std::vector<float> squares_;  // Of NormOverRanks().
  StepArray<float> ones_;       // [head_dim] of QueryKeyNorm::kRotated, or empty;
  Floats rotated_gain_;         // the same.
  StepArray<float> q_;          // [max_rows, query_heads, head_dim]
  StepArray<float> k_;          // [max_rows, kv_heads, head_dim]
  StepArray<float> v_;          // [max_rows, kv_heads, head_dim]
  kernels::AttentionWorkspace workspace_;
};

}  // namespace lynx::model
