#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/moe/routing_cases.h"
#include "tests/common/moe/routing_oracle.h"
#include "tests/support/test_size.h"

// What holds of every plan, whatever the logits: checked on random batches of every shape.
namespace lynx::moe::testing {
namespace {

using Kind = Policy::Kind;
using lynx::testing::ForTestSize;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int Rounds() { return ForTestSize(60, 2000, 10000); }

std::set<int32_t> AsSet(const std::vector<int32_t>& ids) { return {ids.begin(), ids.end()}; }

std::set<int32_t> UnionOf(const Rows& plan) {
  std::set<int32_t> all;
  for (const std::vector<int32_t>& ids : plan.ids) all.insert(ids.begin(), ids.end());
  return all;
}

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

Policy LynxPolicy(double alpha, int32_t beta, int32_t floor) {
  return {.kind = Kind::kLynx, .alpha = alpha, .beta = beta, .floor = floor};
}

// Gates that renormalise and gates that keep the mass, by turns.
void DrawRule(Draw& draw, Batch& batch) {
  if (draw.Chance(0.5)) batch.gate.rule = Gate::Rule::kKeepMass;
}

TEST(InvariantsTest, ValidRowsHaveDistinctActiveExpertsAndSoundWeights) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({});
    DrawRule(draw, batch);
    const Policy policy = draw.NextPolicy(batch);
    const Rows plan = PlanOf(batch, policy);
    for (int32_t row = 0; row < batch.rows; ++row) {
      const auto r = static_cast<size_t>(row);
      if (!batch.IsValid(row)) continue;
      const std::vector<int32_t>& ids = plan.ids[r];
      const bool pruned =
          policy.kind == Kind::kPrune && plan.stats.bypass == Bypass::kNone && !batch.OptedOut(row);
      ASSERT_EQ(ids.size(), static_cast<size_t>(pruned ? policy.k0 : batch.top_k));
      ASSERT_EQ(AsSet(ids).size(), ids.size()) << ToString(policy) << "\n" << batch.Describe();
      for (size_t j = 0; j < ids.size(); ++j) {
        ASSERT_TRUE(ids[j] >= 0 && ids[j] < batch.experts);
        ASSERT_TRUE(Contains(plan.active, ids[j]));
        ASSERT_TRUE(std::isfinite(plan.weights[r][j]) && plan.weights[r][j] >= 0);
        const std::vector<float> z = batch.Row(row);
        if (j > 0) {
          ASSERT_GE(z[static_cast<size_t>(ids[j - 1])], z[static_cast<size_t>(ids[j])]);
        }
      }
      ASSERT_GT(plan.kept_mass[r], 0);
      ASSERT_LE(plan.kept_mass[r], 1.000001f);
    }
  }
}

TEST(InvariantsTest, WeightsSumToOneOrToTheExactMassAndKeepTheirRatios) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({});
    DrawRule(draw, batch);
    const Rows plan = PlanOf(batch, draw.NextPolicy(batch));
    for (int32_t row = 0; row < batch.rows; ++row) {
      const auto r = static_cast<size_t>(row);
      if (!batch.IsValid(row)) continue;
      const std::vector<float> z = batch.Row(row);
      const std::vector<double> p = SoftmaxOf(z);
      double exact = 0;
      for (int32_t e : BestOf(z, static_cast<size_t>(batch.top_k)))
        exact += p[static_cast<size_t>(e)];
      double kept = 0;
      for (int32_t e : plan.ids[r]) kept += p[static_cast<size_t>(e)];
      const double want = batch.gate.rule == Gate::Rule::kKeepMass ? exact : 1;
      double sum = 0;
      for (size_t j = 0; j < plan.ids[r].size(); ++j) {
        const double weight = plan.weights[r][j];
        sum += weight;
        ASSERT_NEAR(weight, p[static_cast<size_t>(plan.ids[r][j])] / kept * want, 2e-6);
      }
      ASSERT_NEAR(sum, want, 1e-5);
      ASSERT_NEAR(plan.kept_mass[r], kept / exact, 1e-5);
    }
  }
}

