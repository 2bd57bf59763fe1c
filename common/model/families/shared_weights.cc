#include "common/model/families/shared_weights.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/row_source.h"

namespace lynx::model {

void BindDecoder(const ModelSpec& spec, WeightBinder& binder, ModelWeights& weights,
                 const std::function<void(FeedForwardKind kind, const std::string& prefix,
                                          LayerWeights& layer)>& bind_layer) {
  const MatrixPart vocabulary = MatrixPart::Rows(binder.shard().vocabulary);
  weights.embedding =
      binder.TakeMatrix("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size, vocabulary);
  weights.final_norm = binder.TakeVector("model.norm.weight", spec.hidden_size);
  if (spec.tied_embeddings) {
    weights.head = weights.embedding;
    binder.Ignore("lm_head.weight");
  } else {
    weights.head =
        binder.TakeMatrix("lm_head.weight", spec.vocab_size, spec.hidden_size, vocabulary);
  }
  for (int32_t i = 0; i < spec.layers; ++i) {
    if (binder.Passes(i)) continue;
    bind_layer(spec.feed_forward[static_cast<size_t>(i)], absl::StrCat("model.layers.", i, "."),
               weights.layers.emplace_back());
  }
}

namespace {

// Those of whole heads, in the order in which `arrange` puts rows.
template <typename Arrange>
std::vector<float> Elements(const std::vector<float>& values, const Arrange& arrange) {
  const RowSource rows =
      arrange(PlainRows(reinterpret_cast<const std::byte*>(values.data()), DType::kF32,
                        static_cast<int64_t>(values.size()), /*width=*/1));
  std::vector<float> arranged;
  for (int64_t i = 0; i < rows.rows; ++i) {
    arranged.push_back(*static_cast<const float*>(rows.read(i, /*scratch=*/nullptr)));
  }
  return arranged;
}

}  // namespace

void BindAttention(const ModelSpec& spec, const std::string& prefix, WeightBinder& binder,
                   LayerWeights& layer) {
  const int64_t hidden = spec.hidden_size;
  const int64_t q_width = int64_t{spec.query_heads} * spec.head_dim;
  const int64_t kv_width = int64_t{spec.kv_heads} * spec.head_dim;
  const std::string attention = prefix + "self_attn.";
  const ShardRange& query_heads = binder.shard().query_heads;
  const ShardRange& kv_heads = binder.shard().kv_heads;
  AttentionWeights& weights = layer.attention;
  weights.input_norm = binder.TakeVector(prefix + "input_layernorm.weight", hidden);
  layer.feed_forward.input_norm =
      binder.TakeVector(prefix + "post_attention_layernorm.weight", hidden);
  const auto arrange = [&spec](RowSource rows) {
    return spec.neighbour_rope ? HalfSplitHeads(std::move(rows), spec.head_dim, spec.rotary_dim)
                               : rows;
  };
  const MatrixPart queries = MatrixPart::Rows(query_heads, spec.head_dim);
  const MatrixPart keys = MatrixPart::Rows(kv_heads, spec.head_dim);
  weights.q = binder.TakeMatrix(attention + "q_proj.weight", q_width, hidden, queries, arrange);
  weights.k = binder.TakeMatrix(attention + "k_proj.weight", kv_width, hidden, keys, arrange);
  weights.v = binder.TakeMatrix(attention + "v_proj.weight", kv_width, hidden, keys);
  weights.o = binder.TakeMatrix(attention + "o_proj.weight", hidden, q_width,
                                MatrixPart::Columns(query_heads, spec.head_dim));
  const auto of_heads = [&](const char* name, int64_t width, const ShardRange& heads) {
    return binder.TakeVectorPart(attention + name, width, heads, spec.head_dim);
  };
  if (spec.qkv_bias) {
    weights.q_bias = Elements(of_heads("q_proj.bias", q_width, query_heads), arrange);
    weights.k_bias = Elements(of_heads("k_proj.bias", kv_width, kv_heads), arrange);
    weights.v_bias = of_heads("v_proj.bias", kv_width, kv_heads);
  }
  if (spec.output_bias) {
    weights.o_bias = binder.TakeVector(attention + "o_proj.bias", hidden);
    for (float& value : weights.o_bias.host()) value *= spec.residual_multiplier;
  }
  if (spec.query_key_norm == QueryKeyNorm::kPerHead) {
    weights.q_norm = binder.TakeVector(attention + "q_norm.weight", spec.head_dim);
    weights.k_norm = binder.TakeVector(attention + "k_norm.weight", spec.head_dim);
  } else if (spec.query_key_norm == QueryKeyNorm::kWholeVector) {
    weights.q_norm = of_heads("q_norm.weight", q_width, query_heads);
    weights.k_norm = of_heads("k_norm.weight", kv_width, kv_heads);
  }
}

void BindDenseMlp(const ModelSpec& spec, const std::string& prefix, WeightBinder& binder,
                  FeedForwardWeights& weights) {
  weights.experts.push_back(binder.TakeMlp(prefix + "mlp.", spec.hidden_size,
                                           spec.dense_intermediate_size,
                                           binder.shard().dense_columns));
}

void BindExperts(const ModelSpec& spec, const std::string& prefix, const char* router,
                 const MlpNames& names, WeightBinder& binder, FeedForwardWeights& weights) {
  weights.router =
      binder.TakeMatrix(absl::StrCat(prefix, router, ".weight"), spec.experts, spec.hidden_size);
  const std::string fused = prefix + "experts.gate_up_proj";
  if (binder.Has(fused)) {
    weights.experts = binder.TakeFusedMlps(fused, prefix + "experts.down_proj", spec.experts,
                                           spec.hidden_size, spec.expert_intermediate_size);
    return;
  }
  const RankShard& shard = binder.shard();
  const auto take = [&](int32_t e, const ShardRange& columns) {
    return binder.TakeMlp(absl::StrCat(prefix, "experts.", e, "."), spec.hidden_size,
                          spec.expert_intermediate_size, columns, names);
  };
  for (const int32_t e : shard.experts) {
    weights.experts.push_back(take(e, shard.expert_columns));
    const kernels::ExpertWeights& first = weights.experts.front();
    const kernels::ExpertWeights& last = weights.experts.back();
    if (last.gate_up.out == 0 || first.gate_up.out == 0) continue;  // Refused already.
    if (last.gate_up.dtype != first.gate_up.dtype || last.down.dtype != first.down.dtype) {
      binder.Refuse(absl::StrCat(prefix, "experts.", e, " is of another type than experts.",
                                 shard.experts.front()));
    }
  }
  // Others are there and as they should be.
  for (int32_t e = 0; e < spec.experts; ++e) {
    if (std::ranges::find(shard.experts, e) == shard.experts.end()) take(e, {});
  }
}

void BindDeepseekFeedForward(const ModelSpec& spec, FeedForwardKind kind, const std::string& prefix,
                             WeightBinder& binder, FeedForwardWeights& weights) {
  if (kind == FeedForwardKind::kDense) {
    BindDenseMlp(spec, prefix, binder, weights);
    return;
  }
  const std::string mlp = prefix + "mlp.";
  BindExperts(spec, mlp, "gate", {}, binder, weights);
  if (spec.ranking_bias) {
    weights.ranking_bias = binder.TakeVector(mlp + "gate.e_score_correction_bias", spec.experts);
  }
  if (spec.shared_intermediate_size > 0) {
    weights.shared = binder.TakeMlp(mlp + "shared_experts.", spec.hidden_size,
                                    spec.shared_intermediate_size, binder.shard().shared_columns);
  }
}

void IgnorePredictionLayers(const ModelSpec& spec, WeightBinder& binder) {
  // One or two in what is released.
  for (int32_t i = spec.layers; i < spec.layers + 8; ++i) {
    binder.IgnorePrefix(absl::StrCat("model.layers.", i, "."));
  }
}

}  // namespace lynx::model
