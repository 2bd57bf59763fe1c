#include "tests/common/moe/routing_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "gtest/gtest.h"

namespace lynx::moe::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kClose = 1e-5;  // Nearer than this, rounding to 2^-24 may decide.

using ExpertSet = std::set<int32_t>;

std::vector<int32_t> VotersOf(const Batch& batch) {
  std::vector<int32_t> voters;
  for (int32_t row = 0; row < batch.rows; ++row) {
    if (batch.IsValid(row)) voters.push_back(row);
  }
  return voters;
}

void AddTop(const Batch& batch, int32_t row, int32_t count, ExpertSet& set) {
  for (int32_t e : BestOf(batch.Row(row), static_cast<size_t>(count))) set.insert(e);
}

// Top-r of every row; rows that opted out: all theirs.
void AddFloors(const Batch& batch, int32_t ranks, ExpertSet& set) {
  for (int32_t row : VotersOf(batch)) {
    AddTop(batch, row, batch.OptedOut(row) ? batch.top_k : ranks, set);
  }
}

std::vector<double> ColumnMass(const Batch& batch) {
  std::vector<double> mass(static_cast<size_t>(batch.experts));
  for (int32_t row : VotersOf(batch)) {
    const std::vector<double> p = SoftmaxOf(batch.Row(row));
    for (size_t e = 0; e < p.size(); ++e) mass[e] += p[e];
  }
  return mass;
}

// Experts by falling mass, then id; nothing if two are too close without being equal to the bit.
std::vector<int32_t> ByMass(const Batch& batch, bool& close) {
  const std::vector<double> mass = ColumnMass(batch);
  std::vector<int32_t> order(mass.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return mass[static_cast<size_t>(a)] > mass[static_cast<size_t>(b)];
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const double gap =
        mass[static_cast<size_t>(order[i - 1])] - mass[static_cast<size_t>(order[i])];
    close |= gap > 0 && gap < kClose;
  }
  return order;
}

// Section 1 of the definition, to the letter: V[e] = sum over rows of B^-j, then
// L = -j + (V - own part) / B, in double precision. L times B^(last + 1) is a whole number, which
// tells ties from rounding.
std::optional<ExpertSet> LynxSet(const Batch& batch, const Policy& policy) {
  const std::vector<int32_t> voters = VotersOf(batch);
  const auto b = static_cast<double>(voters.size());
  std::map<int32_t, std::vector<double>> bins;
  double last = 0;
  for (int32_t row : voters) {
    const std::vector<float> z = batch.Row(row);
    const double best = *std::max_element(z.begin(), z.end());
    const double unit =
        policy.self_scaled
            ? std::abs(
                  best -
                  static_cast<double>(
                      z[static_cast<size_t>(BestOf(z, static_cast<size_t>(batch.top_k)).back())]))
            : 1;
    for (float logit : z) {
      const double gap = best - static_cast<double>(logit);
      double bin = gap == 0 ? 0 : std::floor(policy.alpha * (gap / unit));
      if (policy.beta != Policy::kUnbounded) bin = std::min(bin, static_cast<double>(policy.beta));
      bins[row].push_back(bin);
      if (std::isfinite(bin)) last = std::max(last, bin);
    }
  }
  const double scale = std::pow(b, last + 1);
  if (scale * (last + 2) > 4e15) return std::nullopt;  // Past double precision.
  // An infinite gap without a last bin weighs nothing.
  const auto weight = [&](double bin) { return std::isfinite(bin) ? std::pow(b, -bin) : 0; };
  std::vector<double> popularity(static_cast<size_t>(batch.experts));
  for (int32_t row : voters) {
    for (size_t e = 0; e < popularity.size(); ++e) popularity[e] += weight(bins[row][e]);
  }
  ExpertSet set;
  for (int32_t row : voters) {
    const std::vector<float> z = batch.Row(row);
    std::vector<int32_t> order;
    std::map<int32_t, double> score;
    for (int32_t e = 0; e < batch.experts; ++e) {
      const auto i = static_cast<size_t>(e);
      if (z[i] == -kInf) continue;
      const double l = -bins[row][i] + (popularity[i] - weight(bins[row][i])) / b;
      score[e] = std::round(l * scale);
      order.push_back(e);
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
      if (score[x] != score[y]) return score[x] > score[y];
      return policy.kind == Policy::Kind::kLynx &&
             z[static_cast<size_t>(x)] > z[static_cast<size_t>(y)];
    });
    set.insert(order.begin(), order.begin() + batch.top_k);
  }
  AddFloors(batch, policy.kept_ranks(), set);
  return set;
}

std::optional<ExpertSet> VoteSet(const Batch& batch, const Policy& policy) {
  std::vector<int32_t> votes(static_cast<size_t>(batch.experts));
  for (int32_t row : VotersOf(batch)) {
    for (int32_t e : BestOf(batch.Row(row), static_cast<size_t>(batch.top_k))) {
      ++votes[static_cast<size_t>(e)];
    }
  }
  bool close = false;
  std::vector<int32_t> order = ByMass(batch, close);
  if (close) return std::nullopt;
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return votes[static_cast<size_t>(a)] > votes[static_cast<size_t>(b)];
  });
  ExpertSet set(order.begin(), order.begin() + policy.experts);
  AddFloors(batch, policy.kept_ranks(), set);
  return set;
}

std::optional<ExpertSet> TopRanksSet(const Batch& batch, const Policy& policy) {
  ExpertSet set;
  AddFloors(batch, policy.k0, set);
  if (policy.kind == Policy::Kind::kPrune) return set;
  bool close = false;
  for (int32_t e : ByMass(batch, close)) {
    if (set.size() >= static_cast<size_t>(batch.top_k)) return set;
    if (close) return std::nullopt;
    set.insert(e);
  }
  return set;
}