TEST(InvariantsTest, ABatchOfOneIsExact) {
  Draw draw;
  int changed_by_compat = 0;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({.padding = false, .opt_outs = false, .max_rows = 5});
    DrawRule(draw, batch);
    // Alone, or among padding.
    batch.valid.assign(static_cast<size_t>(batch.rows), 0);
    batch.valid[static_cast<size_t>(draw.Int(0, batch.rows - 1))] = 1;
    const Rows exact = ExactPlanOf(batch);
    const Rows plan = PlanOf(batch, draw.NextPolicy(batch));
    ASSERT_EQ(plan, exact);
    ASSERT_EQ(plan.stats.bypass, Bypass::kBatchOfOne);
    changed_by_compat += PlanOf(batch, Parse("lynx_compat:alpha=1,beta=1")).ids != exact.ids;
  }
  EXPECT_GT(changed_by_compat, 0);
}

TEST(InvariantsTest, NeverMoreExpertsThanExact) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    const Batch batch = draw.NextBatch({});
    const Policy policy = draw.NextPolicy(batch);
    const Rows plan = PlanOf(batch, policy);
    const Rows exact = ExactPlanOf(batch);
    ASSERT_EQ(plan.stats.experts_exact, static_cast<int32_t>(exact.active.size()));
    ASSERT_EQ(plan.stats.experts, static_cast<int32_t>(plan.active.size()));
    if (plan.stats.bypass == Bypass::kNone) {
      ASSERT_LT(plan.active.size(), exact.active.size()) << ToString(policy);
    } else {
      ASSERT_EQ(plan, exact) << ToString(policy);
    }
  }
}

TEST(InvariantsTest, ActiveIsWhatRowsUse) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    const Batch batch = draw.NextBatch({});
    const Policy policy = draw.NextPolicy(batch);
    const Rows plan = PlanOf(batch, policy);
    ASSERT_EQ(AsSet(plan.active), UnionOf(plan));
    ASSERT_TRUE(std::is_sorted(plan.active.begin(), plan.active.end()));
    const bool any =
        std::any_of(plan.ids.begin(), plan.ids.end(), [](const auto& ids) { return !ids.empty(); });
    const int32_t least = policy.kind == Kind::kPrune ? policy.k0 : batch.top_k;
    ASSERT_GE(static_cast<int32_t>(plan.active.size()), any ? least : 0);
    int32_t strange = 0;
    const Rows exact = ExactPlanOf(batch);
    for (size_t row = 0; row < plan.ids.size(); ++row) {
      for (int32_t e : plan.ids[row]) strange += !Contains(exact.ids[row], e);
    }
    ASSERT_EQ(plan.stats.remapped, strange);
  }
}

TEST(InvariantsTest, OffPrefillMixedOrAllExpertsIsExact) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({});
    DrawRule(draw, batch);
    const Rows exact = ExactPlanOf(batch);
    const Policy policy = draw.NextPolicy(batch);
    for (const Phase phase : {Phase::kPrefill, Phase::kMixed}) {
      batch.phase = phase;
      ASSERT_EQ(PlanOf(batch, policy), exact);
      ASSERT_EQ(PlanOf(batch, Parse("lynx_compat:alpha=1,beta=1")), exact);
    }
    batch.phase = Phase::kDecode;
    ASSERT_EQ(PlanOf(batch, Policy{}), exact);

    Batch all = draw.NextBatch({.masks = false, .max_experts = 11});
    all.top_k = all.experts;
    ASSERT_EQ(PlanOf(all, draw.NextPolicy(all)), ExactPlanOf(all));
  }
}

// The bins of a row's best k, and the row's boundary among them.
std::vector<double> BinsOfBest(const Policy& policy, const std::vector<float>& z, size_t k) {
  std::vector<double> bins;
  const std::vector<int32_t> best = BestOf(z, k);
  for (int32_t e : best) {
    const double gap = static_cast<double>(z[static_cast<size_t>(best[0])]) -
                       static_cast<double>(z[static_cast<size_t>(e)]);
    bins.push_back(std::floor(policy.alpha * gap));
    if (policy.beta != Policy::kUnbounded) {
      bins.back() = std::min(bins.back(), static_cast<double>(policy.beta));
    }
  }
  return bins;
}

