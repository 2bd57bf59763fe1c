// Plans of a GPU against those of moe::Planner, for every policy and gate.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "common/model/device_policy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/moe/plan.h"
#include "tests/common/moe/routing_cases.h"
#include "tests/support/cuda_emulation/emulated_context.h"
#include "tests/support/cuda_emulation/emulator.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_size.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::ForTestSize;
using ::lynx::testing::StatusIs;
using moe::Policy;
using moe::testing::Batch;
using moe::testing::Draw;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int32_t kCanary = -777;

// A plan's results, with a canary behind each array.
struct Result {
  absl::Status status;
  std::vector<int32_t> ids, widths, active;
  std::vector<float> weights, kept_mass;
  PlanSummary summary;
};

// Policies by row: null is none.
Result DevicePlan(const Batch& batch, const std::vector<const Policy*>& policies,
                  const ExecContext& ctx = testing::EmulatedCuda()) {
  const auto rows = static_cast<size_t>(batch.rows), k = static_cast<size_t>(batch.top_k);
  PlanParameters parameters;
  std::vector<Policy> known;
  std::vector<int8_t> row_policies;
  for (const Policy* policy : policies) {
    if (policy == nullptr || !policy->lossy()) {
      row_policies.push_back(policy == nullptr ? kNoPolicy : kExactPolicy);
      continue;
    }
    auto at = std::ranges::find(known, *policy);
    if (at == known.end()) {
      parameters.policies[known.size()] = model::DevicePolicy(*policy).value();
      at = known.insert(known.end(), *policy);
    }
    row_policies.push_back(static_cast<int8_t>(at - known.begin()));
  }
  parameters.count = static_cast<int32_t>(known.size());
  parameters.remap = batch.phase == moe::Phase::kDecode ||
                     (batch.phase == moe::Phase::kMixed && batch.remap_mixed);
  Result result;
  result.ids.assign(rows * k + 1, kCanary);
  result.weights.assign(rows * k + 1, static_cast<float>(kCanary));
  result.widths.assign(rows + 1, kCanary);
  result.kept_mass.assign(rows + 1, static_cast<float>(kCanary));
  result.active.assign(static_cast<size_t>(batch.experts) + 1, kCanary);
  const moe::Gate& gate = batch.gate;
  result.status =
      MakeDevicePlan({.logits = batch.logits.data(),
                      .bias = batch.bias.empty() ? nullptr : batch.bias.data(),
                      .valid = batch.valid.empty() ? nullptr : batch.valid.data(),
                      .row_policies = row_policies.data(),
                      .expert_cost = batch.expert_cost.empty() ? nullptr : batch.expert_cost.data(),
                      .parameters = &parameters,
                      .rows = batch.rows,
                      .experts = batch.experts,
                      .top_k = batch.top_k,
                      .sigmoid = gate.score == moe::Gate::Score::kSigmoid,
                      .keep_mass = gate.rule == moe::Gate::Rule::kKeepMass,
                      .group_sum = gate.group_score == moe::Gate::GroupScore::kTopTwoSum,
                      .groups = gate.groups,
                      .groups_kept = gate.groups_kept,
                      .scale = gate.scale,
                      .ids = result.ids.data(),
                      .weights = result.weights.data(),
                      .widths = result.widths.data(),
                      .kept_mass = result.kept_mass.data(),
                      .active = result.active.data(),
                      .summary = &result.summary},
                     ctx);
  EXPECT_EQ(result.ids.back(), kCanary);
  EXPECT_EQ(result.weights.back(), kCanary);
  EXPECT_EQ(result.widths.back(), kCanary);
  EXPECT_EQ(result.kept_mass.back(), kCanary);
  EXPECT_EQ(result.active.back(), kCanary);
  result.active.resize(static_cast<size_t>(std::max(0, result.summary.experts)));
  return result;
}

