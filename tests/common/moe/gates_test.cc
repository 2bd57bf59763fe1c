#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/moe/routing_cases.h"
#include "tests/common/moe/routing_oracle.h"
#include "tests/support/test_size.h"

// The ways in which model families score, group and weigh experts, under any policy.
namespace lynx::moe::testing {
namespace {

using Kind = Policy::Kind;
using lynx::testing::ForTestSize;
using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();

double Sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

// Whether rounding to float32 may decide which of two is larger.
bool HasNearTies(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] - values[i - 1] < 1e-6) return true;
  }
  return false;
}

std::vector<double> GroupScores(const Batch& batch, const std::vector<double>& scores) {
  const int32_t size = batch.experts / batch.gate.groups;
  std::vector<double> groups;
  for (int32_t g = 0; g < batch.gate.groups; ++g) {
    std::vector<double> in(scores.begin() + g * size, scores.begin() + (g + 1) * size);
    std::sort(in.rbegin(), in.rend());
    const bool sum = batch.gate.group_score == Gate::GroupScore::kTopTwoSum && size > 1;
    groups.push_back(sum ? in[0] + in[1] : in[0]);
  }
  return groups;
}

// The experts that a row may use, by the definition.
std::set<int32_t> AllowedExperts(const Batch& batch, const std::vector<double>& scores) {
  const std::vector<double> groups = GroupScores(batch, scores);
  std::vector<double> best = groups;
  std::sort(best.rbegin(), best.rend());
  const double least = best[static_cast<size_t>(batch.gate.groups_kept) - 1];
  std::set<int32_t> allowed;
  for (int32_t e = 0; e < batch.experts; ++e) {
    const int32_t group = e / (batch.experts / batch.gate.groups);
    if (groups[static_cast<size_t>(group)] >= least) allowed.insert(e);
  }
  return allowed;
}

// A DeepSeek-V3 router: sigmoid, bias for ranking, groups by their two best, weights scaled.
Batch BiasedBatch(Draw& draw) {
  Batch batch = draw.NextBatch({.ties = false, .masks = false, .min_rows = 2, .max_experts = 64});
  batch.experts = batch.experts == 11 ? 8 : batch.experts;
  batch.top_k = draw.Int(1, batch.experts / 2);
  batch.logits.resize(static_cast<size_t>(batch.rows * batch.experts));
  for (float& logit : batch.logits) logit = static_cast<float>(draw.Real(-4, 4));
  for (int32_t e = 0; e < batch.experts; ++e) {
    batch.bias.push_back(static_cast<float>(draw.Real(-0.3, 0.3)));
  }
  batch.gate = {.score = Gate::Score::kSigmoid,
                .rule = draw.Chance(0.5) ? Gate::Rule::kRenormalise : Gate::Rule::kKeepMass,
                .scale = 2.5f,
                .groups = 4,
                .groups_kept = draw.Int(2, 3),
                .group_score = Gate::GroupScore::kTopTwoSum};
  return batch;
}

TEST(GatesTest, ABiasRanksAndDoesNotWeigh) {
  Batch batch = Batch::Of({{0, 1, 2, 3}}, 2);
  batch.gate = {.score = Gate::Score::kSigmoid, .scale = 2};
  batch.bias = {0.9f, 0, 0, 0};
  const Rows plan = ExactPlanOf(batch);
  EXPECT_THAT(plan.ids, ElementsAre(ElementsAre(0, 3)));  // 0.5 + 0.9 before 0.953
  const double sum = Sigmoid(0) + Sigmoid(3);
  EXPECT_NEAR(plan.weights[0][0], 2 * Sigmoid(0) / sum, 1e-6);
  EXPECT_NEAR(plan.weights[0][1], 2 * Sigmoid(3) / sum, 1e-6);
  batch.gate.rule = Gate::Rule::kKeepMass;
  EXPECT_NEAR(ExactPlanOf(batch).weights[0][0], 2 * Sigmoid(0), 1e-6);
}