TEST(InvariantsTest, LynxKeepsEveryExpertBeforeTheBoundaryBin) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    const Batch batch = draw.NextBatch({});
    const Policy policy =
        LynxPolicy(draw.Real(0.3, 5), draw.Chance(0.1) ? Policy::kUnbounded : draw.Int(0, 8), 0);
    const Rows plan = PlanOf(batch, policy);
    for (int32_t row = 0; row < batch.rows; ++row) {
      if (!batch.IsValid(row)) continue;
      const std::vector<float> z = batch.Row(row);
      const auto k = static_cast<size_t>(batch.top_k);
      const std::vector<int32_t> best = BestOf(z, k);
      const std::vector<double> bins = BinsOfBest(policy, z, k);
      for (size_t j = 0; j < k && bins[j] < bins.back(); ++j) {
        ASSERT_EQ(plan.ids[static_cast<size_t>(row)][j], best[j]) << ToString(policy) << "\n"
                                                                  << batch.Describe();
      }
    }
  }
}

TEST(InvariantsTest, LynxGivesUpAtMostABinWhereTheBoundaryIsNotTheLast) {
  Draw draw;
  int judged = 0;
  for (int round = 0; round < Rounds(); ++round) {
    const Batch batch = draw.NextBatch({});
    const Policy policy = LynxPolicy(draw.Real(0.3, 5), draw.Int(1, 8), 0);
    const Rows plan = PlanOf(batch, policy);
    for (int32_t row = 0; row < batch.rows; ++row) {
      if (!batch.IsValid(row)) continue;
      const std::vector<float> z = batch.Row(row);
      const auto k = static_cast<size_t>(batch.top_k);
      if (BinsOfBest(policy, z, k).back() >= policy.beta) continue;
      ++judged;
      const std::vector<int32_t> best = BestOf(z, k);
      for (size_t j = 0; j < k; ++j) {
        const float kept = z[static_cast<size_t>(plan.ids[static_cast<size_t>(row)][j])];
        ASSERT_LE(z[static_cast<size_t>(best[j])] - kept, 1 / policy.alpha + 1e-5);
      }
    }
  }
  EXPECT_GT(judged, Rounds() / 10);
}

TEST(InvariantsTest, AFloorKeepsRankZeroInItsPlace) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    const Batch batch = draw.NextBatch({});
    Policy policy = draw.NextPolicy(batch);
    if (policy.floor == 0) policy.floor = draw.Int(1, batch.top_k);
    const auto kept = static_cast<size_t>(
        policy.k0 != Policy::kUnset ? policy.k0 : std::max(1, policy.kept_ranks()));
    const Rows plan = PlanOf(batch, policy);
    for (int32_t row = 0; row < batch.rows; ++row) {
      if (!batch.IsValid(row)) continue;
      const std::vector<int32_t> best = BestOf(batch.Row(row), kept);
      const std::vector<int32_t>& ids = plan.ids[static_cast<size_t>(row)];
      ASSERT_TRUE(std::equal(best.begin(), best.end(), ids.begin())) << ToString(policy) << "\n"
                                                                     << batch.Describe();
    }
  }
}

TEST(InvariantsTest, EachRowHasItsBestOfWhatIsActive) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    const Batch batch = draw.NextBatch({});
    const Policy policy = draw.NextPolicy(batch);
    if (policy.kind == Kind::kPrune) continue;
    const Rows plan = PlanOf(batch, policy);
    const std::set<int32_t> active = AsSet(plan.active);
    for (int32_t row = 0; row < batch.rows; ++row) {
      if (!batch.IsValid(row)) continue;
      const std::vector<int32_t>& ids = plan.ids[static_cast<size_t>(row)];
      const auto k = static_cast<size_t>(batch.top_k);
      const std::vector<int32_t> exact = BestOf(batch.Row(row), k);
      ASSERT_EQ(ids, batch.OptedOut(row) ? exact : OracleAssignment(batch, row, active))
          << ToString(policy) << "\n"
          << batch.Describe();
      if (std::all_of(exact.begin(), exact.end(), [&](int32_t e) { return active.contains(e); })) {
        ASSERT_EQ(ids, exact);
      }
    }
  }
}

