#include "common/model/model_weights.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/model/name_list.h"
#include "common/model/weight_packer.h"
#include "kernels/core/float_convert.h"

namespace lynx::model {
namespace {

using kernels::ExpertWeights;
using kernels::Matrix;

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

int64_t BytesOf(const Matrix& matrix) {
  return kernels::PackedBytes(matrix.out, matrix.in, matrix.dtype);
}

// Takes tensors by name. Failures are collected, so that one start shows them all.
class Binder {
 public:
  // Both outlive this.
  Binder(const TensorMap& tensors, WeightPacker& packer) : tensors_(tensors), packer_(packer) {}

  bool Has(const std::string& name) const { return tensors_.count(name) > 0; }

  // Null when absent or of the wrong shape.
  const Tensor* Take(const std::string& name, const std::vector<int64_t>& shape) {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) {
      missing_.push_back(name);
      return nullptr;
    }
    taken_.insert(name);
    const Tensor& tensor = it->second;
    if (tensor.shape != shape) {
      misshapen_.push_back(
          absl::StrCat(name, " is ", ShapeText(tensor.shape), ", wanted ", ShapeText(shape)));
      return nullptr;
    }
    size_t bytes = SizeOf(tensor.dtype);
    for (int64_t extent : shape) bytes *= static_cast<size_t>(extent);
    if (tensor.data.size() != bytes) {
      misshapen_.push_back(absl::StrCat(name, " ", ShapeText(shape), " has ", tensor.data.size(),
                                        " bytes of ", bytes));
      return nullptr;
    }
    return &tensor;
  }

  Matrix TakeMatrix(const std::string& name, int64_t out, int64_t in, int64_t* bytes) {
    const Tensor* tensor = Take(name, {out, in});
    if (tensor == nullptr) return {};
    const Matrix matrix = packer_.Add(tensor->data.data(), tensor->dtype, out, in);
    *bytes += BytesOf(matrix);
    return matrix;
  }

  WeightPacker& packer() { return packer_; }

  void Refuse(std::string what) { misshapen_.push_back(std::move(what)); }

  std::vector<float> TakeVector(const std::string& name, int64_t size) {
    const Tensor* tensor = Take(name, {size});
    if (tensor == nullptr) return {};
    std::vector<float> values;
    for (int64_t i = 0; i < size; ++i) {
      switch (tensor->dtype) {
        case DType::kF32:
          values.push_back(reinterpret_cast<const float*>(tensor->data.data())[i]);
          break;
        case DType::kBf16:
          values.push_back(
              kernels::Bf16ToF32(reinterpret_cast<const uint16_t*>(tensor->data.data())[i]));
          break;
        case DType::kF16:
          values.push_back(
              kernels::F16ToF32(reinterpret_cast<const uint16_t*>(tensor->data.data())[i]));
          break;
      }
    }
    return values;
  }

  void Ignore(const std::string& name) { taken_.insert(name); }

  absl::Status Finish() const {
    if (!missing_.empty()) {
      return absl::NotFoundError(
          absl::StrCat(missing_.size(), " tensors missing from the weights: ", NameList(missing_)));
    }
    if (!misshapen_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensors disagree with config.json: ", NameList(misshapen_)));
    }
    std::vector<std::string> unknown;
    for (const auto& [name, tensor] : tensors_) {
      // Old exports carry the frequencies of RoPE, which follow from the config.
      if (taken_.count(name) == 0 && !absl::EndsWith(name, ".rotary_emb.inv_freq")) {
        unknown.push_back(name);
      }
    }
    if (!unknown.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          unknown.size(), " tensors belong to no part of this model: ", NameList(unknown)));
    }
    return absl::OkStatus();
  }

 private:
  const TensorMap& tensors_;
  WeightPacker& packer_;
  std::set<std::string> taken_;
  std::vector<std::string> missing_;
  std::vector<std::string> misshapen_;
};

AttentionWeights BindAttention(const ModelSpec& spec, const std::string& layer, Binder& binder) {
  const int64_t q_width = int64_t{spec.query_heads} * spec.head_dim;
  const int64_t kv_width = int64_t{spec.kv_heads} * spec.head_dim;
  const std::string prefix = layer + "self_attn.";
  AttentionWeights weights;
  weights.input_norm = binder.TakeVector(layer + "input_layernorm.weight", spec.hidden_size);
  int64_t* bytes = &weights.bytes;
  weights.q = binder.TakeMatrix(prefix + "q_proj.weight", q_width, spec.hidden_size, bytes);
  weights.k = binder.TakeMatrix(prefix + "k_proj.weight", kv_width, spec.hidden_size, bytes);
  weights.v = binder.TakeMatrix(prefix + "v_proj.weight", kv_width, spec.hidden_size, bytes);
  weights.o = binder.TakeMatrix(prefix + "o_proj.weight", spec.hidden_size, q_width, bytes);
  if (spec.head_norm) {
    weights.q_norm = binder.TakeVector(prefix + "q_norm.weight", spec.head_dim);
    weights.k_norm = binder.TakeVector(prefix + "k_norm.weight", spec.head_dim);
  }
  return weights;
}

// One gated MLP stored as three Linears under `prefix`.
ExpertWeights BindMlp(const std::string& prefix, int64_t hidden, int64_t intermediate,
                      Binder& binder) {
  const Tensor* gate = binder.Take(prefix + "gate_proj.weight", {intermediate, hidden});
  const Tensor* up = binder.Take(prefix + "up_proj.weight", {intermediate, hidden});
  const Tensor* down = binder.Take(prefix + "down_proj.weight", {hidden, intermediate});
  if (gate == nullptr || up == nullptr || down == nullptr) return {};
  if (gate->dtype != up->dtype) {
    binder.Refuse(absl::StrCat(prefix, "gate_proj.weight is ", std::string(Name(gate->dtype)),
                               ", up_proj.weight ", std::string(Name(up->dtype))));
    return {};
  }
  WeightPacker& packer = binder.packer();
  return {.gate_up = packer.AddGateUp(gate->data.data(), up->data.data(), gate->dtype, intermediate,
                                      hidden),
          .down = packer.Add(down->data.data(), down->dtype, hidden, intermediate)};
}

