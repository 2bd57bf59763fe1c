#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/moe/gate_math.h"
#include "common/moe/internal/insert_best.h"
#include "common/moe/internal/stages.h"

// budget and marginal: every voter's floor, then the heaviest columns one after the other, until
// enough is active or the next expert adds too little. At least top-k experts.
namespace lynx::moe::internal {
namespace {

constexpr uint64_t kOne = uint64_t{1} << 24;
constexpr float kInf = std::numeric_limits<float>::infinity();

// A set that grows, and what every voter keeps of its exact mass by its best experts in the set.
// The mass is the gate's own: softmax, or the unbiased sigmoid.
class GrowingSet {
 public:
  GrowingSet(const RouterInput& input, Workspace& workspace) : workspace_(workspace) {
    SumMass(input, workspace);
    if (input.gate.score == Gate::Score::kSigmoid) WeighBySigmoid(input);
    for (size_t v = 0; v < workspace.voters.size(); ++v) {
      const int32_t row = workspace.voters[v];
      workspace.kept_held[v] = 0;
      workspace.kept_sum[v] = 0;
      workspace.kept_ratio[v] = 0;
      workspace.exact_sum[v] = 0;
      for (int32_t e : workspace.ExactOf(row)) {
        workspace.exact_sum[v] += workspace.MassOf(row)[static_cast<size_t>(e)];
      }
    }
  }

  size_t size() const { return size_; }
  // Sum over voters, in 2^-24.
  uint64_t kept() const { return kept_; }
  bool AllKeep(double share) const {
    const auto ratios = std::span(workspace_.kept_ratio).first(workspace_.voters.size());
    return std::all_of(ratios.begin(), ratios.end(), [&](uint64_t ratio) {
      return static_cast<double>(ratio) >= share * static_cast<double>(kOne);
    });
  }

  // By how much kept() would grow with `expert`.
  int64_t Gain(int32_t expert) const {
    int64_t gain = 0;
    for (size_t v = 0; v < workspace_.voters.size(); ++v) {
      gain += static_cast<int64_t>(Ratio(v, SumWith(v, expert))) -
              static_cast<int64_t>(workspace_.kept_ratio[v]);
    }
    return gain;
  }

  void Add(int32_t expert) {
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

 private:
  // Experts do not come in order of their ids here.
  static bool Better(const float* scores, int32_t a, int32_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
  }

  int32_t* KeptOf(size_t voter) const {
    return workspace_.kept_ids.data() + voter * workspace_.top_k;
  }

  // What the voter would keep with `expert` in the set.
  uint64_t SumWith(size_t voter, int32_t expert) const {
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

  uint64_t Ratio(size_t voter, uint64_t sum) const {
    const uint64_t exact = workspace_.exact_sum[voter];
    return sum >= exact ? kOne : sum * kOne / exact;
  }

  void WeighBySigmoid(const RouterInput& input) {
    for (int32_t row : workspace_.voters) {
      const float* logits = LogitsOf(input, row);
      const std::span<uint32_t> mass = workspace_.MassOf(row);
      for (size_t e = 0; e < workspace_.experts; ++e) {
        const double score = GateSigmoid(logits[e]);
        mass[e] = static_cast<uint32_t>(score * static_cast<double>(kOne) + 0.5);
      }
    }
  }

  Workspace& workspace_;
  size_t size_ = 0;
  uint64_t kept_ = 0;
};

// Starts `set` with the floors, which `selected` holds then.
void AddFloors(const Policy& policy, Workspace& workspace, GrowingSet& set) {
  SelectFloors(policy.kept_ranks(), workspace);
  for (size_t e = 0; e < workspace.experts; ++e) {
    if (workspace.selected[e] != 0) set.Add(static_cast<int32_t>(e));
  }
}

// How many experts at most.
size_t Limit(const Policy& policy, Workspace& workspace) {
  if (policy.experts != Policy::kUnset) return static_cast<size_t>(policy.experts);
  if (policy.fraction <= 0) return workspace.experts;
  std::fill_n(workspace.votes.begin(), workspace.experts, 0u);
  for (int32_t row : workspace.voters) {
    for (int32_t e : workspace.ExactOf(row)) workspace.votes[static_cast<size_t>(e)] = 1;
  }
  const auto exact =
      std::accumulate(workspace.votes.begin(),
                      workspace.votes.begin() + static_cast<ptrdiff_t>(workspace.experts), 0u);
  // 0.28 of 25 is 7, though the product in binary is a little more.
  const double share = std::ceil(policy.fraction * exact - 1e-9);
  return std::max(workspace.top_k, static_cast<size_t>(share));
}

// By size alone: nobody asks what rows keep.
void SelectHeaviest(const RouterInput& input, const Policy& policy, size_t limit,
                    Workspace& workspace) {
  SumMass(input, workspace);
  SelectFloors(policy.kept_ranks(), workspace);
  const auto begin = workspace.selected.begin();
  auto size = static_cast<size_t>(
      std::count(begin, begin + static_cast<ptrdiff_t>(workspace.experts), uint8_t{1}));
  for (int32_t e : OrderByMass(workspace)) {
    if (size >= limit) break;
    uint8_t& selected = workspace.selected[static_cast<size_t>(e)];
    size += 1 - selected;
    selected = 1;
  }
}

}  // namespace

void SelectBudget(const RouterInput& input, const Policy& policy, Workspace& workspace) {
  const size_t limit = Limit(policy, workspace);
  if (policy.coverage <= 0 && policy.row_coverage <= 0) {
    SelectHeaviest(input, policy, limit, workspace);
    return;
  }
  const double enough =
      policy.coverage * static_cast<double>(kOne) * static_cast<double>(workspace.voters.size());
  GrowingSet set(input, workspace);
  AddFloors(policy, workspace, set);
  for (int32_t e : OrderByMass(workspace)) {
    if (set.size() >= workspace.top_k) {
      if (set.size() >= limit) break;
      if (policy.coverage > 0 && static_cast<double>(set.kept()) >= enough) break;
      if (policy.row_coverage > 0 && set.AllKeep(policy.row_coverage)) break;
    }
    if (workspace.selected[static_cast<size_t>(e)] == 0) set.Add(e);
  }
}

void SelectMarginal(const RouterInput& input, const Policy& policy, Workspace& workspace) {
  const auto cost = [&](int32_t e) {
    return input.expert_cost.empty() ? 1.0f : input.expert_cost[static_cast<size_t>(e)];
  };
  GrowingSet set(input, workspace);
  AddFloors(policy, workspace, set);
  const std::span<const int32_t> order = OrderByMass(workspace);
  // What costs nothing is there already, whatever it adds.
  for (int32_t e : order) {
    if (workspace.selected[static_cast<size_t>(e)] == 0 && cost(e) <= 0) set.Add(e);
  }
  // After an expert that is not worth its cost only cheaper ones can be.
  float refused = kInf;
  for (int32_t e : order) {
    if (workspace.selected[static_cast<size_t>(e)] != 0) continue;
    if (set.size() >= workspace.top_k) {
      if (cost(e) >= refused) continue;
      if (static_cast<double>(set.Gain(e)) <
          policy.lambda * static_cast<double>(cost(e)) * static_cast<double>(kOne)) {
        refused = cost(e);
        continue;
      }
    }
    set.Add(e);
  }
}

}  // namespace lynx::moe::internal