// Rows that keep their own experts have the bits they have alone, under any policy.
TEST(InvariantsTest, RowsThatKeepTheirOwnHaveTheirBitsAlone) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({});
    DrawRule(draw, batch);
    const Rows plan = PlanOf(batch, draw.NextPolicy(batch));
    const Rows exact = ExactPlanOf(batch);
    for (size_t row = 0; row < plan.ids.size(); ++row) {
      if (plan.ids[row] != exact.ids[row]) continue;
      ASSERT_EQ(plan.weights[row], exact.weights[row]);
      ASSERT_EQ(plan.kept_mass[row], 1);
      const Rows alone = ExactPlanOf(batch.Reordered({static_cast<int32_t>(row)}));
      ASSERT_EQ(plan.weights[row], alone.weights[0]);
    }
  }
}

TEST(InvariantsTest, TheOrderOfRowsDoesNotMatter) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({});
    DrawRule(draw, batch);
    const Policy policy = draw.NextPolicy(batch);
    std::vector<int32_t> order(static_cast<size_t>(batch.rows));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), draw.rng());
    const Rows plan = PlanOf(batch, policy);
    const Rows shuffled = PlanOf(batch.Reordered(order), policy);
    ASSERT_EQ(shuffled.active, plan.active) << ToString(policy);
    for (size_t i = 0; i < order.size(); ++i) {
      const auto from = static_cast<size_t>(order[i]);
      ASSERT_EQ(shuffled.ids[i], plan.ids[from]);
      ASSERT_EQ(shuffled.weights[i], plan.weights[from]);
      ASSERT_EQ(shuffled.kept_mass[i], plan.kept_mass[from]);
    }
  }
}

bool HasTies(const Batch& batch) {
  for (int32_t row = 0; row < batch.rows; ++row) {
    const std::vector<float> z = batch.Row(row);
    if (std::set<float>(z.begin(), z.end()).size() < z.size()) return true;
  }
  return false;
}

TEST(InvariantsTest, NamesOfExpertsDoNotMatterWithoutTies) {
  Draw draw;
  int judged = 0;
  for (int round = 0; round < Rounds(); ++round) {
    const Batch batch = draw.NextBatch({.ties = false, .masks = false});
    // Masses, in 2^-24, may tie where logits do not; what goes by mass is compared elsewhere.
    const Policy policy = draw.NextPolicy(batch, draw.Chance(0.5) ? Kind::kLynx : Kind::kPrune);
    if (HasTies(batch)) continue;
    ++judged;
    std::vector<int32_t> name(static_cast<size_t>(batch.experts));
    std::iota(name.begin(), name.end(), 0);
    std::shuffle(name.begin(), name.end(), draw.rng());
    Batch renamed = batch;
    for (int32_t row = 0; row < batch.rows; ++row) {
      const std::vector<float> from = batch.Row(row);
      std::vector<float> to(from.size());
      for (size_t e = 0; e < from.size(); ++e) to[static_cast<size_t>(name[e])] = from[e];
      renamed.SetRow(row, to);
    }
    const Rows plan = PlanOf(batch, policy);
    const Rows other = PlanOf(renamed, policy);
    ASSERT_EQ(other.active.size(), plan.active.size());
    for (size_t row = 0; row < plan.ids.size(); ++row) {
      ASSERT_EQ(other.weights[row], plan.weights[row]);
      for (size_t j = 0; j < plan.ids[row].size(); ++j) {
        ASSERT_EQ(other.ids[row][j], name[static_cast<size_t>(plan.ids[row][j])]);
      }
    }
  }
  EXPECT_GT(judged, Rounds() / 2);
}

