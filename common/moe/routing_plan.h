#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lynx::moe {

// How a family turns the logits of the chosen experts into weights.
enum class GateRule : uint8_t {
  kSoftmaxRenormalised,  // Softmax over the chosen experts: they sum to 1.
  kSoftmax,              // Softmax over all experts: they sum to the mass they keep.
};

// Router logits of one MoE layer in one step.
struct RouterInput {
  std::span<const float> logits;  // [rows, experts]
  int32_t rows = 0;               // >= 0
  int32_t experts = 0;            // > 0
  int32_t top_k = 0;              // in [1, experts]
  GateRule gate_rule = GateRule::kSoftmaxRenormalised;
  int32_t layer = 0;
};

// The expert assignment of one MoE layer in one step: which experts each row goes through, in
// descending order of its own logits, with what weight.
//
// Every row has top_k distinct experts; active() is the ascending set of all experts named. Sized
// once, then reused every layer without allocation. Not thread-safe.
class RoutingPlan {
 public:
  // The largest plan it will hold; all > 0.
  RoutingPlan(int32_t max_rows, int32_t max_experts, int32_t max_top_k);

  int32_t rows() const { return rows_; }
  int32_t top_k() const { return top_k_; }
  std::span<const int32_t> ids() const { return Filled(ids_); }        // [rows, top_k]
  std::span<const float> weights() const { return Filled(weights_); }  // [rows, top_k]
  std::span<const int32_t> active() const { return active_; }

  // For policies: starts a plan for `input`, whose size must fit; then ids and weights of every row
  // are to be written, and Finish() called.
  void Start(const RouterInput& input);
  std::span<int32_t> MutableIds(int32_t row) { return RowOf(ids_, row); }
  std::span<float> MutableWeights(int32_t row) { return RowOf(weights_, row); }
  // Derives active().
  void Finish();

 private:
  size_t Size() const { return static_cast<size_t>(rows_) * static_cast<size_t>(top_k_); }
  template <typename T>
  std::span<const T> Filled(const std::vector<T>& all) const {
    return std::span<const T>(all).first(Size());
  }
  template <typename T>
  std::span<T> RowOf(std::vector<T>& all, int32_t row) {
    const auto width = static_cast<size_t>(top_k_);
    return std::span<T>(all).subspan(static_cast<size_t>(row) * width, width);
  }

  int32_t rows_ = 0;
  int32_t experts_ = 0;
  int32_t top_k_ = 0;
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
  std::vector<int32_t> active_;
  std::vector<uint8_t> is_active_;  // [experts]
};

// Weights for row `row` of `input` of the chosen experts `ids`, by its gate rule. Any NaN among the
// row's logits makes all of them NaN, so that it reaches the row's output instead of vanishing.
void Weigh(const RouterInput& input, int32_t row, std::span<const int32_t> ids,
           std::span<float> weights);

}  // namespace lynx::moe