// A sigmoid of -200 is nothing in float32, and yet one of two.
TEST(GatesTest, UnlikelyExpertsDoNotUnderflow) {
  Batch batch = Batch::Of({{-200, -201, -400, -300}, {5, 4, 3, 2}}, 2);
  batch.gate = {.score = Gate::Score::kSigmoid};
  const Rows plan = ExactPlanOf(batch);
  EXPECT_NEAR(plan.weights[0][0], Sigmoid(1), 1e-6);
  EXPECT_NEAR(plan.weights[0][1], Sigmoid(-1), 1e-6);
}

TEST(GatesTest, GroupsAreJudgedByTheirBestOrTheirTwoBest) {
  Batch batch = Batch::Of({{9, 0, 7, 6, 5, 5, 1, 1}}, 2);
  batch.gate = {.groups = 4, .groups_kept = 1};
  EXPECT_THAT(ExactPlanOf(batch).ids, ElementsAre(ElementsAre(0, 1)));
  batch.gate.score = Gate::Score::kSigmoid;
  batch.gate.group_score = Gate::GroupScore::kTopTwoSum;
  EXPECT_THAT(ExactPlanOf(batch).ids, ElementsAre(ElementsAre(2, 3)));
  batch.gate.groups_kept = 4;  // All: no limit.
  EXPECT_THAT(ExactPlanOf(batch).ids, ElementsAre(ElementsAre(0, 2)));
}

TEST(GatesTest, OfEqualGroupsTheFirstAreUsed) {
  Batch batch = Batch::Of({{0, 0, 5, 1, 5, 2, 5, 3}}, 2);
  batch.gate = {.groups = 4, .groups_kept = 2};
  EXPECT_THAT(ExactPlanOf(batch).ids, ElementsAre(ElementsAre(2, 4)));
  batch.gate.groups_kept = 1;
  EXPECT_THAT(ExactPlanOf(batch).ids, ElementsAre(ElementsAre(2, 3)));
}

TEST(GatesTest, BiasedGroupedSigmoidGatesRankAndWeighByTheirDefinition) {
  Draw draw;
  int remapped = 0;
  for (int round = 0; round < ForTestSize(60, 500, 10000); ++round) {
    const Batch batch = BiasedBatch(draw);
    const Policy policy = draw.NextPolicy(batch);
    const Rows exact = ExactPlanOf(batch);
    const Rows plan = PlanOf(batch, policy);
    const std::set<int32_t> active(plan.active.begin(), plan.active.end());
    remapped += plan.stats.remapped;
    for (int32_t row = 0; row < batch.rows; ++row) {
      if (!batch.IsValid(row)) continue;
      const auto r = static_cast<size_t>(row);
      const std::vector<float> z = batch.Row(row);
      std::vector<double> choice;
      std::vector<float> ranked;
      for (size_t e = 0; e < z.size(); ++e) {
        choice.push_back(Sigmoid(z[e]) + static_cast<double>(batch.bias[e]));
      }
      if (HasNearTies(choice) || HasNearTies(GroupScores(batch, choice))) continue;
      const std::set<int32_t> allowed = AllowedExperts(batch, choice);
      for (size_t e = 0; e < z.size(); ++e) ranked.push_back(static_cast<float>(choice[e]));
      const auto k = static_cast<size_t>(batch.top_k);
      const std::vector<int32_t> own = BestOf(ranked, k, &allowed);
      ASSERT_EQ(exact.ids[r], own);
      // Within its groups and what is active, or its own.
      std::set<int32_t> usable;
      std::ranges::set_intersection(allowed, active, std::inserter(usable, usable.end()));
      if (policy.kind != Kind::kPrune && !batch.OptedOut(row)) {
        const std::vector<int32_t> best = BestOf(ranked, k, &usable);
        ASSERT_EQ(plan.ids[r], best.size() == k ? best : own) << ToString(policy);
      }
      double kept = 0;
      double mass = 0;
      for (int32_t e : plan.ids[r]) kept += Sigmoid(z[static_cast<size_t>(e)]);
      for (int32_t e : own) mass += Sigmoid(z[static_cast<size_t>(e)]);
      const double total = batch.gate.rule == Gate::Rule::kKeepMass ? mass : 1;
      for (size_t j = 0; j < plan.ids[r].size(); ++j) {
        const double score = Sigmoid(z[static_cast<size_t>(plan.ids[r][j])]);
        ASSERT_NEAR(plan.weights[r][j], score / kept * total * 2.5, 1e-5);
      }
      ASSERT_NEAR(plan.kept_mass[r], kept / mass, 1e-5);
    }
    ASSERT_LE(plan.active.size(), exact.active.size());
  }
  EXPECT_GT(remapped, 0);
}