double KeptSum(const Batch& batch, const ExpertSet& set) {
  double sum = 0;
  for (int32_t row : VotersOf(batch)) sum += KeptRatio(batch, row, set);
  return sum;
}

std::optional<ExpertSet> BudgetSet(const Batch& batch, const Policy& policy) {
  bool close = false;
  const std::vector<int32_t> order = ByMass(batch, close);
  if (close) return std::nullopt;
  auto limit = static_cast<size_t>(batch.experts);
  if (policy.experts != Policy::kUnset) limit = static_cast<size_t>(policy.experts);
  if (policy.fraction > 0) {
    limit = static_cast<size_t>(
        std::ceil(policy.fraction * static_cast<double>(ExactUnion(batch).size()) - 1e-9));
  }
  const auto k = static_cast<size_t>(batch.top_k);
  ExpertSet set;
  AddFloors(batch, policy.kept_ranks(), set);
  const std::vector<int32_t> voters = VotersOf(batch);
  for (int32_t e : order) {
    if (set.size() >= k) {
      if (set.size() >= limit) break;
      if (policy.coverage > 0) {
        const double mean = KeptSum(batch, set) / static_cast<double>(voters.size());
        if (std::abs(mean - policy.coverage) < kClose) return std::nullopt;
        if (mean >= policy.coverage) break;
      }
      if (policy.row_coverage > 0) {
        double least = 1;
        for (int32_t row : voters) least = std::min(least, KeptRatio(batch, row, set));
        if (std::abs(least - policy.row_coverage) < kClose) return std::nullopt;
        if (least >= policy.row_coverage) break;
      }
    }
    set.insert(e);
  }
  return set;
}

std::optional<ExpertSet> MarginalSet(const Batch& batch, const Policy& policy) {
  bool close = false;
  const std::vector<int32_t> order = ByMass(batch, close);
  if (close) return std::nullopt;
  const auto cost = [&](int32_t e) {
    return batch.expert_cost.empty()
               ? 1.0
               : static_cast<double>(batch.expert_cost[static_cast<size_t>(e)]);
  };
  ExpertSet set;
  AddFloors(batch, policy.kept_ranks(), set);
  for (int32_t e : order) {
    if (cost(e) == 0) set.insert(e);
  }
  double refused = std::numeric_limits<double>::infinity();
  for (int32_t e : order) {
    if (set.contains(e)) continue;
    ExpertSet with = set;
    with.insert(e);
    if (set.size() >= static_cast<size_t>(batch.top_k)) {
      if (cost(e) >= refused) continue;
      const double gain = KeptSum(batch, with) - KeptSum(batch, set);
      const double price = policy.lambda * cost(e);
      if (std::abs(gain - price) < kClose) return std::nullopt;
      if (gain < price) {
        refused = cost(e);
        continue;
      }
    }
    set = with;
  }
  return set;
}

}  // namespace

std::vector<int32_t> BestOf(const std::vector<float>& logits, size_t count,
                            const std::set<int32_t>* allowed) {
  std::vector<int32_t> order;
  for (size_t e = 0; e < logits.size(); ++e) {
    const auto id = static_cast<int32_t>(e);
    if (logits[e] == -kInf || (allowed != nullptr && !allowed->contains(id))) continue;
    order.push_back(id);
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  order.resize(std::min(count, order.size()));
  return order;
}

std::vector<double> SoftmaxOf(const std::vector<float>& logits) {
  const double best = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  for (float logit : logits) p.push_back(std::exp(static_cast<double>(logit) - best));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= total;
  return p;
}

std::set<int32_t> ExactUnion(const Batch& batch) {
  ExpertSet set;
  AddFloors(batch, batch.top_k, set);
  return set;
}

std::optional<std::set<int32_t>> OracleSet(const Batch& batch, const Policy& policy) {
  switch (policy.kind) {
    case Policy::Kind::kLynx:
    case Policy::Kind::kLynxCompat:
      return LynxSet(batch, policy);
    case Policy::Kind::kVote:
      return VoteSet(batch, policy);
    case Policy::Kind::kOea:
    case Policy::Kind::kPrune:
      return TopRanksSet(batch, policy);
    case Policy::Kind::kBudget:
      return BudgetSet(batch, policy);
    case Policy::Kind::kMarginal:
      return MarginalSet(batch, policy);
    default:
      ADD_FAILURE() << ToString(policy);
      return std::nullopt;
  }
}

std::vector<int32_t> OracleAssignment(const Batch& batch, int32_t row,
                                      const std::set<int32_t>& active) {
  const std::vector<float> logits = batch.Row(row);
  const auto k = static_cast<size_t>(batch.top_k);
  const std::vector<int32_t> best = BestOf(logits, k, &active);
  return best.size() == k ? best : BestOf(logits, k);
}

double KeptRatio(const Batch& batch, int32_t row, const std::set<int32_t>& active) {
  const std::vector<float> logits = batch.Row(row);
  const std::vector<double> p = SoftmaxOf(logits);
  const auto k = static_cast<size_t>(batch.top_k);
  const auto mass = [&](const std::vector<int32_t>& ids) {
    double sum = 0;
    for (int32_t e : ids) sum += p[static_cast<size_t>(e)];
    return sum;
  };
  return mass(BestOf(logits, k, &active)) / mass(BestOf(logits, k));
}

}  // namespace lynx::moe::testing