// All experts of a layer in two tensors: [experts, gate rows then up rows, hidden] and
// [experts, hidden, intermediate].
std::vector<ExpertWeights> BindFusedExperts(const ModelSpec& spec, const std::string& prefix,
                                            Binder& binder) {
  const int64_t hidden = spec.hidden_size;
  const int64_t intermediate = spec.expert_intermediate_size;
  const Tensor* gate_up =
      binder.Take(prefix + "experts.gate_up_proj", {spec.experts, 2 * intermediate, hidden});
  const Tensor* down =
      binder.Take(prefix + "experts.down_proj", {spec.experts, hidden, intermediate});
  if (gate_up == nullptr || down == nullptr) return {};
  auto part = [&](const Tensor& tensor, int64_t index) {
    return tensor.data.data() +
           index * intermediate * hidden * static_cast<int64_t>(SizeOf(tensor.dtype));
  };
  WeightPacker& packer = binder.packer();
  std::vector<ExpertWeights> experts;
  for (int64_t e = 0; e < spec.experts; ++e) {
    experts.push_back({.gate_up = packer.AddGateUp(part(*gate_up, 2 * e), part(*gate_up, 2 * e + 1),
                                                   gate_up->dtype, intermediate, hidden),
                       .down = packer.Add(part(*down, e), down->dtype, hidden, intermediate)});
  }
  return experts;
}

void BindExperts(const ModelSpec& spec, const std::string& prefix, FeedForwardWeights& weights,
                 Binder& binder) {
  weights.router = binder.TakeMatrix(prefix + "gate.weight", spec.experts, spec.hidden_size,
                                     &weights.router_bytes);
  if (binder.Has(prefix + "experts.gate_up_proj")) {
    weights.experts = BindFusedExperts(spec, prefix, binder);
    return;
  }
  for (int32_t e = 0; e < spec.experts; ++e) {
    weights.experts.push_back(BindMlp(absl::StrCat(prefix, "experts.", e, "."), spec.hidden_size,
                                      spec.expert_intermediate_size, binder));
    const ExpertWeights& first = weights.experts.front();
    const ExpertWeights& last = weights.experts.back();
    if (last.gate_up.dtype != first.gate_up.dtype || last.down.dtype != first.down.dtype) {
      binder.Refuse(absl::StrCat(prefix, "experts.", e, " is of another type than experts.0"));
    }
  }
}

FeedForwardWeights BindFeedForward(const ModelSpec& spec, FeedForwardKind kind,
                                   const std::string& layer, Binder& binder) {
  const std::string prefix = layer + "mlp.";
  FeedForwardWeights weights;
  weights.input_norm =
      binder.TakeVector(layer + "post_attention_layernorm.weight", spec.hidden_size);
  if (kind == FeedForwardKind::kDense) {
    weights.experts.push_back(
        BindMlp(prefix, spec.hidden_size, spec.dense_intermediate_size, binder));
  } else {
    BindExperts(spec, prefix, weights, binder);
  }
  if (!weights.experts.empty()) {
    const ExpertWeights& first = weights.experts.front();
    weights.expert_bytes = BytesOf(first.gate_up) + BytesOf(first.down);
  }
  return weights;
}

// What both passes of the packer do alike.
ModelWeights BindAll(const ModelSpec& spec, Binder& binder) {
  ModelWeights weights;
  int64_t embedding_bytes = 0;
  weights.embedding = binder.TakeMatrix("model.embed_tokens.weight", spec.vocab_size,
                                        spec.hidden_size, &embedding_bytes);
  weights.final_norm = binder.TakeVector("model.norm.weight", spec.hidden_size);
  if (spec.tied_embeddings) {
    weights.head = weights.embedding;
    weights.head_bytes = embedding_bytes;
    binder.Ignore("lm_head.weight");
  } else {
    weights.head =
        binder.TakeMatrix("lm_head.weight", spec.vocab_size, spec.hidden_size, &weights.head_bytes);
  }
  for (int32_t i = 0; i < spec.layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    weights.layers.push_back({.attention = BindAttention(spec, layer, binder),
                              .feed_forward = BindFeedForward(
                                  spec, spec.feed_forward[static_cast<size_t>(i)], layer, binder)});
  }
  return weights;
}

}  // namespace

absl::StatusOr<ModelWeights> BindWeights(const TensorMap& tensors, ModelSpec& spec,
                                         const PackOptions& options) {
  WeightPacker counting(nullptr);
  Binder checking(tensors, counting);
  BindAll(spec, checking);
  LYNX_RETURN_IF_ERROR(checking.Finish());
  if (spec.tied_embeddings && checking.Has("lm_head.weight")) {
    spec.notes.push_back("tie_word_embeddings is true: lm_head.weight in the weights is not used");
  }
  LYNX_ASSIGN_OR_RETURN(HugeBuffer memory, HugeBuffer::Create(static_cast<size_t>(counting.bytes()),
                                                              "the packed weights"));
  WeightPacker packer(memory.data());
  Binder binder(tensors, packer);
  ModelWeights weights = BindAll(spec, binder);
  packer.Pack(options);
  weights.memory = std::move(memory);
  return weights;
}

}  // namespace lynx::model
