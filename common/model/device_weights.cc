#include "common/model/device_weights.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/step_memory.h"

namespace lynx::model {
namespace {

constexpr size_t kAlignment = 256;

void ForEachMatrix(ModelWeights& weights, const std::function<void(kernels::Matrix&)>& visit) {
  visit(weights.embedding);
  visit(weights.head);
  for (LayerWeights& layer : weights.layers) {
    AttentionWeights& a = layer.attention;
    for (kernels::Matrix* matrix : {&a.q, &a.k, &a.v, &a.o}) visit(*matrix);
    LatentAttentionWeights& l = layer.latent_attention;
    for (kernels::Matrix* matrix : {&l.q_a, &l.q, &l.kv_a, &l.o}) visit(*matrix);
    for (kernels::Matrix& head : l.k_up) visit(head);
    for (kernels::Matrix& head : l.v_up) visit(head);
    FeedForwardWeights& f = layer.feed_forward;
    for (kernels::Matrix* matrix : {&f.router, &f.shared_gate, &f.shared.gate_up, &f.shared.down}) {
      visit(*matrix);
    }
    for (kernels::ExpertWeights& expert : f.experts) {
      visit(expert.gate_up);
      visit(expert.down);
    }
  }
}

void ForEachVector(ModelWeights& weights, const std::function<void(Floats&)>& visit) {
  visit(weights.final_norm);
  for (LayerWeights& layer : weights.layers) {
    AttentionWeights& a = layer.attention;
    LatentAttentionWeights& l = layer.latent_attention;
    FeedForwardWeights& f = layer.feed_forward;
    for (Floats* vector :
         {&a.input_norm, &a.q_bias, &a.k_bias, &a.v_bias, &a.o_bias, &a.q_norm, &a.k_norm, &a.sinks,
          &l.input_norm, &l.q_a_norm, &l.kv_a_norm, &f.input_norm, &f.router_bias, &f.ranking_bias,
          &f.gate_up_biases, &f.down_biases}) {
      visit(*vector);
    }
  }
}

}  // namespace

absl::StatusOr<kernels::DeviceBuffer> MoveToDevice(kernels::Device& device, ModelWeights& weights) {
  std::vector<std::byte> vectors;
  std::vector<std::pair<Floats*, size_t>> places;
  ForEachVector(weights, [&](Floats& vector) {
    if (vector.empty()) return;
    places.emplace_back(&vector, vectors.size());
    const auto bytes = std::as_bytes(std::span<const float>(vector.host()));
    vectors.insert(vectors.end(), bytes.begin(), bytes.end());
    vectors.resize((vectors.size() + kAlignment - 1) / kAlignment * kAlignment);
  });
  const std::byte* const packed = weights.memory.data();
  const size_t packed_bytes = (weights.memory.size() + kAlignment - 1) / kAlignment * kAlignment;
  LYNX_ASSIGN_OR_RETURN(kernels::DeviceBuffer memory,
                        kernels::DeviceBuffer::Create(device, packed_bytes + vectors.size()));
  LYNX_RETURN_IF_ERROR(Upload(device, {packed, weights.memory.size()}, memory.data()));
  LYNX_RETURN_IF_ERROR(Upload(device, vectors, memory.data() + packed_bytes));

  ForEachMatrix(weights, [&](kernels::Matrix& matrix) {
    if (matrix.data == nullptr) return;
    matrix.data = memory.data() + (static_cast<const std::byte*>(matrix.data) - packed);
  });
  for (const auto& [vector, at] : places) {
    vector->MoveTo(reinterpret_cast<const float*>(memory.data() + packed_bytes + at));
  }
  for (LayerWeights& layer : weights.layers) {
    FeedForwardWeights& feed_forward = layer.feed_forward;
    if (feed_forward.gate_up_biases.empty() && feed_forward.down_biases.empty()) continue;
    for (size_t e = 0; e < feed_forward.experts.size(); ++e) {
      feed_forward.SetBiases(static_cast<int32_t>(e), feed_forward.experts[e]);
    }
  }
  weights.memory = HugeBuffer();
  return memory;
}

absl::Status CheckForDevice(const ModelWeights& weights) {
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    const FeedForwardWeights& feed_forward = weights.layers[layer].feed_forward;
    const auto alike = [](const kernels::ExpertWeights& expert, DType dtype) {
      return expert.gate_up.dtype == dtype && expert.down.dtype == dtype;
    };
    const DType first = feed_forward.experts.front().gate_up.dtype;
    const kernels::ExpertWeights& shared = feed_forward.shared;
    if (std::ranges::all_of(
            feed_forward.experts,
            [&](const kernels::ExpertWeights& expert) { return alike(expert, first); }) &&
        (shared.down.data == nullptr || alike(shared, shared.gate_up.dtype))) {
      continue;
    }
    return absl::UnimplementedError(
        absl::StrCat("on a GPU: layer ", layer,
                     " has weights of its MLP in several types, which is not served"));
  }
  return absl::OkStatus();
}

}  // namespace lynx::model
