#include "common/moe/internal/growing_set.h"

#include <algorithm>
#include <limits>
#include <span>

#include "common/moe/gate_math.h"
#include "common/moe/internal/insert_best.h"
#include "common/moe/internal/stages.h"

namespace lynx::moe::internal {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Experts do not come in order of their ids here.
bool Better(const float* scores, int32_t a, int32_t b) {
  return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
}

}  // namespace

GrowingSet::GrowingSet(const RouterInput& input, Workspace& workspace) : workspace_(workspace) {
  SumMass(input, workspace);
  if (input.gate.score == Gate::Score::kSigmoid) WeighBySigmoid(input);
  for (size_t v = 0; v < workspace.voters.size(); ++v) {
    const int32_t row = workspace.voters[v];
    workspace.exact_sum[v] = 0;
    for (int32_t e : workspace.ExactOf(row)) {
      workspace.exact_sum[v] += workspace.MassOf(row)[static_cast<size_t>(e)];
    }
  }
  Clear();
}

void GrowingSet::Clear() {
  std::fill_n(workspace_.selected.begin(), workspace_.experts, uint8_t{0});
  const size_t voters = workspace_.voters.size();
  std::fill_n(workspace_.kept_held.begin(), voters, 0);
  std::fill_n(workspace_.kept_sum.begin(), voters, uint64_t{0});
  std::fill_n(workspace_.kept_ratio.begin(), voters, uint64_t{0});
  size_ = 0;
  kept_ = 0;
}

bool GrowingSet::AllKeep(double share) const {
  const auto ratios = std::span(workspace_.kept_ratio).first(workspace_.voters.size());
  return std::all_of(ratios.begin(), ratios.end(), [&](uint64_t ratio) {
    return static_cast<double>(ratio) >= share * static_cast<double>(kMassUnit);
  });
}

int64_t GrowingSet::Gain(int32_t expert) const {
  int64_t gain = 0;
  for (size_t v = 0; v < workspace_.voters.size(); ++v) {
    gain += static_cast<int64_t>(Ratio(v, SumWith(v, expert))) -
            static_cast<int64_t>(workspace_.kept_ratio[v]);
  }
  return gain;
}

void GrowingSet::Add(int32_t expert) {
  workspace_.selected[static_cast<size_t>(expert)] = 1;
  ++size_;
  for (size_t v = 0; v < workspace_.voters.size(); ++v) {
    const float* scores = workspace_.ScoresOf(workspace_.voters[v]);
    if (scores[expert] == -kInf) continue;
    workspace_.kept_sum[v] = SumWith(v, expert);
    workspace_.kept_held[v] = static_cast<int32_t>(
        InsertBest(KeptOf(v), static_cast<size_t>(workspace_.kept_held[v]), workspace_.top_k,
                   expert, [&](int32_t a, int32_t b) { return Better(scores, a, b); }));
    kept_ -= workspace_.kept_ratio[v];
    workspace_.kept_ratio[v] = Ratio(v, workspace_.kept_sum[v]);
    kept_ += workspace_.kept_ratio[v];
  }
}

void GrowingSet::MarkUsed(std::span<uint8_t> used) const {
  std::ranges::fill(used, uint8_t{0});
  for (size_t v = 0; v < workspace_.voters.size(); ++v) {
    for (int32_t i = 0; i < workspace_.kept_held[v]; ++i) {
      used[static_cast<size_t>(KeptOf(v)[i])] = 1;
    }
  }
}

uint64_t GrowingSet::SumWith(size_t voter, int32_t expert) const {
  const int32_t row = workspace_.voters[voter];
  const float* scores = workspace_.ScoresOf(row);
  const uint64_t sum = workspace_.kept_sum[voter];
  if (scores[expert] == -kInf) return sum;
  const std::span<const uint32_t> mass = workspace_.MassOf(row);
  const auto held = static_cast<size_t>(workspace_.kept_held[voter]);
  if (held < workspace_.top_k) return sum + mass[static_cast<size_t>(expert)];
  const int32_t last = KeptOf(voter)[held - 1];
  if (!Better(scores, expert, last)) return sum;
  return sum + mass[static_cast<size_t>(expert)] - mass[static_cast<size_t>(last)];
}

void GrowingSet::WeighBySigmoid(const RouterInput& input) {
  for (int32_t row : workspace_.voters) {
    const float* logits = LogitsOf(input, row);
    const std::span<uint32_t> mass = workspace_.MassOf(row);
    for (size_t e = 0; e < workspace_.experts; ++e) {
      const double score = GateSigmoid(logits[e]);
      mass[e] = static_cast<uint32_t>(score * static_cast<double>(kMassUnit) + 0.5);
    }
  }
}

}  // namespace lynx::moe::internal