// Rows whose groups do not meet: nobody can stand in, and everybody keeps its own.
TEST(GatesTest, RowsThatFindTooFewExpertsInTheirGroupsKeepTheirOwn) {
  Batch batch = Batch::Of({{9, 8, 7, 0, 0, 0, 0, 0},  //
                           {9, 8, 7, 0, 0, 0, 0, 0},
                           {0, 0, 0, 0, 9, 8, 7, 0}},
                          2);
  batch.gate = {.groups = 2, .groups_kept = 1};
  const Rows plan = PlanOf(batch, Parse("budget:M=2"));
  EXPECT_EQ(plan, ExactPlanOf(batch));
  EXPECT_EQ(plan.ids[2], (std::vector<int32_t>{4, 5}));
}

// --- The wrapper around groups of rows ---

using Policies = std::vector<const Policy*>;

TEST(MixedPoliciesTest, TheActiveSetIsTheUnionOfWhatEachGroupSelects) {
  Draw draw;
  int remapped = 0;
  for (int round = 0; round < ForTestSize(60, 500, 10000); ++round) {
    const Batch batch =
        draw.NextBatch({.masks = false, .padding = false, .opt_outs = false, .min_rows = 3});
    const Policy lynx = draw.NextPolicy(batch, Kind::kLynx);
    const Policy same_lynx = lynx;  // Equal policies are one group, wherever they lie.
    const Policy oea = draw.NextPolicy(batch, Kind::kOea);
    Policies policies;
    for (int32_t row = 0; row < batch.rows; ++row) {
      const Policy* const choices[] = {&lynx, &same_lynx, &oea, nullptr};
      policies.push_back(choices[draw.Int(0, 3)]);
    }
    const auto selected_by = [&](const Policy& policy) -> std::set<int32_t> {
      // The group and the rows that keep their own, as a batch of its own.
      Batch group = batch;
      group.valid.assign(static_cast<size_t>(batch.rows), 0);
      group.opted_out.assign(static_cast<size_t>(batch.rows), 0);
      bool any = false;
      for (size_t row = 0; row < policies.size(); ++row) {
        const bool member = policies[row] != nullptr && *policies[row] == policy;
        group.valid[row] = member || policies[row] == nullptr;
        group.opted_out[row] = policies[row] == nullptr;
        any |= member;
      }
      return any ? SelectedBy(group, policy) : std::set<int32_t>();
    };
    std::set<int32_t> active = selected_by(lynx);
    active.merge(selected_by(oea));
    const Rows exact = ExactPlanOf(batch);
    std::vector<std::vector<int32_t>> ids;
    std::set<int32_t> used;
    for (int32_t row = 0; row < batch.rows; ++row) {
      const auto r = static_cast<size_t>(row);
      ids.push_back(policies[r] == nullptr ? exact.ids[r] : OracleAssignment(batch, row, active));
      used.insert(ids.back().begin(), ids.back().end());
    }
    const Rows plan = PlanOf(batch, policies);
    const bool lossy = std::ranges::any_of(policies, [](const Policy* p) { return p != nullptr; });
    ASSERT_EQ(plan.ids, lossy && used.size() < exact.active.size() ? ids : exact.ids);
    remapped += plan.stats.remapped;
    for (size_t row = 0; row < policies.size(); ++row) {
      if (policies[row] == nullptr) {
        ASSERT_EQ(plan.weights[row], exact.weights[row]);
      }
    }
  }
  EXPECT_GT(remapped, 0);
}

