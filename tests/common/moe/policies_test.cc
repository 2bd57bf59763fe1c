#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/moe/routing_cases.h"
#include "tests/common/moe/routing_oracle.h"
#include "tests/support/test_size.h"

// What each policy selects: worked examples, and its definition over random batches.
namespace lynx::moe::testing {
namespace {

using lynx::testing::ForTestSize;
using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();

const Batch& WorkedBatch() {
  static const Batch batch = Batch::Of({{-0.2f, 0.2f, -1.2f, -1.6f, 1.7f, -1.9f},
                                        {0.0f, -0.8f, -1.9f, -0.9f, -1.4f, -0.4f},
                                        {1.6f, -1.7f, -0.6f, 0.8f, 0.5f, -1.9f}},
                                       2);
  return batch;
}

TEST(LynxTest, WorkedExample) {
  const Rows exact = ExactPlanOf(WorkedBatch());
  EXPECT_THAT(exact.ids, ElementsAre(ElementsAre(4, 1), ElementsAre(0, 5), ElementsAre(0, 3)));
  EXPECT_THAT(exact.active, ElementsAre(0, 1, 3, 4, 5));
  for (const char* policy : {"lynx:alpha=1,beta=2", "lynx_compat:alpha=1,beta=2"}) {
    const Rows plan = PlanOf(WorkedBatch(), Parse(policy));
    EXPECT_THAT(plan.ids, ElementsAre(ElementsAre(4, 0), ElementsAre(0, 3), ElementsAre(0, 3)));
    EXPECT_THAT(plan.active, ElementsAre(0, 3, 4));
    EXPECT_EQ(plan.stats.experts_exact, 5);
    EXPECT_EQ(plan.stats.experts, 3);
    EXPECT_EQ(plan.stats.remapped, 2);
    EXPECT_EQ(plan.stats.bypass, Bypass::kNone);
    EXPECT_EQ(plan.kept_mass[2], 1);
  }
}

TEST(LynxTest, ABatchOfOneIsChangedByTheReleasedTieRuleOnly) {
  const Batch batch = Batch::Of({{2.0f, 0.0f, 0.5f, 1.0f}}, 2);
  EXPECT_THAT(PlanOf(batch, Parse("lynx_compat:alpha=1,beta=1")).active, ElementsAre(0, 1));
  const Rows plan = PlanOf(batch, Parse("lynx:alpha=1,beta=1"));
  EXPECT_EQ(plan, ExactPlanOf(batch));
  EXPECT_EQ(plan.stats.bypass, Bypass::kBatchOfOne);
  // The tie rule alone would keep the row as it is, too.
  EXPECT_EQ(SelectedBy(batch, Parse("lynx:alpha=1,beta=1")), (std::set<int32_t>{0, 3}));
}

TEST(LynxTest, TheGuardTakesBackASetThatGrows) {
  const Batch batch = Batch::Of({{0.8f, 1.7f, 0.7f, -1.9f},  //
                                 {-0.2f, -0.7f, 0.4f, 1.1f},
                                 {0.8f, 0.6f, 0.7f, 1.1f}},
                                1);
  EXPECT_EQ(SelectedBy(batch, Parse("lynx:alpha=1,beta=2")), (std::set<int32_t>{0, 1, 2}));
  const Rows plan = PlanOf(batch, Parse("lynx:alpha=1,beta=2"));
  EXPECT_EQ(plan, ExactPlanOf(batch));
  EXPECT_THAT(plan.active, ElementsAre(1, 3));
  EXPECT_EQ(plan.stats.bypass, Bypass::kGuard);
}

// A logit of -0 equals one of +0, and so a gap of nothing is bin 0.
TEST(LynxTest, MinusZeroIsZero) {
  const Batch plus =
      Batch::Of({{0.0f, 0.0f, -1, 0.0f}, {0.0f, -1, 0.0f, -1}, {-1, 0.0f, -1, -1}}, 2);
  const Batch minus =
      Batch::Of({{-0.0f, 0.0f, -1, 0.0f}, {0.0f, -1, -0.0f, -1}, {-1, -0.0f, -1, -1}}, 2);
  for (const char* policy : {"lynx:alpha=1,beta=2", "oea:k0=1", "vote:M=2"}) {
    EXPECT_EQ(PlanOf(plus, Parse(policy)), PlanOf(minus, Parse(policy))) << policy;
  }
  // Where a row's best two are equal, its spread is 0 and any gap is in the last bin.
  const Batch flat = Batch::Of({{-0.0f, 0.0f, -1}, {0, -1, -2}, {-2, -1, 0}}, 2);
  for (const char* policy :
       {"lynx:alpha=4,beta=3,self_scaled=true", "lynx:alpha=4,beta=9,self_scaled=true"}) {
    EXPECT_EQ(SelectedBy(flat, Parse(policy)), OracleSet(flat, Parse(policy))) << policy;
    EXPECT_EQ(SelectedBy(flat, Parse(policy)), (std::set<int32_t>{0, 1, 2})) << policy;
  }
}

// The gap is cut off at the last bin before it is made a whole number.
TEST(LynxTest, HugeGapsAndSlopesEndInTheLastBin) {
  const Batch batch = Batch::Of({{3e38f, -3e38f, 0, 1}, {3e38f, 2e38f, -kInf, 0}, {1, 0, 0, 0}}, 2);
  for (const char* text : {"lynx:alpha=1e9,beta=4", "lynx:alpha=1e9,beta=1000000",
                           "lynx:alpha=1e9,beta=none", "lynx:alpha=1e9,beta=0"}) {
    const Policy policy = Parse(text);
    const Rows plan = PlanOf(batch, policy);
    for (int32_t row = 0; row < 3; ++row) EXPECT_EQ(plan.ids[static_cast<size_t>(row)].size(), 2u);
  }
}

// A masked expert is in the last bin like others, but nobody votes for what it cannot use.
TEST(LynxTest, NoRowVotesForAMaskedExpert) {
  // Bin 1 for all but the best of a row; expert 1 is liked most, and row 0 may not use it.
  const Batch batch =
      Batch::Of({{5, -kInf, 0, 1, -kInf}, {0, 5, -kInf, -kInf, 0}, {0, 5, -kInf, -kInf, 0}}, 2);
  const std::set<int32_t> selected = SelectedBy(batch, Parse("lynx:alpha=1,beta=1"));
  EXPECT_EQ(selected, (std::set<int32_t>{0, 1, 3}));
}

TEST(LynxTest, SelfScaledBinsDoNotDependOnTheRoutersTemperature) {
  Draw draw;
  const Policy policy = Parse("lynx:alpha=4,beta=3,self_scaled=true");
  for (int round = 0; round < ForTestSize(50, 300, 10000); ++round) {
    Batch batch = draw.NextBatch({.masks = false, .min_rows = 2});
    const std::set<int32_t> selected = SelectedBy(batch, policy);
    for (float& logit : batch.logits) logit *= 8;  // A power of two: no rounding.
    ASSERT_EQ(SelectedBy(batch, policy), selected) << batch.Describe();
  }
}

TEST(VoteTest, TiesGoToTheHeavierColumnThenTheLowerId) {
  // One vote for 0 or 1 each from two rows; 1 has more mass.
  const Batch batch = Batch::Of({{1, 0, -9, -9}, {0, 3, -9, -9}, {-9, -9, 2, 2}}, 1);
  EXPECT_EQ(SelectedBy(batch, Parse("vote:M=1")), (std::set<int32_t>{1}));
  EXPECT_EQ(SelectedBy(batch, Parse("vote:M=2")), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(SelectedBy(batch, Parse("vote:M=1,floor=1")), (std::set<int32_t>{0, 1, 2}));
}

TEST(BudgetTest, TheFloorCountsAndWins) {
  const Batch batch = Batch::Of({{9, 0, 0, 1}, {0, 9, 0, 1}, {0, 0, 9, 1}}, 1);
  EXPECT_EQ(SelectedBy(batch, Parse("budget:M=1")).size(), 1u);
  EXPECT_EQ(SelectedBy(batch, Parse("budget:M=2,floor=1")), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(SelectedBy(batch, Parse("budget:M=4,floor=1")), (std::set<int32_t>{0, 1, 2, 3}));
}

TEST(BudgetTest, TheFractionIsOfTheExactUnionRoundedUp) {
  std::vector<std::vector<float>> rows(25, std::vector<float>(32, 0.0f));
  for (size_t row = 0; row < rows.size(); ++row) rows[row][row] = 5;
  const Batch batch = Batch::Of(rows, 1);  // 25 different experts.
  EXPECT_EQ(SelectedBy(batch, Parse("budget:fraction=0.28")).size(), 7u);
  EXPECT_EQ(SelectedBy(batch, Parse("budget:fraction=0.29")).size(), 8u);
  EXPECT_EQ(SelectedBy(batch, Parse("budget:fraction=0.001")).size(), 1u);
  EXPECT_EQ(SelectedBy(batch, Parse("budget:fraction=1")).size(), 25u);
}

TEST(MarginalTest, CostsDecide) {
  Batch batch = Batch::Of({{9, 5, 0, 0}, {0, 5, 9, 0}, {0, 5, 0, 9}}, 1);
  EXPECT_EQ(SelectedBy(batch, Parse("marginal:lambda=0")).size(), 4u);
  EXPECT_EQ(SelectedBy(batch, Parse("marginal:lambda=3")).size(), 1u);
  batch.expert_cost = {1, 1, 0, 0};  // What is at hand already is used.
  EXPECT_EQ(SelectedBy(batch, Parse("marginal:lambda=3")), (std::set<int32_t>{2, 3}));
  batch.expert_cost = {0.01f, 1, 0, 0};  // And what is nearly free.
  EXPECT_EQ(SelectedBy(batch, Parse("marginal:lambda=3")), (std::set<int32_t>{0, 2, 3}));
}

TEST(PruneTest, RowsHaveTheirFirstRanksOnly) {
  const Rows plan = PlanOf(WorkedBatch(), Parse("prune:k0=1"));
  EXPECT_THAT(plan.ids, ElementsAre(ElementsAre(4), ElementsAre(0), ElementsAre(0)));
  EXPECT_THAT(plan.weights, ElementsAre(ElementsAre(1), ElementsAre(1), ElementsAre(1)));
  EXPECT_THAT(plan.active, ElementsAre(0, 4));
  EXPECT_EQ(plan.stats.assignments, 3);
  EXPECT_LT(plan.stats.kept_mass_min, 1);
}

// Every policy's set equals its definition's, and the plan is that set's.
class DefinitionTest : public ::testing::TestWithParam<Policy::Kind> {};

TEST_P(DefinitionTest, EqualsTheOracle) {
  Draw draw;
  const int rounds = ForTestSize(60, 600, 10000);
  int judged = 0;
  for (int round = 0; round < rounds; ++round) {
    Batch batch = draw.NextBatch({.max_rows = 16, .max_experts = 128});
    if (std::ranges::count(batch.valid, 0) == batch.rows) continue;
    if (GetParam() == Policy::Kind::kMarginal && draw.Chance(0.5)) {
      for (int32_t e = 0; e < batch.experts; ++e) {
        batch.expert_cost.push_back(static_cast<float>(draw.Int(0, 3)));
      }
    }
    const Policy policy = draw.NextPolicy(batch, GetParam());
    const std::optional<std::set<int32_t>> set = OracleSet(batch, policy);
    if (!set.has_value()) continue;
    ++judged;
    ASSERT_EQ(SelectedBy(batch, policy), *set) << ToString(policy) << "\n" << batch.Describe();
  }
  EXPECT_GT(judged, rounds / 4);
}

INSTANTIATE_TEST_SUITE_P(Policies, DefinitionTest,
                         ::testing::Values(Policy::Kind::kLynx, Policy::Kind::kLynxCompat,
                                           Policy::Kind::kVote, Policy::Kind::kOea,
                                           Policy::Kind::kPrune, Policy::Kind::kBudget,
                                           Policy::Kind::kMarginal),
                         [](const auto& test) { return std::string(KindName(test.param)); });

}  // namespace
}  // namespace lynx::moe::testing