std::vector<const Policy*> PoliciesOf(const Batch& batch, const Policy& policy) {
  std::vector<const Policy*> policies(static_cast<size_t>(batch.rows), &policy);
  for (int32_t row = 0; row < batch.rows; ++row) {
    if (batch.OptedOut(row)) policies[static_cast<size_t>(row)] = nullptr;
  }
  return policies;
}

bool Close(float got, float want, float bound) {
  return got == want || std::abs(got - want) <= bound || (std::isnan(got) && std::isnan(want));
}

// Largest difference of weights so far, of all tests.
float& LargestDifference() {
  static float largest = 0;
  return largest;
}

// The device's plan is the planner's.
void ExpectEqualPlans(const Batch& batch, const std::vector<const Policy*>& policies) {
  const moe::testing::Rows want = moe::testing::PlanOf(batch, policies);
  const Result got = DevicePlan(batch, policies);
  ASSERT_TRUE(got.status.ok()) << got.status;
  ASSERT_EQ(got.active, want.active);
  const auto k = static_cast<size_t>(batch.top_k);
  for (size_t row = 0; row < static_cast<size_t>(batch.rows); ++row) {
    const auto width = static_cast<size_t>(got.widths[row]);
    const auto ids = got.ids.begin() + static_cast<ptrdiff_t>(row * k);
    const float* weights = &got.weights[row * k];
    ASSERT_EQ(std::vector<int32_t>(ids, ids + got.widths[row]), want.ids[row]) << "row " << row;
    for (size_t j = 0; j < width; ++j) {
      // Weights sum to 1, or to the scale's share of it.
      const float bound = 1e-6f * std::max(1.0f, batch.gate.scale);
      ASSERT_TRUE(Close(weights[j], want.weights[row][j], bound))
          << "row " << row << ": " << weights[j] << " for " << want.weights[row][j];
      if (!std::isnan(weights[j])) {
        LargestDifference() =
            std::max(LargestDifference(), std::abs(weights[j] - want.weights[row][j]));
      }
    }
    for (size_t j = width; j < k; ++j) {
      ASSERT_EQ(weights[j], 0);
      ASSERT_TRUE(want.active.empty() || std::ranges::binary_search(want.active, ids[j]));
    }
    ASSERT_TRUE(Close(got.kept_mass[row], want.kept_mass[row], 1e-6f)) << "row " << row;
  }
  const moe::PlanStats& stats = want.stats;
  ASSERT_EQ(got.summary.experts_exact, stats.experts_exact);
  ASSERT_EQ(got.summary.experts, stats.experts);
  ASSERT_EQ(got.summary.rows, stats.rows);
  ASSERT_EQ(got.summary.assignments, stats.assignments);
  ASSERT_EQ(got.summary.remapped, stats.remapped);
  ASSERT_EQ(got.summary.bad_rows, stats.bad_rows);
  ASSERT_EQ(static_cast<int>(got.summary.bypass), static_cast<int>(stats.bypass));
  ASSERT_TRUE(Close(got.summary.kept_mass_mean, stats.kept_mass_mean, 1e-6f));
  ASSERT_TRUE(Close(got.summary.kept_mass_min, stats.kept_mass_min, 1e-6f));
}

class DevicePlanTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "fibers do not go with ThreadSanitizer";
#endif
  }
  void TearDown() override { cuda_emulation::SetOptions({}); }
};

// Gates of all families.
void DrawGate(Draw& draw, Batch& batch) {
  const auto width = static_cast<size_t>(batch.experts);
  if (draw.Chance(0.4)) batch.gate.score = moe::Gate::Score::kSigmoid;
  if (draw.Chance(0.4)) batch.gate.rule = moe::Gate::Rule::kKeepMass;
  if (draw.Chance(0.3)) batch.gate.scale = 2.5f;
  if (draw.Chance(0.3)) {
    for (size_t e = 0; e < width; ++e) batch.bias.push_back(static_cast<float>(draw.Real(-1, 1)));
  }
  if (draw.Chance(0.3) && batch.experts % 4 == 0) {
    const int32_t groups = batch.experts % 8 == 0 && draw.Chance(0.5) ? 8 : 4;
    const int32_t least = (batch.top_k * groups + batch.experts - 1) / batch.experts;
    batch.gate.groups = groups;
    batch.gate.groups_kept = draw.Int(least, groups);
    if (draw.Chance(0.5)) batch.gate.group_score = moe::Gate::GroupScore::kTopTwoSum;
  }
}

