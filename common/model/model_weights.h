#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/huge_buffer.h"
#include "common/model/expert_table.h"
#include "common/model/floats.h"
#include "common/model/model_spec.h"
#include "common/model/shard_plan.h"
#include "common/model/tensor.h"
#include "common/model/weight_binder.h"
#include "common/model/weight_packer.h"
#include "kernels/gemm/packed_matrix.h"
#include "kernels/moe/expert_weights.h"

namespace lynx::model {

// As kernels take what may be absent.
inline const float* DataOrNull(const Floats& values) {
  return values.empty() ? nullptr : values.data();
}

struct AttentionWeights {
  Floats input_norm;  // [hidden]
  kernels::Matrix q;  // [query_heads * head_dim, hidden]
  kernels::Matrix k;  // [kv_heads * head_dim, hidden]
  kernels::Matrix v;  // [kv_heads * head_dim, hidden]
  kernels::Matrix o;  // [hidden, query_heads * head_dim]
  // One each of the outputs above; empty where the spec has none.
  Floats q_bias, k_bias, v_bias, o_bias;
  // [head_dim] or of the whole vector, as spec.query_key_norm says; empty without.
  Floats q_norm, k_norm;
  Floats sinks;  // [query_heads], or empty

  int64_t bytes() const;  // Of the matrices.
};

// The same of a model with latents. In kv_a's outputs, and in each head of q's, the part that RoPE
// turns comes last.
struct LatentAttentionWeights {
  Floats input_norm;     // [hidden]
  kernels::Matrix q_a;   // [q_lora_rank, hidden]; null data without
  Floats q_a_norm;       // [q_lora_rank], or empty
  kernels::Matrix q;     // [query_heads * head_dim, q_lora_rank, or without it hidden]
  kernels::Matrix kv_a;  // [kv_lora_rank + qk_rope_head_dim, hidden]
  Floats kv_a_norm;      // [kv_lora_rank]
  // Of each head: to the latents' space and back.
  std::vector<kernels::Matrix> k_up;  // [kv_lora_rank, qk_nope_head_dim]
  std::vector<kernels::Matrix> v_up;  // [v_head_dim, kv_lora_rank]
  kernels::Matrix o;                  // [hidden, query_heads * v_head_dim]

  int64_t bytes() const;  // Of the matrices.
};

struct FeedForwardWeights {
  Floats input_norm;       // [hidden]
  kernels::Matrix router;  // [experts, hidden]; null data for a dense layer
  Floats router_bias;      // [experts], or empty
  Floats ranking_bias;     // [experts], or empty
  // Of each slot of `table`; a dense layer is one expert.
  std::vector<kernels::ExpertWeights> experts;
  ExpertTable table;
  // What the experts' biases point into: of all of the layer's experts, whoever holds them, one
  // after the other; or empty.
  Floats gate_up_biases, down_biases;
  kernels::ExpertWeights shared;  // Null data without a shared expert.
  kernels::Matrix shared_gate;    // [1, hidden]; null data without a gate

  bool is_moe() const { return router.data != nullptr; }
  // Those of expert `id`, to the weights of its matrices.
  void SetBiases(int32_t id, kernels::ExpertWeights& expert) const;
  int64_t fixed_bytes() const;   // Of the matrices that every step reads: all but the experts.
  int64_t expert_bytes() const;  // Of one expert.
};

struct LayerWeights {
  // The one that the spec says; the other is empty.
  AttentionWeights attention;
  LatentAttentionWeights latent_attention;
  FeedForwardWeights feed_forward;
};

// The tensors of a model as a forward pass wants them: matrices packed, the small norms in float32.
struct ModelWeights {
  kernels::Matrix embedding;  // [vocab, hidden]
  kernels::Matrix head;       // [vocab, hidden]; the embedding itself if tied
  Floats final_norm;          // [hidden]
  std::vector<LayerWeights> layers;
  HugeBuffer memory;  // What the matrices point into.
};

// Names and shapes of the tensors that make up a model, in the spelling of one Linear per expert
// and none of them quantised.
std::map<std::string, std::vector<int64_t>> TensorShapes(const ModelSpec& spec);

// What BindWeights() would make of the tensors, found without packing their data.
struct WeightsOutline {
  ModelWeights weights;      // Matrices have sizes and no data.
  int64_t packed_bytes = 0;  // Of the matrices,
  int64_t vector_bytes = 0;  // and of the vectors.
  WeightProblems problems;   // All of them; without any, BindWeights() takes the tensors.
  // Tensors of parts that are not served, or that follow from others.
  std::vector<std::string> ignored;
};
// Of the whole model, or of what a rank holds.
WeightsOutline OutlineWeights(const TensorMap& tensors, const ModelSpec& spec);
WeightsOutline OutlineWeights(const TensorMap& tensors, const ModelSpec& spec,
                              const RankShard& shard);

struct WeightBytes {
  int64_t all = 0;
  int64_t expert = 0;  // The largest single one; 0: there are none.
};

// Accepts both spellings of expert weights: one Linear per expert, or fused per layer. Adds to
// spec.notes what is there and not used with good reason.
//   NotFound         tensors the model needs are absent: lists them.
//   InvalidArgument  a tensor has another shape than the config says (names wanted and found), or
//                    there are tensors that no part of the model uses, which would change the
//                    answer if they mattered: lists them.
//   ResourceExhausted  the memory for the packed weights cannot be mapped.
//   What `admit` returns, which is told what the weights take.
// All that is checked before anything is packed, also of what other ranks hold. The tensors are not
// needed afterwards.
absl::StatusOr<ModelWeights> BindWeights(
    const TensorMap& tensors, ModelSpec& spec, const RankShard& shard,
    const std::function<absl::Status(const WeightBytes&)>& admit, const PackOptions& options);

// Packs expert `id` of `layer` once more, with the bits that BindWeights() gives it on a rank of
// `shard`, into `memory`, which is 64-byte aligned and has room for it. Without biases. The tensors
// are those that BindWeights() took.
//   What `check` returns, which is asked for each piece of what is to be read.
absl::StatusOr<kernels::ExpertWeights> BindExpert(
    const TensorMap& tensors, const ModelSpec& spec, const RankShard& shard, int32_t layer,
    int32_t id, std::byte* memory,
    const std::function<absl::Status(std::span<const std::byte>)>& check,
    const PackOptions& options);

}  // namespace lynx::model