// On a grid where adding and scaling by powers of two are exact.
TEST(InvariantsTest, ShiftingARowOrScalingWithAlphaChangesNothing) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({});
    for (float& logit : batch.logits) {
      if (logit != -kInf) logit = std::round(logit * 1024) / 1024;
    }
    const Policy policy = draw.NextPolicy(batch);
    const Rows plan = PlanOf(batch, policy);
    Batch shifted = batch;
    for (int32_t row = 0; row < batch.rows; ++row) {
      std::vector<float> z = batch.Row(row);
      const auto shift = static_cast<float>(draw.Int(-64, 64));
      for (float& logit : z) logit += shift;
      shifted.SetRow(row, z);
    }
    ASSERT_EQ(PlanOf(shifted, policy), plan) << ToString(policy) << "\n" << batch.Describe();

    const Policy lynx = draw.NextPolicy(batch, Kind::kLynx);
    Policy scaled_lynx = lynx;
    Batch scaled = batch;
    const float factor = draw.Chance(0.5) ? 4 : 0.125f;
    for (float& logit : scaled.logits) logit *= factor;
    if (!lynx.self_scaled) scaled_lynx.alpha /= static_cast<double>(factor);
    ASSERT_EQ(PlanOf(scaled, scaled_lynx).ids, PlanOf(batch, lynx).ids);
  }
}

TEST(InvariantsTest, PaddingOfAnyKindChangesNothing) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({.padding = false});
    DrawRule(draw, batch);
    const Policy policy =
        draw.NextPolicy(batch, draw.Chance(0.1) ? std::optional(Kind::kLynxCompat) : std::nullopt);
    const Rows plan = PlanOf(batch, policy);
    // Rows of `batch` at random places among padding.
    Batch padded = batch;
    const int32_t rows = batch.rows + draw.Int(1, 9);
    std::vector<int32_t> place(static_cast<size_t>(rows));
    std::iota(place.begin(), place.end(), 0);
    std::shuffle(place.begin(), place.end(), draw.rng());
    padded.rows = rows;
    padded.valid.assign(static_cast<size_t>(rows), 0);
    padded.opted_out.assign(static_cast<size_t>(rows), 0);
    padded.logits.assign(static_cast<size_t>(rows * batch.experts), 0);
    for (float& logit : padded.logits) {
      logit = draw.Chance(0.1) ? kNan : static_cast<float>(draw.Real(-100, 100));
    }
    for (int32_t row = 0; row < batch.rows; ++row) {
      const auto to = static_cast<size_t>(place[static_cast<size_t>(row)]);
      padded.SetRow(static_cast<int32_t>(to), batch.Row(row));
      padded.valid[to] = 1;
      padded.opted_out[to] = batch.OptedOut(row) ? 1 : 0;
    }
    const Rows with = PlanOf(padded, policy);
    ASSERT_EQ(with.active, plan.active) << ToString(policy);
    ASSERT_EQ(with.stats.rows, plan.stats.rows);
    ASSERT_EQ(with.stats.bad_rows, 0);
    for (int32_t row = 0; row < batch.rows; ++row) {
      const auto from = static_cast<size_t>(row);
      const auto to = static_cast<size_t>(place[from]);
      ASSERT_EQ(with.ids[to], plan.ids[from]);
      ASSERT_EQ(with.weights[to], plan.weights[from]);
    }
  }
}

TEST(InvariantsTest, LimitsOfLynx) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    const Batch batch =
        draw.NextBatch({.ties = false, .masks = false, .padding = false, .opt_outs = false});
    const Rows exact = ExactPlanOf(batch);
    // Bins finer than any gap and reaching past the largest.
    if (!HasTies(batch)) {
      ASSERT_EQ(PlanOf(batch, LynxPolicy(1e9, Policy::kUnbounded, 0)), exact);
    }
    // All experts in bin 0: only ties are left.
    ASSERT_EQ(SelectedBy(batch, LynxPolicy(1e-9, 4, 0)), ExactUnion(batch));
    Policy compat = LynxPolicy(1e-9, 4, Policy::kUnset);
    compat.kind = Kind::kLynxCompat;
    std::set<int32_t> first;
    for (int32_t e = 0; e < batch.top_k; ++e) first.insert(e);
    ASSERT_EQ(AsSet(PlanOf(batch, compat).active), first);
    // Everything but the best in the last bin: popularity is how many rows have it as their best.
    if (HasTies(batch)) continue;
    std::vector<int32_t> firsts(static_cast<size_t>(batch.experts));
    for (int32_t row = 0; row < batch.rows; ++row) {
      ++firsts[static_cast<size_t>(BestOf(batch.Row(row), 1)[0])];
    }
    std::set<int32_t> votes;
    for (int32_t row = 0; row < batch.rows; ++row) {
      const std::vector<float> z = batch.Row(row);
      std::vector<int32_t> order = BestOf(z, z.size());
      std::stable_sort(order.begin() + 1, order.end(), [&](int32_t a, int32_t b) {
        return firsts[static_cast<size_t>(a)] > firsts[static_cast<size_t>(b)];
      });
      votes.insert(order.begin(), order.begin() + batch.top_k);
    }
    ASSERT_EQ(SelectedBy(batch, LynxPolicy(1e9, 1, 0)), votes);
  }
}

