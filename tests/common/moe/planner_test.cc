#include "common/moe/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "common/moe/gate_math.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::moe {
namespace {

using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

RoutingPlan PlanFor(const std::vector<float>& logits, int32_t rows, int32_t top_k,
                    Gate::Rule rule = Gate::Rule::kRenormalise) {
  const auto experts = static_cast<int32_t>(logits.size()) / rows;
  RoutingPlan plan(rows, experts, top_k);
  Planner(rows, experts, top_k)
      .MakePlan({.logits = logits,
                 .rows = rows,
                 .experts = experts,
                 .top_k = top_k,
                 .gate = {.rule = rule}},
                plan);
  return plan;
}

TEST(PlannerTest, PicksTheLargestInOrder) {
  const RoutingPlan plan = PlanFor({0, 3, 1, 2, /**/ 9, 8, 7, 6}, /*rows=*/2, /*top_k=*/2);
  EXPECT_THAT(plan.ids(), ElementsAre(1, 3, 0, 1));
  EXPECT_THAT(plan.active(), ElementsAre(0, 1, 3));
}

TEST(PlannerTest, TiesGoToTheLowerId) {
  EXPECT_THAT(PlanFor({5, 7, 5, 7, 7}, 1, 4).ids(), ElementsAre(1, 3, 4, 0));
  EXPECT_THAT(PlanFor({1, 1, 1, 1}, 1, 4).ids(), ElementsAre(0, 1, 2, 3));
}

TEST(PlannerTest, WeighsByTheGateRule) {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f)};  // Softmax 1/8, 2/8, 5/8.
  const RoutingPlan renormalised = PlanFor(logits, 1, 2);
  EXPECT_NEAR(renormalised.weights()[0], 5.0 / 7, 1e-6);
  EXPECT_NEAR(renormalised.weights()[1], 2.0 / 7, 1e-6);
  const RoutingPlan plain = PlanFor(logits, 1, 2, Gate::Rule::kKeepMass);
  EXPECT_NEAR(plain.weights()[0], 5.0 / 8, 1e-6);
  EXPECT_NEAR(plain.weights()[1], 2.0 / 8, 1e-6);
}

TEST(PlannerTest, EqualsSortingForRandomLogitsWithTies) {
  std::mt19937 rng(1);
  std::uniform_int_distribution<int> level(-3, 3);
  for (int round = 0; round < 300; ++round) {
    const int32_t experts = 1 + round % 40;
    const int32_t top_k = 1 + round % experts;
    std::vector<float> logits(static_cast<size_t>(experts) * 3);
    for (float& logit : logits) logit = static_cast<float>(level(rng));
    const RoutingPlan plan = PlanFor(logits, 3, top_k);
    std::set<int32_t> all;
    for (int32_t row = 0; row < 3; ++row) {
      const float* z = logits.data() + row * experts;
      std::vector<int32_t> order(static_cast<size_t>(experts));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return z[a] > z[b]; });
      double sum = 0;
      for (int32_t j = 0; j < top_k; ++j) {
        const auto i = static_cast<size_t>(row * top_k + j);
        ASSERT_EQ(plan.ids()[i], order[static_cast<size_t>(j)]);
        sum += plan.weights()[i];
        all.insert(plan.ids()[i]);
      }
      ASSERT_NEAR(sum, 1, 1e-5);
    }
    ASSERT_THAT(plan.active(), ::testing::ElementsAreArray(all));
  }
}

TEST(PlannerTest, ExtremeLogitsGiveFiniteWeights) {
  const RoutingPlan plan = PlanFor({1e4f, -1e4f, -kInf, 1e4f, /**/ -kInf, 0, -200, -kInf}, 2, 2);
  EXPECT_THAT(plan.ids(), ElementsAre(0, 3, 1, 2));
  EXPECT_THAT(plan.weights(), ElementsAre(0.5f, 0.5f, 1.0f, 0.0f));
}

// What is wrong must reach the row's output, where the sampler looks for it, and no other row's.
TEST(PlannerTest, BadLogitsStayVisibleAndInTheirRow) {
  const RoutingPlan plan = PlanFor({1, kNan, 3, 2, /**/ 1, 2, 3, 4}, 2, 2);
  EXPECT_THAT(plan.ids(), ElementsAre(2, 3, 3, 2));
  EXPECT_TRUE(std::isnan(plan.weights()[0]) && std::isnan(plan.weights()[1]));
  EXPECT_FALSE(std::isnan(plan.weights()[2]) || std::isnan(plan.weights()[3]));
  EXPECT_EQ(plan.stats().bad_rows, 1);
  EXPECT_THAT(PlanFor({kNan, kNan, kNan}, 1, 3).ids(), ElementsAre(0, 1, 2));
  EXPECT_EQ(PlanFor({1, kInf, 3}, 1, 2).stats().bad_rows, 1);
  EXPECT_EQ(PlanFor({1, -kInf, -kInf}, 1, 2).stats().bad_rows, 1);
  EXPECT_EQ(PlanFor({1, -kInf, 3}, 1, 2).stats().bad_rows, 0);
}

