#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/huge_buffer.h"
#include "common/model/model_spec.h"
#include "common/model/tensor.h"
#include "common/model/weight_packer.h"
#include "kernels/gemm/packed_matrix.h"
#include "kernels/moe/expert_weights.h"

namespace lynx::model {

struct AttentionWeights {
  std::vector<float> input_norm;  // [hidden]
  kernels::Matrix q;              // [query_heads * head_dim, hidden]
  kernels::Matrix k;              // [kv_heads * head_dim, hidden]
  kernels::Matrix v;              // [kv_heads * head_dim, hidden]
  kernels::Matrix o;              // [hidden, query_heads * head_dim]
  std::vector<float> q_norm;      // [head_dim], or empty without head_norm
  std::vector<float> k_norm;      // [head_dim], or empty without head_norm
  int64_t bytes = 0;              // Of the matrices.
};

struct FeedForwardWeights {
  std::vector<float> input_norm;                // [hidden]
  kernels::Matrix router;                       // [experts, hidden]; null data for a dense layer
  std::vector<kernels::ExpertWeights> experts;  // A dense layer is one expert.
  int64_t router_bytes = 0;
  int64_t expert_bytes = 0;  // Of one expert.
};

struct LayerWeights {
  AttentionWeights attention;
  FeedForwardWeights feed_forward;
};

// The tensors of a model as a forward pass wants them: matrices packed, the small norms in float32.
struct ModelWeights {
  kernels::Matrix embedding;  // [vocab, hidden]
  kernels::Matrix head;       // [vocab, hidden]; the embedding itself if tied
  int64_t head_bytes = 0;
  std::vector<float> final_norm;  // [hidden]
  std::vector<LayerWeights> layers;
  HugeBuffer memory;  // What the matrices point into.
};

// Accepts both spellings of expert weights: one Linear per expert, or fused per layer. Adds to
// spec.notes what is there and not used with good reason.
//   NotFound         tensors the model needs are absent: lists them.
//   InvalidArgument  a tensor has another shape than the config says (names wanted and found), or
//                    there are tensors that no part of the model uses, which would change the
//                    answer if they mattered: lists them.
//   ResourceExhausted  the memory for the packed weights cannot be mapped.
// All that is checked before anything is packed. The tensors are not needed afterwards.
absl::StatusOr<ModelWeights> BindWeights(const TensorMap& tensors, ModelSpec& spec,
                                         const PackOptions& options);

}  // namespace lynx::model
