#include "common/model/compatibility.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/kv/kv_layout.h"
#include "common/model/sha256.h"

namespace lynx::model {
namespace {

constexpr size_t kSamples = 4;  // Spread over a tensor: at its start, middle parts and end.
constexpr size_t kSampleBytes = 64;

std::string AttentionText(const ModelSpec& spec) {
  std::string text = absl::StrFormat("%d %a %a", spec.sinks, static_cast<double>(spec.query_growth),
                                     static_cast<double>(spec.query_growth_floor));
  for (const LayerAttention& layer : spec.attention) {
    absl::StrAppend(&text, " ", layer.rope, ":", layer.reach.window, ":", layer.reach.chunk);
  }
  return text;
}

std::string ScalingText(const kernels::RopeScaling& scaling) {
  return absl::StrFormat("%d %a %d %a %a %a %a %a %a %a %d", static_cast<int>(scaling.kind),
                         scaling.factor, scaling.original_positions, scaling.low_freq_factor,
                         scaling.high_freq_factor, scaling.beta_fast, scaling.beta_slow,
                         scaling.mscale, scaling.mscale_all_dim, scaling.attention_factor,
                         scaling.truncate);
}

std::string GateText(const moe::Gate& gate) {
  return absl::StrFormat("%d %d %a %d %d %d %d", static_cast<int>(gate.score),
                         static_cast<int>(gate.rule), static_cast<double>(gate.scale), gate.groups,
                         gate.groups_kept, static_cast<int>(gate.group_score), gate.scales_input);
}

}  // namespace

std::string WeightsIdentity(const TensorMap& tensors) {
  Sha256 hash;
  for (const auto& [name, tensor] : tensors) {
    hash.Update(absl::StrCat("tensor ", name.size(), " ", name, " ", std::string(TypeName(tensor)),
                             " ", absl::StrJoin(tensor.shape, " "), "\n"));
    const size_t size = tensor.data.size();
    if (size <= kSamples * kSampleBytes) {
      hash.Update(tensor.data);
      continue;
    }
    for (size_t i = 0; i < kSamples; ++i) {
      hash.Update(tensor.data.subspan((size - kSampleBytes) / (kSamples - 1) * i, kSampleBytes));
    }
  }
  return hash.HexDigest();
}

std::string CompatibilityHash(const ModelSpec& spec, std::string_view weights_identity,
                              DType compute_dtype, DType kv_dtype) {
  Sha256 hash;
  std::string layers;
  for (FeedForwardKind kind : spec.feed_forward)
    layers += kind == FeedForwardKind::kMoe ? 'm' : 'd';
  hash.Update(absl::StrCat(
      "lynx model 5\nfamily ", spec.model_type, "\nvocab ", spec.vocab_size, "\nhidden ",
      spec.hidden_size, "\nlayers ", layers, "\nheads ", spec.query_heads, " ", spec.kv_heads, " ",
      spec.head_dim, " ", spec.rotary_dim, " ", static_cast<int>(spec.query_key_norm), " ",
      spec.qkv_bias, " ", spec.output_bias, "\nlatents ", spec.q_lora_rank, " ", spec.kv_lora_rank,
      " ", spec.qk_nope_head_dim, " ", spec.qk_rope_head_dim, " ", spec.v_head_dim,
      absl::StrFormat("\nscales %a %a %a %a %a", static_cast<double>(spec.clip_qkv),
                      static_cast<double>(spec.attention_scale),
                      static_cast<double>(spec.embedding_multiplier),
                      static_cast<double>(spec.residual_multiplier),
                      static_cast<double>(spec.logits_multiplier)),
      "\nlayers attend ", AttentionText(spec), "\nblocks ", spec.fp8_block_rows, " ",
      spec.fp8_block_width, "\npositions ", spec.max_positions, "\nepsilon ",
      absl::StrFormat("%a", static_cast<double>(spec.rms_norm_epsilon)), "\ntheta ",
      absl::StrFormat("%a", spec.rope_theta), " ", ScalingText(spec.rope_scaling), "\ntied ",
      spec.tied_embeddings, "\ndense ", spec.dense_intermediate_size, "\nexperts ", spec.experts,
      " ", spec.experts_per_token, " ", spec.expert_intermediate_size, " ", GateText(spec.gate),
      " ", spec.ranking_bias, " ", spec.router_bias, " ", spec.expert_bias, " ",
      absl::StrFormat("%a", static_cast<double>(spec.expert_clamp)), "\nshared ",
      spec.shared_intermediate_size, " ", spec.shared_gate, "\neos ",
      absl::StrJoin(spec.eos_token_ids, " "), "\ncompute ", std::string(Name(compute_dtype)),
      "\nkv ", std::string(Name(kv_dtype)), spec.has_latents() ? " [" : " [K|V][head][",
      kv::kBlockTokens, "][dim]\nweights ", weights_identity.size(), " ",
      std::string(weights_identity), "\n"));
  return hash.HexDigest();
}

}  // namespace lynx::model