TEST(InvariantsTest, LargerK0AndBudgetsKeepWhatSmallerOnesHave) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    const Batch batch = draw.NextBatch({.padding = false});
    std::set<int32_t> smaller;
    for (int32_t k0 = 1; k0 <= batch.top_k; ++k0) {
      const std::set<int32_t> larger = SelectedBy(batch, {.kind = Kind::kOea, .k0 = k0});
      ASSERT_GE(larger.size(), smaller.size());
      // A set of fewer ranks than a row needs was filled up by mass: not nested.
      if (smaller.size() > static_cast<size_t>(batch.top_k)) {
        ASSERT_TRUE(std::ranges::includes(larger, smaller)) << k0;
      }
      smaller = larger;
    }
    ASSERT_EQ(PlanOf(batch, {.kind = Kind::kOea, .k0 = batch.top_k}), ExactPlanOf(batch));

    const int32_t floor = draw.Int(0, batch.top_k);
    std::vector<double> kept(static_cast<size_t>(batch.rows));
    smaller.clear();
    for (int32_t m = batch.top_k; m <= batch.experts; m += draw.Int(1, batch.experts / 3)) {
      const std::set<int32_t> larger =
          SelectedBy(batch, {.kind = Kind::kBudget, .floor = floor, .experts = m});
      ASSERT_TRUE(std::ranges::includes(larger, smaller)) << m;
      for (int32_t row = 0; row < batch.rows; ++row) {
        const double now = KeptRatio(batch, row, larger);
        ASSERT_GE(now, kept[static_cast<size_t>(row)] - 1e-12);
        kept[static_cast<size_t>(row)] = now;
      }
      smaller = larger;
    }
    ASSERT_EQ(PlanOf(batch, {.kind = Kind::kBudget, .floor = 0, .experts = batch.experts}),
              ExactPlanOf(batch));
  }
}

TEST(InvariantsTest, IdenticalRowsAreExact) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({.padding = false, .opt_outs = false});
    for (int32_t row = 1; row < batch.rows; ++row) batch.SetRow(row, batch.Row(0));
    const Policy policy = draw.NextPolicy(batch);
    if (policy.kind == Kind::kPrune) continue;
    const std::set<int32_t> exact = ExactUnion(batch);
    if (policy.kind == Kind::kLynx) {
      ASSERT_EQ(SelectedBy(batch, policy), exact) << ToString(policy);
    }
    ASSERT_EQ(AsSet(PlanOf(batch, policy).active), exact);
  }
}

TEST(InvariantsTest, PlanningWhatAPlanLeftChangesLittle) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch =
        draw.NextBatch({.masks = false, .padding = false, .opt_outs = false, .min_rows = 2});
    const Policy policy = draw.NextPolicy(batch);
    if (policy.kind == Kind::kPrune) continue;
    const Rows plan = PlanOf(batch, policy);
    const std::set<int32_t> selected = SelectedBy(batch, policy);
    Batch left = batch;
    for (size_t i = 0; i < left.logits.size(); ++i) {
      const auto e = static_cast<int32_t>(i % static_cast<size_t>(batch.experts));
      if (!Contains(plan.active, e)) left.logits[i] = -kInf;
    }
    // Assigned once more, everybody stays.
    ASSERT_EQ(ExactPlanOf(left).ids, plan.ids);
    // Selected once more: the same by ranks; by votes, no more than before.
    if (plan.stats.bypass != Bypass::kNone) continue;
    if (policy.kind == Kind::kOea && selected == AsSet(plan.active)) {
      ASSERT_EQ(SelectedBy(left, policy), selected);
    }
    if (policy.kind == Kind::kBudget && policy.experts != Policy::kUnset &&
        static_cast<int32_t>(plan.active.size()) == policy.experts && policy.row_coverage == 0) {
      ASSERT_EQ(SelectedBy(left, policy), AsSet(plan.active));
    }
    ASSERT_LE(PlanOf(left, policy).active.size(), plan.active.size()) << ToString(policy);
  }
}

