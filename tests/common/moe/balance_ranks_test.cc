#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/moe/routing_cases.h"
#include "tests/common/moe/routing_oracle.h"
#include "tests/support/test_size.h"

// Plans of experts that ranks share, under policies with ep_balance.
namespace lynx::moe::testing {
namespace {

using Kind = Policy::Kind;
using lynx::testing::ForTestSize;
using ::testing::ElementsAre;

int Rounds() { return ForTestSize(200, 1000, 10000); }

// Ranks of equal size, or experts at random; and copies of some.
void DrawRanks(Draw& draw, Batch& batch) {
  const int32_t ranks = draw.Int(2, std::min(8, batch.experts));
  batch.placement = {.ranks = ranks};
  const bool even = draw.Chance(0.5);
  const bool copies = draw.Chance(0.5);
  for (int32_t e = 0; e < batch.experts; ++e) {
    std::vector<int32_t>& held = batch.placement.ranks_of.emplace_back();
    const int32_t home = even ? e * ranks / batch.experts : draw.Int(0, ranks - 1);
    for (int32_t r = 0; r < ranks; ++r) {
      if (r == home || (copies && draw.Chance(0.3))) held.push_back(r);
    }
  }
}

Policy DrawBalanced(Draw& draw, const Batch& batch) {
  constexpr Kind kKinds[] = {Kind::kVote, Kind::kLynx, Kind::kOea, Kind::kBudget, Kind::kMarginal};
  Policy policy = draw.NextPolicy(batch, kKinds[draw.Int(0, 4)]);
  policy.ep_balance = draw.Chance(0.3) ? 0 : draw.Real(0, 0.3);
  return policy;
}

Policy Unbalanced(Policy policy) {
  policy.ep_balance = -1;
  return policy;
}

double Sum(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

TEST(BalanceRanksTest, FullestRankHasNoMoreAndRowsKeepEnough) {
  Draw draw;
  int lower = 0;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({.masks = false});
    DrawRanks(draw, batch);
    const Policy policy = DrawBalanced(draw, batch);
    const Rows inner = PlanOf(batch, Unbalanced(policy));
    const Rows plan = PlanOf(batch, policy);
    if (inner.stats.bypass != Bypass::kNone || plan.stats.bypass != Bypass::kNone) continue;
    const std::string said = ToString(policy) + "\n" + batch.Describe();
    ASSERT_LE(plan.stats.rank_experts, inner.stats.rank_experts) << said;
    ASSERT_GE(Sum(plan.kept_mass),
              (1 - policy.ep_balance) * Sum(inner.kept_mass) - 1e-4 * batch.rows)
        << said;
    lower += plan.stats.rank_experts < inner.stats.rank_experts ? 1 : 0;
  }
  // About one draw in six.
  EXPECT_GT(lower, Rounds() / 50) << "hardly anything was balanced, so this shows nothing";
}

TEST(BalanceRanksTest, RowsKeepWhatTheirFloorOfTheInnerPlanWas) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({.masks = false});
    DrawRanks(draw, batch);
    const Policy policy = DrawBalanced(draw, batch);
    const Rows exact = ExactPlanOf(batch);
    const Rows inner = PlanOf(batch, Unbalanced(policy));
    const Rows plan = PlanOf(batch, policy);
    for (int32_t row = 0; row < batch.rows; ++row) {
      const auto r = static_cast<size_t>(row);
      if (!batch.IsValid(row)) continue;
      if (batch.OptedOut(row)) {
        ASSERT_EQ(plan.ids[r], exact.ids[r]);
        ASSERT_EQ(plan.weights[r], exact.weights[r]);
      }
      for (int32_t rank = 0; rank < std::max(1, policy.kept_ranks()); ++rank) {
        const int32_t expert = exact.ids[r][static_cast<size_t>(rank)];
        if (std::ranges::count(inner.ids[r], expert) == 0) continue;
        ASSERT_EQ(std::ranges::count(plan.ids[r], expert), 1) << ToString(policy) << "\n"
                                                              << batch.Describe();
      }
    }
  }
}