TEST(MixedPoliciesTest, PrunedRowsBesideWholeOnesAreFilledUp) {
  const Batch batch = Batch::Of({{5, 4, 0, 0, 0, 0}, {0, 0, 5, 4, 0, 0}, {0, 0, 0, 0, 5, 4}}, 2);
  const Policy prune = Parse("prune:k0=1");
  // PlanOf() checks what fills up.
  const Rows plan = PlanOf(batch, Policies{&prune, nullptr, &prune});
  EXPECT_THAT(plan.ids, ElementsAre(ElementsAre(0), ElementsAre(2, 3), ElementsAre(4)));
  EXPECT_THAT(plan.active, ElementsAre(0, 2, 3, 4));
  EXPECT_EQ(plan.stats.assignments, 4);
}

TEST(BypassTest, SaysWhy) {
  const Batch batch = Batch::Of({{5, 4, 0, 0, 0, 0}, {0, 0, 5, 4, 0, 0}, {0, 0, 0, 0, 5, 4}}, 2);
  const Policy oea = Parse("oea:k0=1");
  const Policy exact;
  const auto why = [](const Batch& of, const Policies& policies) {
    return PlanOf(of, policies).stats.bypass;
  };
  EXPECT_EQ(why(batch, {&oea, &oea, &oea}), Bypass::kNone);
  EXPECT_EQ(why(batch, {&oea, nullptr, &exact}), Bypass::kNone);
  EXPECT_EQ(why(batch, {nullptr, nullptr, nullptr}), Bypass::kPolicyOff);
  EXPECT_EQ(why(batch, {nullptr, &exact, nullptr}), Bypass::kOptOut);
  Batch prefill = batch;
  prefill.phase = Phase::kPrefill;
  EXPECT_EQ(why(prefill, {&oea, &oea, &oea}), Bypass::kPhase);
  Batch alone = batch;
  alone.valid = {0, 1, 0};
  EXPECT_EQ(why(alone, {&oea, &oea, &oea}), Bypass::kBatchOfOne);
  Batch all = Batch::Of({{1, 2}, {2, 1}}, 2);
  EXPECT_EQ(why(all, {&oea, &oea}), Bypass::kKEqualsN);
  const Policy budget = Parse("budget:M=6");
  EXPECT_EQ(why(batch, {&budget, &budget, &budget}), Bypass::kGuard);
  Batch bad = batch;
  bad.SetRow(0, std::vector<float>(6, kInf));
  EXPECT_EQ(why(bad, {&oea, &oea, &oea}), Bypass::kNone);
  bad.valid = {1, 1, 0};
  EXPECT_EQ(why(bad, {&oea, &oea, &oea}), Bypass::kBadLogits);
  bad.valid = {1, 0, 0};
  EXPECT_EQ(why(bad, {&oea, &oea, &oea}), Bypass::kBadLogits);
}

// Decode rows may use what the prefill rows of their step load anyway.
TEST(PhaseTest, AMixedStepIsRemappedOnlyIfAsked) {
  Batch batch = Batch::Of({{5, 4, 0, 0, 0, 0}, {0, 0, 5, 4, 0, 0}, {0, 0, 0, 0, 5, 4}}, 2);
  const Policy oea = Parse("oea:k0=1");
  batch.phase = Phase::kMixed;
  EXPECT_EQ(PlanOf(batch, Policies{&oea, nullptr, nullptr}).stats.bypass, Bypass::kPhase);
  batch.remap_mixed = true;
  const Rows plan = PlanOf(batch, Policies{&oea, nullptr, nullptr});
  EXPECT_THAT(plan.ids, ElementsAre(ElementsAre(0, 2), ElementsAre(2, 3), ElementsAre(4, 5)));
  EXPECT_EQ(plan.stats.bypass, Bypass::kNone);
  batch.phase = Phase::kPrefill;
  EXPECT_EQ(PlanOf(batch, Policies{&oea, nullptr, nullptr}).stats.bypass, Bypass::kPhase);
}

}  // namespace
}  // namespace lynx::moe::testing
