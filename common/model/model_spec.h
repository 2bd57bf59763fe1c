#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/kv/kv_layout.h"
#include "common/moe/gate.h"
#include "common/moe/presets.h"
#include "kernels/rope/rope_scaling.h"
#include "nlohmann/json_fwd.hpp"

namespace lynx::model {

enum class FeedForwardKind : uint8_t { kDense, kMoe };

// RMSNorm of queries and keys after their projection, before RoPE unless it says otherwise.
enum class QueryKeyNorm : uint8_t {
  kNone,
  kPerHead,      // Of each head, by one gain for all heads.
  kWholeVector,  // Of all heads at once.
  kRotated,      // Of each head, without a gain, after RoPE and only in layers that have it.
};

// What a layer's rows attend to.
struct LayerAttention {
  bool rope = true;  // Keys and queries are rotated.
  kv::Reach reach = {};
};

// What a forward pass needs to know of a model, whichever family spells it how.
struct ModelSpec {
  std::string model_type;  // As the config says, for example "qwen3_moe".
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t layers = 0;
  int32_t query_heads = 0;
  int32_t kv_heads = 0;  // Divides query_heads.
  int32_t head_dim = 0;  // Even. query_heads * head_dim may differ from hidden_size.
  // Multi-head latent attention, where kv_lora_rank > 0: a token leaves one latent of that width in
  // the cache and one rotated key of qk_rope_head_dim, for all heads. Then kv_heads is 1, head_dim
  // is qk_nope_head_dim + qk_rope_head_dim, and rotary_dim, the last of these, is qk_rope_head_dim.
  int32_t q_lora_rank = 0;  // 0: queries are projected in one step.
  int32_t kv_lora_rank = 0;
  int32_t qk_nope_head_dim = 0;
  int32_t qk_rope_head_dim = 0;  // Even.
  int32_t v_head_dim = 0;
  int32_t max_positions = 0;
  float rms_norm_epsilon = 0;
  double rope_theta = 0;
  kernels::RopeScaling rope_scaling;
  int32_t rotary_dim = 0;  // RoPE turns this many leading elements of a head; even, <= head_dim.
  bool neighbour_rope =
      false;  // In pairs of neighbours; weights are packed as for pairs of halves.
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;
  bool qkv_bias = false;      // Projections to queries, keys and values have biases,
  bool output_bias = false;   // or the one from attention's output has.
  float clip_qkv = 0;         // Bound of |query|, |key| and |value| before RoPE; 0: none.
  float attention_scale = 0;  // Of scores, before the softmax.
  std::vector<LayerAttention> attention;  // [layers]
  bool sinks = false;  // Softmax has one more score of each query head, without a value.
  // In layers without RoPE queries are multiplied by
  // 1 + query_growth * ln(1 + floor((position + 1) / query_growth_floor)).
  float query_growth = 0;
  float query_growth_floor = 1;
  bool tied_embeddings = false;    // The output head is the embedding.
  float embedding_multiplier = 1;  // Of embeddings,
  float residual_multiplier = 1;   // of what attention and feed-forward add to the residual stream,
  float logits_multiplier = 1;     // and of logits.

  std::vector<FeedForwardKind> feed_forward;  // [layers]
  int32_t dense_intermediate_size = 0;        // > 0 if any layer is dense.
  // All > 0 if any layer is MoE:
  int32_t experts = 0;
  int32_t experts_per_token = 0;
  int32_t expert_intermediate_size = 0;
  moe::Gate gate;
  bool router_bias = false;   // Router logits have a bias of each expert.
  bool expert_bias = false;   // So have both products of routed experts,
  float expert_clamp = 0;     // which bound what is between them, as kernels::ExpertFfnArgs::clamp.
  bool ranking_bias = false;  // Experts are ranked by score + a bias of each.
  // A gated MLP beside the routed experts in every MoE layer; 0: none.
  int32_t shared_intermediate_size = 0;
  bool shared_gate = false;  // It is weighted by a sigmoid of the row's own.

  // Weights in e4m3 have a scale for each block of so many rows and columns; 0: there are none.
  int32_t fp8_block_rows = 0;
  int32_t fp8_block_width = 0;
  bool mxfp4_experts = false;  // Routed experts are in MXFP4.

  // Tokens that end a sequence: of config.json and generation_config.json together, ascending.
  std::vector<int32_t> eos_token_ids;

  // What an operator should see in the log once: things found and deliberately not used.
  std::vector<std::string> notes;

  bool has_moe() const;
  bool has_latents() const { return kv_lora_rank > 0; }
};

// Of the KV cache of a node that holds all of the model: layers of equal reach in groups.
kv::KvLayout KvLayoutOf(const ModelSpec& spec, DType kv_dtype);

// What presets of expert policies are picked by. `name` is the model's or its folder's. The result
// refers to both arguments.
moe::ModelFacts FactsOf(const ModelSpec& spec, std::string_view name);

// Reads config.json (and generation_config.json, if there) of a Hugging Face folder.
//   NotFound         no config.json.
//   InvalidArgument  not JSON within bounds, or a key is missing, of the wrong type or out of
//                    range; names the file and the key.
//   Unimplemented    a family or a feature we do not serve; names the key and its value.
absl::StatusOr<ModelSpec> LoadModelSpec(const std::filesystem::path& model_dir);

// The same of a config that is in memory; `name` is for messages.
absl::StatusOr<ModelSpec> ParseModelSpec(const nlohmann::json& config, const std::string& name);

}  // namespace lynx::model