TEST(PlannerTest, OnePlanServesStepsOfAllSizes) {
  RoutingPlan plan(8, 4, 2);
  Planner planner(8, 4, 2);
  for (int32_t rows : {8, 0, 3}) {
    const std::vector<float> logits(static_cast<size_t>(rows) * 4, 1.0f);
    planner.MakePlan({.logits = logits, .rows = rows, .experts = 4, .top_k = 2}, plan);
    EXPECT_EQ(plan.ids().size(), static_cast<size_t>(rows) * 2);
    EXPECT_EQ(plan.active().size(), rows == 0 ? 0u : 2u);
  }
}

// A renormalised row is softmax over its ids to the bit: what exact decoding has always used.
TEST(PlannerTest, RenormalisedWeightsAreAPlainSoftmaxOfTheIds) {
  std::mt19937 rng(2);
  std::normal_distribution<float> normal(0, 3);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits(static_cast<size_t>(1 + rng() % 100));
    for (float& logit : logits) logit = normal(rng);
    const auto top_k = static_cast<int32_t>(1 + rng() % std::min<size_t>(20, logits.size()));
    const RoutingPlan plan = PlanFor(logits, 1, top_k);
    const float largest = *std::max_element(logits.begin(), logits.end());
    float total = 0;
    for (int32_t e : plan.ids()) total += GateExp(logits[static_cast<size_t>(e)] - largest);
    for (size_t j = 0; j < plan.ids().size(); ++j) {
      const float score = GateExp(logits[static_cast<size_t>(plan.ids()[j])] - largest);
      ASSERT_EQ(plan.weights()[j], score / total);
    }
  }
}

// Ids come from comparisons and whole numbers alone, so they are these on any machine.
TEST(PlannerTest, EveryMachineChoosesTheSame) {
  constexpr int32_t kRows = 16;
  constexpr int32_t kExperts = 64;
  constexpr int32_t kTopK = 8;
  const struct {
    const char* policy;
    uint64_t hash;
  } cases[] = {
      {"exact", 17419845543967247758u},
      {"prune:k0=3", 4470637442542551521u},
      {"vote:M=24,floor=1", 12555113969171376926u},
      {"lynx_compat:alpha=3,beta=4", 4950203848613208023u},
      {"lynx:alpha=3,beta=4,floor=1", 12070202426110557190u},
      {"lynx:alpha=2,beta=none", 10559234729766617234u},
      {"lynx:alpha=4,beta=3,self_scaled=true", 13838090003180625224u},
      {"oea:k0=3", 15742247261841053974u},
      {"budget:fraction=0.5,floor=1", 11602762075305310099u},
      {"budget:coverage=0.9", 3969392904045144305u},
      {"budget:row_coverage=0.7", 9566667122562123674u},
      {"marginal:lambda=0.1", 4627414002206005364u},
  };
  for (const auto& test : cases) {
    const Policy policy = *ParsePolicy(test.policy);
    const std::vector<const Policy*> policies(kRows, &policy);
    std::mt19937 rng(7);
    Planner planner(kRows, kExperts, kTopK);
    RoutingPlan plan(kRows, kExperts, kTopK);
    uint64_t hash = 14695981039346656037u;  // FNV-1a
    for (int step = 0; step < 50; ++step) {
      std::vector<float> logits(kRows * kExperts);
      for (float& logit : logits) {  // Eighths and sixteenths: exact, and often equal.
        const auto sum = (rng() >> 26) + (rng() >> 26) + (rng() >> 26);
        logit = static_cast<float>(sum) / (step % 2 == 0 ? 8 : 16);
      }
      planner.MakePlan({.logits = logits,
                        .rows = kRows,
                        .experts = kExperts,
                        .top_k = kTopK,
                        .policies = policies},
                       plan);
      for (int32_t id : plan.ids()) hash = (hash ^ static_cast<uint64_t>(id)) * 1099511628211u;
    }
    EXPECT_EQ(hash, test.hash) << test.policy;
  }
}

TEST(GateExpTest, IsWithinTwoUlpOfTheTrueValue) {
  for (int i = 0; i <= 87000; ++i) {
    const float x = -static_cast<float>(i) * 1e-3f;
    const double want = std::exp(static_cast<double>(x));
    ASSERT_NEAR(GateExp(x), want, want * 2.4e-7) << x;
  }
  EXPECT_EQ(GateExp(0.0f), 1.0f);
  EXPECT_EQ(GateExp(-kInf), 0.0f);
  EXPECT_TRUE(std::isnan(GateExp(kNan)));
}

}  // namespace
}  // namespace lynx::moe
