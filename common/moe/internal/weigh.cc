#include <algorithm>
#include <cmath>

#include "common/moe/gate_math.h"
#include "common/moe/internal/stages.h"

namespace lynx::moe::internal {
namespace {

// The gate's scores of one row's experts, without their common factor e^anchor, so that a set of
// unlikely experts does not underflow as a whole.
class Scores {
 public:
  Scores(const RouterInput& input, int32_t row, const Workspace& workspace)
      : logits_(LogitsOf(input, row)),
        sigmoid_(input.gate.score == Gate::Score::kSigmoid),
        best_first_(!sigmoid_ && workspace.scores == input.logits.data()) {}

  // The largest factor among `ids`.
  float Anchor(std::span<const int32_t> ids) const {
    if (best_first_) return logits_[ids[0]];
    float anchor = Exponent(ids[0]);
    for (int32_t e : ids.subspan(1)) anchor = std::max(anchor, Exponent(e));
    return anchor;
  }

  // Writes the scores of `ids`; `anchor` is at least Anchor(ids).
  void Of(std::span<const int32_t> ids, float anchor, float* scores) const {
    if (!sigmoid_) return GateExpsOf(logits_, ids.data(), ids.size(), anchor, scores);
    for (size_t j = 0; j < ids.size(); ++j) scores[j] = Exponent(ids[j]);
    GateExps(scores, ids.size(), anchor, scores);
    for (size_t j = 0; j < ids.size(); ++j) scores[j] /= 1 + GateExp(-std::abs(logits_[ids[j]]));
  }

 private:
  // sigmoid(z) = e^min(z, 0) / (1 + e^-|z|)
  float Exponent(int32_t e) const { return sigmoid_ ? std::min(logits_[e], 0.0f) : logits_[e]; }

  const float* const logits_;
  const bool sigmoid_;
  const bool best_first_;  // Rows rank by what Exponent() says.
};

double Sum(const float* values, size_t count) {
  double sum = 0;
  for (size_t j = 0; j < count; ++j) sum += static_cast<double>(values[j]);
  return sum;
}

// What the gate gives the row's own top-k altogether.
float ExactMass(const RouterInput& input, int32_t row, std::span<const int32_t> exact,
                Workspace& workspace) {
  float* values = workspace.row_buffer.data();
  const Scores scores(input, row, workspace);
  if (input.gate.score == Gate::Score::kSigmoid) {
    scores.Of(exact, 0, values);
    return static_cast<float>(Sum(values, exact.size()));
  }
  const float* logits = LogitsOf(input, row);
  const float largest = *std::max_element(logits, logits + workspace.experts);
  scores.Of(exact, largest, values);
  const double kept = Sum(values, exact.size());
  GateExps(logits, workspace.experts, largest, values);
  return static_cast<float>(kept / Sum(values, workspace.experts));
}

// `kept` is the sum of the scores of `ids` with their own anchor.
float KeptMass(const Scores& scores, std::span<const int32_t> exact, std::span<const int32_t> ids,
               float own_anchor, double kept, float* values) {
  const float anchor = std::max(scores.Anchor(exact), own_anchor);
  if (anchor != own_anchor) {
    scores.Of(ids, anchor, values);
    kept = Sum(values, ids.size());
  }
  scores.Of(exact, anchor, values);
  const double whole = Sum(values, exact.size());
  return whole > 0 ? static_cast<float>(kept / whole) : 1;
}

}  // namespace

float Weigh(const RouterInput& input, int32_t row, std::span<const int32_t> exact,
            std::span<const int32_t> ids, std::span<float> weights, Workspace& workspace) {
  const Scores scores(input, row, workspace);
  const float anchor = scores.Anchor(ids);
  scores.Of(ids, anchor, weights.data());
  const double kept = Sum(weights.data(), weights.size());
  float total = 0;
  for (float weight : weights) total += weight;
  for (float& weight : weights) weight /= total;
  if (input.gate.rule == Gate::Rule::kKeepMass) {
    const float mass = ExactMass(input, row, exact, workspace);
    for (float& weight : weights) weight *= mass;
  }
  for (float& weight : weights) weight *= input.gate.scale;
  if (std::equal(exact.begin(), exact.end(), ids.begin(), ids.end())) return 1;
  return KeptMass(scores, exact, ids, anchor, kept, workspace.row_buffer.data());
}

}  // namespace lynx::moe::internal