// A batch of any kind: gates, costs, phases, bad rows, and now and then 255 rows.
Batch DrawBatch(Draw& draw, int round) {
  Draw::Options options;
  if (round % 100 == 0) options.min_rows = options.max_rows = 255;
  if (round % 100 == 0) options.max_experts = 64;
  Batch batch = draw.NextBatch(options);
  if (draw.Chance(0.5)) DrawGate(draw, batch);
  if (draw.Chance(0.3)) {
    for (int32_t e = 0; e < batch.experts; ++e) {
      batch.expert_cost.push_back(draw.Chance(0.3) ? 0 : static_cast<float>(draw.Int(1, 3)));
    }
  }
  if (draw.Chance(0.05)) batch.phase = draw.Chance(0.5) ? moe::Phase::kPrefill : moe::Phase::kMixed;
  batch.remap_mixed = draw.Chance(0.5);
  if (draw.Chance(0.1)) {
    const float wrong = draw.Chance(0.5) ? kInf : std::numeric_limits<float>::quiet_NaN();
    const int32_t row = draw.Int(0, batch.rows - 1), e = draw.Int(0, batch.experts - 1);
    batch.logits[static_cast<size_t>(row) * static_cast<size_t>(batch.experts) +
                 static_cast<size_t>(e)] = wrong;
  }
  return batch;
}

// One policy for all, or several; some rows without.
std::vector<const Policy*> DrawPolicies(Draw& draw, const Batch& batch,
                                        std::vector<Policy>& policies) {
  const int32_t count = draw.Chance(0.7) ? 1 : draw.Int(2, 4);
  policies.clear();
  for (int32_t p = 0; p < count; ++p) {
    policies.push_back(draw.Chance(0.1) ? draw.NextPolicy(batch, Policy::Kind::kLynxCompat)
                                        : draw.NextPolicy(batch));
  }
  static const Policy kExact;
  std::vector<const Policy*> rows;
  for (int32_t row = 0; row < batch.rows; ++row) {
    const Policy* policy = &policies[static_cast<size_t>(draw.Int(0, count - 1))];
    if (batch.OptedOut(row)) policy = draw.Chance(0.5) ? &kExact : nullptr;
    rows.push_back(policy);
  }
  return rows;
}

// 10,000 of them in the long form.
TEST_F(DevicePlanTest, IsThePlannersOnRandomBatches) {
  Draw draw;
  std::map<std::string, int> bypasses;
  const int rounds = ForTestSize(60, 700, 10000);
  int remapped = 0;
  for (int round = 0; round < rounds; ++round) {
    const Batch batch = DrawBatch(draw, round);
    std::vector<Policy> policies;
    const auto rows = DrawPolicies(draw, batch, policies);
    std::string text;
    for (const Policy& policy : policies) text += moe::ToString(policy) + "; ";
    SCOPED_TRACE(::testing::Message() << "round " << round << ", " << text << batch.Describe());
    cuda_emulation::SetOptions({.order = static_cast<uint64_t>(round % 4)});
    ExpectEqualPlans(batch, rows);
    if (HasFatalFailure()) return;
    remapped += moe::testing::PlanOf(batch, rows).stats.bypass == moe::Bypass::kNone ? 1 : 0;
  }
  std::cout << rounds << " batches, " << remapped << " of them remapped; weights differ by at most "
            << LargestDifference() << std::endl;
  EXPECT_GT(remapped, rounds / 3);
}