TEST(BalanceRanksTest, OrderOfRowsDoesNotMatter) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    Batch batch = draw.NextBatch({});
    DrawRanks(draw, batch);
    const Policy policy = DrawBalanced(draw, batch);
    std::vector<int32_t> order(static_cast<size_t>(batch.rows));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), draw.rng());
    const Rows plan = PlanOf(batch, policy);
    const Rows reordered = PlanOf(batch.Reordered(order), policy);
    for (size_t i = 0; i < order.size(); ++i) {
      ASSERT_EQ(reordered.ids[i], plan.ids[static_cast<size_t>(order[i])]);
      ASSERT_EQ(reordered.weights[i], plan.weights[static_cast<size_t>(order[i])]);
    }
  }
}

TEST(BalanceRanksTest, WithoutRanksThePlanIsTheInnerOne) {
  Draw draw;
  for (int round = 0; round < Rounds(); ++round) {
    const Batch batch = draw.NextBatch({});
    const Policy policy = DrawBalanced(draw, batch);
    const Rows plan = PlanOf(batch, policy);
    ASSERT_EQ(plan, PlanOf(batch, Unbalanced(policy)));
    ASSERT_EQ(plan.stats.ranks, 0);
  }
}

// Experts 0 to 3 are of rank 0, 4 to 7 of rank 1. Rows want 0, 1, 2 and 3, and the last one 4
// before all; 7 is nearly as good as 3.
Batch Lopsided() {
  Batch batch = Batch::Of({{9, 8, 1, 0.5f, 0, 0, 0, 0.4f},
                           {8, 9, 0.5f, 1, 0, 0, 0, 0.9f},
                           {9, 0, 6, 1, 0, 0, 0, 0},
                           {0, 9, 0, 8, 0, 0, 0, 7.9f},
                           {0, 8, 0, 0, 9, 0, 0, 0}},
                          2);
  batch.placement = PlaceEvenly(8, 2);
  return batch;
}

TEST(BalanceRanksTest, LightestExpertOfTheFullestRankGivesWayToAnIdleOne) {
  const Batch batch = Lopsided();
  const Rows inner = PlanOf(batch, Parse("budget:M=4,floor=1"));
  EXPECT_THAT(inner.active, ElementsAre(0, 1, 3, 4));
  EXPECT_EQ(inner.stats.rank_experts, 3);
  EXPECT_EQ(inner.stats.rank_experts_exact, 4);

  const Rows plan = PlanOf(batch, Parse("budget:M=4,floor=1,ep_balance=0.05"));
  EXPECT_THAT(plan.active, ElementsAre(0, 1, 4, 7));
  EXPECT_EQ(plan.stats.rank_experts, 2);
  EXPECT_THAT(plan.ids[3], ElementsAre(1, 7));
}

TEST(BalanceRanksTest, NothingChangesWhereTooMuchWouldBeLost) {
  const Batch batch = Lopsided();
  EXPECT_EQ(PlanOf(batch, Parse("budget:M=4,floor=1,ep_balance=0")),
            PlanOf(batch, Parse("budget:M=4,floor=1")));
}

TEST(BalanceRanksTest, NothingChangesWhereARowsPolicyDoesNotAskForIt) {
  const Batch batch = Lopsided();
  const Policy plain = Parse("budget:M=4,floor=1");
  const Policy balanced = Parse("budget:M=4,floor=1,ep_balance=0.05");
  Policy other = plain;
  other.coverage = 0.5;
  std::vector<const Policy*> policies(5, &balanced);
  policies[2] = &other;
  std::vector<const Policy*> unbalanced(5, &plain);
  unbalanced[2] = &other;
  EXPECT_EQ(PlanOf(batch, policies), PlanOf(batch, unbalanced));
}

}  // namespace
}  // namespace lynx::moe::testing