TEST(InvariantsTest, LynxEqualsTheFormulaInDoublePrecision) {
  Draw draw;
  int judged = 0;
  for (int round = 0; round < Rounds(); ++round) {
    const Batch batch = draw.NextBatch({.max_rows = 20});
    if (batch.rows < 2 || std::ranges::count(batch.valid, 0) + 1 >= batch.rows) continue;
    const Policy policy = draw.NextPolicy(batch, Kind::kLynx);
    const std::optional<std::set<int32_t>> set = OracleSet(batch, policy);
    if (!set.has_value()) continue;
    ++judged;
    // The whole plan: assign, fall back to rows' own experts, guard.
    std::set<int32_t> active = *set;
    std::vector<std::vector<int32_t>> ids(static_cast<size_t>(batch.rows));
    for (int pass = 0; pass < 2; ++pass) {
      const std::set<int32_t> judged_by = active;
      for (int32_t row = 0; row < batch.rows; ++row) {
        if (!batch.IsValid(row)) continue;
        const auto k = static_cast<size_t>(batch.top_k);
        ids[static_cast<size_t>(row)] = batch.OptedOut(row)
                                            ? BestOf(batch.Row(row), k)
                                            : OracleAssignment(batch, row, judged_by);
        const std::vector<int32_t> usable = BestOf(batch.Row(row), k, &judged_by);
        if (usable.size() < k && !batch.OptedOut(row)) {
          const std::vector<int32_t>& own = ids[static_cast<size_t>(row)];
          active.insert(own.begin(), own.end());
        }
      }
    }
    std::set<int32_t> used;
    for (const std::vector<int32_t>& row : ids) used.insert(row.begin(), row.end());
    const Rows exact = ExactPlanOf(batch);
    const bool lossy = std::ranges::count(batch.opted_out, 1) < batch.rows;
    const Rows plan = PlanOf(batch, policy);
    ASSERT_EQ(plan.ids, lossy && used.size() < exact.active.size() ? ids : exact.ids)
        << ToString(policy) << "\n"
        << batch.Describe();
  }
  EXPECT_GT(judged, Rounds() / 3);
}

TEST(InvariantsTest, ExtremeLogits) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({.masks = false});
    DrawRule(draw, batch);
    for (int32_t row = 0; row < batch.rows; ++row) {
      std::vector<float> z = batch.Row(row);
      switch (draw.Int(0, 4)) {
        case 0:
          for (float& logit : z) logit = logit > 0 ? 1e4f : -1e4f;
          break;
        case 1:
          std::fill(z.begin(), z.end(), static_cast<float>(draw.Int(-1, 1)) * 1e4f);
          break;
        case 2:  // Just enough is usable.
          std::fill(z.begin() + batch.top_k, z.end(), -kInf);
          std::shuffle(z.begin(), z.end(), draw.rng());
          break;
        case 3:
          for (float& logit : z) logit = std::clamp(logit * 1e37f, -3e38f, 3e38f);
          break;
        default:
          break;
      }
      batch.SetRow(row, z);
    }
    Policy policy = draw.NextPolicy(batch);
    const Rows plan = PlanOf(batch, policy);
    ASSERT_EQ(plan.stats.bad_rows, 0);
    const Rows exact = ExactPlanOf(batch);
    ASSERT_LE(plan.active.size(), exact.active.size());
    for (int32_t row = 0; row < batch.rows; ++row) {
      if (!batch.IsValid(row)) continue;
      const auto r = static_cast<size_t>(row);
      ASSERT_EQ(AsSet(plan.ids[r]).size(), plan.ids[r].size());
      float sum = 0;
      for (size_t j = 0; j < plan.ids[r].size(); ++j) {
        ASSERT_NE(batch.Row(row)[static_cast<size_t>(plan.ids[r][j])], -kInf);
        ASSERT_TRUE(std::isfinite(plan.weights[r][j]));
        sum += plan.weights[r][j];
      }
      ASSERT_GT(sum, 0);
      ASSERT_LE(sum, 1.00001f);
    }
  }
}