// The hand-made batches of lynx.md: votes, a set that would grow, a batch of one.
TEST_F(DevicePlanTest, MatchesTheWorkedVectors) {
  const Batch batch = Batch::Of({{-0.2f, 0.2f, -1.2f, -1.6f, 1.7f, -1.9f},
                                 {0.0f, -0.8f, -1.9f, -0.9f, -1.4f, -0.4f},
                                 {1.6f, -1.7f, -0.6f, 0.8f, 0.5f, -1.9f}},
                                2);
  const Policy lynx = moe::testing::Parse("lynx:alpha=1,beta=2");
  const Result plan = DevicePlan(batch, PoliciesOf(batch, lynx));
  ASSERT_TRUE(plan.status.ok()) << plan.status;
  EXPECT_EQ(plan.active, (std::vector<int32_t>{0, 3, 4}));
  EXPECT_EQ(plan.ids, (std::vector<int32_t>{4, 0, 0, 3, 0, 3, kCanary}));
  EXPECT_EQ(plan.summary.bypass, PlanBypass::kNone);

  const Batch one = Batch::Of({{2.0f, 0.0f, 0.5f, 1.0f}}, 2);
  EXPECT_EQ(DevicePlan(one, PoliciesOf(one, moe::testing::Parse("lynx:alpha=1,beta=1"))).active,
            (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(
      DevicePlan(one, PoliciesOf(one, moe::testing::Parse("lynx_compat:alpha=1,beta=1"))).active,
      (std::vector<int32_t>{0, 1}));

  const Batch grows = Batch::Of(
      {{0.8f, 1.7f, 0.7f, -1.9f}, {-0.2f, -0.7f, 0.4f, 1.1f}, {0.8f, 0.6f, 0.7f, 1.1f}}, 1);
  const Result guarded = DevicePlan(grows, PoliciesOf(grows, lynx));
  EXPECT_EQ(guarded.active, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(guarded.summary.bypass, PlanBypass::kGuard);
}

// Every kind by itself, at the sizes that kernels care about: one row, a block and one more, 255;
// experts on both sides of a warp; the models' own.
TEST_F(DevicePlanTest, IsThePlannersAtEverySize) {
  struct Size {
    int32_t rows, experts, top_k;
  };
  Draw draw;
  for (const Size& size :
       {Size{1, 64, 8}, Size{2, 31, 3}, Size{3, 33, 32}, Size{4, 32, 1}, Size{5, 128, 8},
        Size{16, 64, 8}, Size{64, 128, 8}, Size{17, 1024, 8}, Size{255, 64, 6}, Size{9, 8, 2}}) {
    for (Policy::Kind kind :
         {Policy::Kind::kPrune, Policy::Kind::kVote, Policy::Kind::kLynx, Policy::Kind::kLynxCompat,
          Policy::Kind::kOea, Policy::Kind::kBudget, Policy::Kind::kMarginal}) {
      Batch batch;
      batch.rows = size.rows;
      batch.experts = size.experts;
      batch.top_k = size.top_k;
      std::normal_distribution<float> normal;
      for (int32_t i = 0; i < size.rows * size.experts; ++i) {
        batch.logits.push_back(normal(draw.rng()));
      }
      const Policy policy = draw.NextPolicy(batch, kind);
      SCOPED_TRACE(moe::ToString(policy) + ", " + batch.Describe());
      ExpectEqualPlans(batch, PoliciesOf(batch, policy));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(DevicePlanTest, PaddingAndBadRowsChangeNothingForTheOthers) {
  Batch batch = Batch::Of({{3, 2, 1, 0}, {0, 0, 0, 0}, {0, 3, 1, 2}, {2, 3, 0, 1}}, 2);
  const Policy policy = moe::testing::Parse("oea:k0=1");
  batch.valid = {1, 0, 1, 1};
  batch.SetRow(1, {kInf, kInf, kInf, std::numeric_limits<float>::quiet_NaN()});
  ExpectEqualPlans(batch, PoliciesOf(batch, policy));
  const Result padded = DevicePlan(batch, PoliciesOf(batch, policy));
  EXPECT_EQ(padded.widths[1], 0);
  EXPECT_EQ(padded.summary.bad_rows, 0);
  batch.valid = {1, 1, 1, 1};
  ExpectEqualPlans(batch, PoliciesOf(batch, policy));
  const Result bad = DevicePlan(batch, PoliciesOf(batch, policy));
  EXPECT_EQ(bad.summary.bad_rows, 1);
  EXPECT_TRUE(std::isnan(bad.weights[2]));
  batch.valid = {0, 0, 0, 0};
  ExpectEqualPlans(batch, PoliciesOf(batch, policy));
}

// Columns that differ by less than 2^-24 of a row's mass: what decides is how each share is
// rounded.
TEST_F(DevicePlanTest, RoundsMassAsThePlannerDoes) {
  Draw draw;
  for (int round = 0; round < 20; ++round) {
    Batch batch;
    batch.rows = 16;
    batch.experts = 64;
    batch.top_k = 2;
    for (int32_t row = 0; row < batch.rows; ++row) {
      for (int32_t e = 0; e < batch.experts; ++e) {
        batch.logits.push_back(e == row ? 1.0f : static_cast<float>(draw.Real(0, 4e-6)));
      }
    }
    for (const char* text : {"vote:M=20", "budget:M=20", "budget:coverage=0.9,floor=1"}) {
      const Policy policy = moe::testing::Parse(text);
      SCOPED_TRACE(text);
      ExpectEqualPlans(batch, PoliciesOf(batch, policy));
      if (HasFatalFailure()) return;
    }
  }
}

// The order of threads and blocks is the hardware's.
TEST_F(DevicePlanTest, HasTheSameBitsInAnyOrderOfThreadsAndBlocks) {
  Draw draw;
  for (int round = 0; round < ForTestSize(3, 20, 100); ++round) {
    const Batch batch = DrawBatch(draw, round + 1);
    std::vector<Policy> policies;
    const auto rows = DrawPolicies(draw, batch, policies);
    cuda_emulation::SetOptions({});
    const Result want = DevicePlan(batch, rows);
    for (uint64_t order = 1; order < 6; ++order) {
      cuda_emulation::SetOptions({.order = order, .resident_blocks = static_cast<int>(order)});
      const Result got = DevicePlan(batch, rows);
      ASSERT_TRUE(got.status.ok()) << got.status;
      ASSERT_EQ(got.ids, want.ids) << batch.Describe();
      ASSERT_EQ(testing::BitsOf(got.weights), testing::BitsOf(want.weights));
      ASSERT_EQ(got.active, want.active);
    }
  }
}

TEST_F(DevicePlanTest, RefusesWhatItCannotPlan) {
  const Batch batch = Batch::Of({{3, 2, 1, 0}}, 2);
  const std::vector<const Policy*> nobody(1);
  const auto code = [](const Batch& wrong) {
    return DevicePlan(wrong, std::vector<const Policy*>(1)).status.code();
  };
  Batch wrong = batch;
  wrong.top_k = 5;
  EXPECT_EQ(code(wrong), absl::StatusCode::kInvalidArgument);
  wrong = batch;
  wrong.gate.groups = 3;
  EXPECT_EQ(code(wrong), absl::StatusCode::kInvalidArgument);
  wrong = batch;
  wrong.gate.groups = 4;
  EXPECT_EQ(code(wrong), absl::StatusCode::kInvalidArgument);  // A row would find one expert.
  ExecContext little = testing::EmulatedCuda();
  little.queue.scratch_bytes = PlanScratchBytes(1, 4, 2) - 1;
  EXPECT_EQ(DevicePlan(batch, nobody, little).status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DevicePlan(batch, nobody, ExecContext{}).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(DevicePlan(batch, nobody).status.ok());
}

TEST_F(DevicePlanTest, NamesThePoliciesThatGpusDoNotHave) {
  EXPECT_THAT(model::DevicePolicy(moe::testing::Parse("oea:k0=2,ep_balance=0.1")).status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("ep_balance")));
  EXPECT_THAT(model::DevicePolicy(Policy{}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("exact")));
}

}  // namespace
}  // namespace lynx::kernels
