#include "common/model/model_weights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/model/families/family.h"
#include "common/model/weight_binder.h"
#include "common/model/weight_packer.h"

namespace lynx::model {
namespace {

WeightBinder::Fp8Block BlockOf(const ModelSpec& spec) {
  return {.rows = spec.fp8_block_rows, .width = spec.fp8_block_width};
}

// What both passes of the packer do alike.
ModelWeights BindAll(const ModelSpec& spec, WeightBinder& binder) {
  const Family* family = FindFamily(spec.model_type);
  LYNX_CHECK(family != nullptr);
  ModelWeights weights;
  family->bind(spec, binder, weights);
  return weights;
}

}  // namespace

std::map<std::string, std::vector<int64_t>> TensorShapes(const ModelSpec& spec) {
  const TensorMap none;
  ModelSpec plain = spec;
  plain.mxfp4_experts = false;
  WeightPacker counting(nullptr);
  WeightBinder binder(none, counting, BlockOf(plain), ShardOf(plain, {}, 0));
  BindAll(plain, binder);
  return binder.missing();
}

int64_t AttentionWeights::bytes() const {
  return BytesOf(q) + BytesOf(k) + BytesOf(v) + BytesOf(o);
}

int64_t LatentAttentionWeights::bytes() const {
  int64_t bytes = BytesOf(q_a) + BytesOf(q) + BytesOf(kv_a) + BytesOf(o);
  for (const kernels::Matrix& head : k_up) bytes += BytesOf(head);
  for (const kernels::Matrix& head : v_up) bytes += BytesOf(head);
  return bytes;
}

void FeedForwardWeights::SetBiases(int32_t id, kernels::ExpertWeights& expert) const {
  const auto of = [id](const Floats& biases, int64_t each) {
    return biases.empty() ? nullptr : biases.data() + id * each;
  };
  expert.gate_up_bias = of(gate_up_biases, expert.gate_up.out);
  expert.down_bias = of(down_biases, expert.down.out);
}

int64_t FeedForwardWeights::fixed_bytes() const {
  return BytesOf(router) + BytesOf(shared_gate) + BytesOf(shared);
}

int64_t FeedForwardWeights::expert_bytes() const { return BytesOf(experts.front()); }

WeightsOutline OutlineWeights(const TensorMap& tensors, const ModelSpec& spec) {
  return OutlineWeights(tensors, spec, ShardOf(spec, {}, 0));
}

WeightsOutline OutlineWeights(const TensorMap& tensors, const ModelSpec& spec,
                              const RankShard& shard) {
  WeightsOutline outline;
  WeightPacker counting(nullptr);
  WeightBinder binder(tensors, counting, BlockOf(spec), shard);
  outline.weights = BindAll(spec, binder);
  outline.packed_bytes = counting.bytes();
  outline.vector_bytes = binder.vector_bytes();
  outline.problems = binder.Problems();
  outline.ignored = binder.Ignored();
  return outline;
}

absl::StatusOr<ModelWeights> BindWeights(
    const TensorMap& tensors, ModelSpec& spec, const RankShard& shard,
    const std::function<absl::Status(const WeightBytes&)>& admit, const PackOptions& options) {
  WeightsOutline outline = OutlineWeights(tensors, spec, shard);
  WeightBytes bytes{.all = outline.packed_bytes + outline.vector_bytes};
  for (const LayerWeights& layer : outline.weights.layers) {
    if (layer.feed_forward.experts.empty()) continue;
    bytes.expert = std::max(bytes.expert, layer.feed_forward.expert_bytes());
  }
  outline.weights = {};  // Its vectors need not stay twice.
  LYNX_RETURN_IF_ERROR(outline.problems.ToStatus());
  LYNX_RETURN_IF_ERROR(admit(bytes));
  for (const std::string& name : outline.ignored) {
    if (spec.tied_embeddings && absl::EndsWith(name, "lm_head.weight")) {
      spec.notes.push_back(
          absl::StrCat("tie_word_embeddings is true: ", name, " in the weights is not used"));
    }
  }
  LYNX_ASSIGN_OR_RETURN(
      HugeBuffer memory,
      HugeBuffer::Create(static_cast<size_t>(outline.packed_bytes), "the packed weights"));
  WeightPacker packer(memory.data());
  WeightBinder binder(tensors, packer, BlockOf(spec), shard);
  ModelWeights weights = BindAll(spec, binder);
  packer.Pack(options);
  weights.memory = std::move(memory);
  return weights;
}

absl::StatusOr<kernels::ExpertWeights> BindExpert(
    const TensorMap& tensors, const ModelSpec& spec, const RankShard& shard, int32_t layer,
    int32_t id, std::byte* memory,
    const std::function<absl::Status(std::span<const std::byte>)>& check,
    const PackOptions& options) {
  RankShard only = shard;
  only.experts = {id};
  only.shared_columns = {};
  WeightPacker packer(memory);
  WeightBinder binder(tensors, packer, BlockOf(spec), only);
  binder.TakeOnlyExpertsOf(layer);
  const ModelWeights weights = BindAll(spec, binder);
  LYNX_CHECK(weights.layers.size() == 1 && weights.layers.front().feed_forward.experts.size() == 1);
  for (const std::span<const std::byte> source : packer.Sources()) {
    LYNX_RETURN_IF_ERROR(check(source));
  }
  packer.Pack(options);
  return weights.layers.front().feed_forward.experts.front();
}

}  // namespace lynx::model
