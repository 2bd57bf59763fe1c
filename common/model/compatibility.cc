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

}  // namespace

std::string WeightsIdentity(const TensorMap& tensors) {
  Sha256 hash;
  for (const auto& [name, tensor] : tensors) {
    hash.Update(absl::StrCat("tensor ", name.size(), " ", name, " ",
                             std::string(Name(tensor.dtype)), " ", absl::StrJoin(tensor.shape, " "),
                             "\n"));
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
      "lynx model 2\nfamily ", spec.model_type, "\nvocab ", spec.vocab_size, "\nhidden ",
      spec.hidden_size, "\nlayers ", layers, "\nheads ", spec.query_heads, " ", spec.kv_heads, " ",
      spec.head_dim, " ", spec.head_norm, "\npositions ", spec.max_positions, "\nepsilon ",
      absl::StrFormat("%a", static_cast<double>(spec.rms_norm_epsilon)), "\ntheta ",
      absl::StrFormat("%a", spec.rope_theta), "\ntied ", spec.tied_embeddings, "\ndense ",
      spec.dense_intermediate_size, "\nexperts ", spec.experts, " ", spec.experts_per_token, " ",
      spec.expert_intermediate_size, " ", spec.gate.rule == moe::Gate::Rule::kRenormalise, "\neos ",
      absl::StrJoin(spec.eos_token_ids, " "), "\ncompute ", std::string(Name(compute_dtype)),
      "\nkv ", std::string(Name(kv_dtype)), " [K|V][head][", kv::kBlockTokens, "][dim]\nweights ",
      weights_identity.size(), " ", std::string(weights_identity), "\n"));
  return hash.HexDigest();
}

}  // namespace lynx::model