// A row that cannot be ranked is alone with it.
TEST(InvariantsTest, BadRowsChangeNothingForTheirNeighbours) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({});
    DrawRule(draw, batch);
    const Policy policy = draw.NextPolicy(batch);
    Batch without = batch;
    without.valid.resize(static_cast<size_t>(batch.rows), 1);
    int32_t bad_rows = 0;
    std::vector<bool> bad(static_cast<size_t>(batch.rows));
    for (int32_t row = 0; row < batch.rows; ++row) {
      if (!batch.IsValid(row) || !draw.Chance(0.3)) continue;
      std::vector<float> z = batch.Row(row);
      const auto e = static_cast<size_t>(draw.Int(0, batch.experts - 1));
      switch (draw.Int(0, 2)) {
        case 0:
          z[e] = kNan;
          break;
        case 1:
          z[e] = kInf;
          break;
        default:
          std::fill(z.begin() + batch.top_k - 1, z.end(), -kInf);
          break;
      }
      batch.SetRow(row, z);
      without.valid[static_cast<size_t>(row)] = 0;
      bad[static_cast<size_t>(row)] = true;
      ++bad_rows;
    }
    const Rows plan = PlanOf(batch, policy);
    const Rows alone = PlanOf(without, policy);
    ASSERT_EQ(plan.stats.bad_rows, bad_rows);
    for (size_t row = 0; row < plan.ids.size(); ++row) {
      if (bad[row]) {
        ASSERT_EQ(static_cast<int32_t>(plan.ids[row].size()), batch.top_k);
        ASSERT_EQ(AsSet(plan.ids[row]).size(), plan.ids[row].size());
        for (float weight : plan.weights[row]) ASSERT_TRUE(std::isnan(weight));
      } else {
        ASSERT_EQ(plan.ids[row], alone.ids[row]) << ToString(policy);
        ASSERT_EQ(plan.weights[row], alone.weights[row]);
      }
    }
    ASSERT_EQ(plan.stats.kept_mass_min, alone.stats.kept_mass_min);
  }
}

// Whatever a planner did before, and wherever it runs.
TEST(InvariantsTest, PlansDependOnTheirInputAlone) {
  Draw draw;
  Planner used(64, 256, 8);
  RoutingPlan plan(64, 256, 8);
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({});
    DrawRule(draw, batch);
    const Policy policy = draw.NextPolicy(batch);
    std::vector<const Policy*> policies(static_cast<size_t>(batch.rows), &policy);
    used.MakePlan({.logits = batch.logits,
                   .rows = batch.rows,
                   .experts = batch.experts,
                   .top_k = batch.top_k,
                   .layer = round,
                   .gate = batch.gate,
                   .bias = {},
                   .phase = Phase::kDecode,
                   .policies = policies,
                   .valid = batch.valid,
                   .remap_mixed = false,
                   .expert_cost = {}},
                  plan);
    batch.opted_out.clear();
    Rows fresh;
    std::thread elsewhere([&] { fresh = PlanOf(batch, policy); });
    elsewhere.join();
    ASSERT_TRUE(std::ranges::equal(plan.active(), fresh.active));
    for (int32_t row = 0; row < batch.rows; ++row) {
      const auto width = static_cast<size_t>(plan.row_width(row));
      const auto first = static_cast<size_t>(row) * static_cast<size_t>(plan.top_k());
      ASSERT_TRUE(std::ranges::equal(plan.ids().subspan(first, width),
                                     fresh.ids[static_cast<size_t>(row)]));
      ASSERT_TRUE(std::ranges::equal(plan.weights().subspan(first, width),
                                     fresh.weights[static_cast<size_t>(row)]));
    }
  }
}

}  // namespace
}  // namespace lynx::moe::testing
