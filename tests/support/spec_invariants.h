#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/model/model_spec.h"
#include "common/model/model_weights.h"

namespace lynx::testing {

// What a forward pass takes for granted of a spec that was read from any config.json whatever:
// names the first that does not hold, or is empty. Costs as much as naming all tensors.
inline std::string BrokenInvariant(const model::ModelSpec& spec) {
  const auto within = [](int64_t value, int64_t least, int64_t most) {
    return value >= least && value <= most;
  };
  for (const int64_t size : {spec.vocab_size, spec.hidden_size, spec.layers, spec.query_heads,
                             spec.kv_heads, spec.head_dim, spec.max_positions, spec.rotary_dim}) {
    if (!within(size, 1, 1 << 24)) return "a size is out of range";
  }
  if (spec.query_heads % spec.kv_heads != 0) return "kv_heads does not divide query_heads";
  if (spec.rotary_dim % 2 != 0 || spec.rotary_dim > spec.head_dim) return "rotary_dim";
  if (spec.has_latents()) {
    if (spec.kv_heads != 1 || spec.head_dim != spec.qk_nope_head_dim + spec.qk_rope_head_dim ||
        spec.rotary_dim != spec.qk_rope_head_dim || spec.v_head_dim < 1) {
      return "latents";
    }
  } else if (spec.head_dim % 2 != 0 || spec.head_dim > 256) {
    return "head_dim";
  }
  const auto layers = static_cast<size_t>(spec.layers);
  if (spec.feed_forward.size() != layers || spec.attention.size() != layers) return "layers";
  for (const model::LayerAttention& layer : spec.attention) {
    if (layer.reach.window < 0 || layer.reach.chunk < 0) return "window or chunk";
  }
  for (const double number :
       {static_cast<double>(spec.rms_norm_epsilon), spec.rope_theta,
        static_cast<double>(spec.attention_scale), static_cast<double>(spec.embedding_multiplier),
        static_cast<double>(spec.residual_multiplier), static_cast<double>(spec.logits_multiplier),
        static_cast<double>(spec.query_growth_floor), static_cast<double>(spec.gate.scale)}) {
    if (!(number > 0) || !std::isfinite(number)) return "a factor is not above 0 and finite";
  }
  for (const float number : {spec.clip_qkv, spec.query_growth, spec.expert_clamp}) {
    if (!(number >= 0) || !std::isfinite(number)) return "a bound is negative or infinite";
  }
  if (spec.has_moe()) {
    if (spec.experts < 1 || !within(spec.experts_per_token, 1, spec.experts) ||
        spec.expert_intermediate_size < 1 || spec.shared_intermediate_size < 0) {
      return "experts";
    }
    const moe::Gate& gate = spec.gate;
    if (gate.groups < 1 || spec.experts % gate.groups != 0 ||
        !within(gate.groups_kept, 1, gate.groups) ||
        spec.experts_per_token > spec.experts / gate.groups * gate.groups_kept) {
      return "groups of experts";
    }
  }
  if (std::count(spec.feed_forward.begin(), spec.feed_forward.end(),
                 model::FeedForwardKind::kDense) > 0 &&
      spec.dense_intermediate_size < 1) {
    return "dense_intermediate_size";
  }
  for (const int32_t id : spec.eos_token_ids) {
    if (!within(id, 0, spec.vocab_size - 1)) return "eos_token_ids";
  }
  int64_t elements = 0;
  for (const auto& [name, shape] : model::TensorShapes(spec)) {
    int64_t product = 1;
    for (const int64_t extent : shape) {
      if (extent < 1 || __builtin_mul_overflow(product, extent, &product)) return name;
    }
    if (__builtin_add_overflow(elements, product, &elements)) return "elements";
  }
  if (elements > std::numeric_limits<int64_t>::max() / 4) return "bytes of the weights";
  if (model::KvLayoutOf(spec, DType::kF32).BlockBytes() < 1) return "bytes of the KV cache";
  return "";
}

}  // namespace lynx::testing
