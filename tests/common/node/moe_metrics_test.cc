#include "common/node/moe_metrics.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/model/model_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::node {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

model::ModelSpec ThreeLayers() {
  model::ModelSpec spec;
  spec.layers = 3;
  spec.experts = 64;
  spec.experts_per_token = 8;
  spec.feed_forward = {model::FeedForwardKind::kDense, model::FeedForwardKind::kMoe,
                       model::FeedForwardKind::kMoe};
  return spec;
}

class MoeMetricsTest : public ::testing::Test {
 protected:
  // The page has the series `name` with `value`.
  void ExpectSeries(const std::string& name, const std::string& value) const {
    EXPECT_THAT(registry_.Render(), HasSubstr(absl::StrCat("\n", name, " ", value, "\n")));
  }

  telemetry::Registry registry_;
  MoeMetrics metrics_{registry_, ThreeLayers(), *moe::ParsePolicy("lynx:alpha=0.5,beta=none")};
};

TEST_F(MoeMetricsTest, EverySeriesIsThereFromTheStart) {
  for (const char* series : {
           "lynx_moe_plans_total{phase=\"prefill\",result=\"applied\"}",
           "lynx_moe_plans_total{phase=\"mixed\",result=\"bypassed\"}",
           "lynx_moe_active_experts_count{stage=\"before\"}",
           "lynx_moe_active_experts_count{stage=\"after\"}",
           "lynx_moe_layer_plans_total{layer=\"1\"}",
           "lynx_moe_layer_active_experts_total{layer=\"2\",stage=\"after\"}",
           "lynx_moe_layer_remapped_assignments_total{layer=\"2\"}",
           "lynx_moe_assignments_total{phase=\"decode\"}",
           "lynx_moe_remapped_assignments_total{phase=\"prefill\"}",
           "lynx_moe_expert_weight_read_bytes_total",
           "lynx_moe_expert_weight_saved_bytes_total",
           "lynx_moe_plan_duration_seconds_count",
           "lynx_moe_kept_gate_mass_ratio_count",
       }) {
    ExpectSeries(series, "0");
  }
  for (const char* reason : {"phase", "batch_of_one", "k_equals_n", "policy_off", "guard",
                             "opt_out", "quality_backoff", "bad_logits"}) {
    ExpectSeries(absl::StrCat("lynx_moe_bypass_total{reason=\"", reason, "\"}"), "0");
  }
  EXPECT_THAT(registry_.Render(), Not(HasSubstr("layer=\"0\""))) << "a dense layer makes no plans";
}

TEST_F(MoeMetricsTest, NamesThePolicyInForce) {
  ExpectSeries(R"(lynx_moe_policy_info{alpha="0.5",beta="none",floor="0",)"
               R"(parameters="alpha=0.5,beta=none,floor=0",policy="lynx"})",
               "1");
  telemetry::Registry other;
  MoeMetrics exact(other, ThreeLayers(), moe::Policy{});
  EXPECT_THAT(other.Render(),
              HasSubstr(R"(lynx_moe_policy_info{alpha="-",beta="-",floor="-",parameters="-",)"
                        R"(policy="exact"} 1)"));
  telemetry::Registry third;
  MoeMetrics oea(third, ThreeLayers(), moe::Policy{.kind = moe::Policy::Kind::kOea, .k0 = 4});
  EXPECT_THAT(third.Render(), HasSubstr(R"(parameters="k0=4",policy="oea"} 1)"));
}

TEST_F(MoeMetricsTest, CountsADecodeStep) {
  model::StepStats stats;
  stats.phase = moe::Phase::kDecode;
  stats.decode_rows = 16;
  stats.expert_bytes_read = 7000;
  stats.expert_bytes_saved = 3000;
  stats.plans = {{},
                 {.experts_exact = 40,
                  .experts = 30,
                  .rows = 16,
                  .assignments = 128,
                  .remapped = 9,
                  .bypass = moe::Bypass::kNone,
                  .kept_mass_mean = 0.97f,
                  .kept_mass_min = 0.75f},
                 {.experts_exact = 20,
                  .experts = 20,
                  .rows = 16,
                  .assignments = 128,
                  .bypass = moe::Bypass::kGuard}};
  stats.plan_seconds = {0, 4e-6f, 3e-5f};
  metrics_.OnStep(stats);

  ExpectSeries("lynx_moe_plans_total{phase=\"decode\",result=\"applied\"}", "1");
  ExpectSeries("lynx_moe_plans_total{phase=\"decode\",result=\"bypassed\"}", "1");
  ExpectSeries("lynx_moe_bypass_total{reason=\"guard\"}", "1");
  ExpectSeries("lynx_moe_active_experts_sum{stage=\"before\"}", "60");
  ExpectSeries("lynx_moe_active_experts_sum{stage=\"after\"}", "50");
  ExpectSeries("lynx_moe_layer_plans_total{layer=\"1\"}", "1");
  ExpectSeries("lynx_moe_layer_active_experts_total{layer=\"1\",stage=\"before\"}", "40");
  ExpectSeries("lynx_moe_layer_active_experts_total{layer=\"1\",stage=\"after\"}", "30");
  ExpectSeries("lynx_moe_layer_active_experts_total{layer=\"2\",stage=\"after\"}", "20");
  ExpectSeries("lynx_moe_layer_remapped_assignments_total{layer=\"1\"}", "9");
  ExpectSeries("lynx_moe_layer_remapped_assignments_total{layer=\"2\"}", "0");
  ExpectSeries("lynx_moe_assignments_total{phase=\"decode\"}", "256");
  ExpectSeries("lynx_moe_assignments_total{phase=\"prefill\"}", "0");
  ExpectSeries("lynx_moe_remapped_assignments_total{phase=\"decode\"}", "9");
  ExpectSeries("lynx_moe_expert_weight_read_bytes_total", "7000");
  ExpectSeries("lynx_moe_expert_weight_saved_bytes_total", "3000");
  ExpectSeries("lynx_moe_plan_duration_seconds_count", "2");
  ExpectSeries("lynx_moe_plan_duration_seconds_bucket{le=\"5e-06\"}", "1");
  ExpectSeries("lynx_moe_kept_gate_mass_ratio_count", "1");
  ExpectSeries("lynx_moe_kept_gate_mass_ratio_sum", "0.75");
}

TEST_F(MoeMetricsTest, ImbalanceIsOneUntilRanksShareTheExperts) {
  const std::string before = "lynx_moe_rank_imbalance_ratio{stage=\"before\"}";
  const std::string after = "lynx_moe_rank_imbalance_ratio{stage=\"after\"}";
  model::StepStats stats;
  stats.plan_seconds = {0, 0, 0};
  stats.plans = {{}, {.experts_exact = 40, .experts = 30}, {.experts_exact = 20, .experts = 20}};
  metrics_.OnStep(stats);
  ExpectSeries(before, "1");
  ExpectSeries(after, "1");

  stats.plans = {
      {},
      {.experts_exact = 40, .experts = 30, .ranks = 4, .rank_experts_exact = 15, .rank_experts = 8},
      {.experts_exact = 20, .experts = 20, .ranks = 4, .rank_experts_exact = 9, .rank_experts = 7}};
  metrics_.OnStep(stats);
  ExpectSeries(before, "1.6");  // 4 * (15 + 9) / 60
  ExpectSeries(after, "1.2");
}

TEST_F(MoeMetricsTest, RowsOfAMixedStepCountByTheirOwnPhase) {
  model::StepStats stats;
  stats.phase = moe::Phase::kMixed;
  stats.decode_rows = 3;
  stats.prefill_rows = 10;
  // The decode rows are pruned to half; the others keep their 8.
  const moe::PlanStats plan = {.experts_exact = 50,
                               .experts = 45,
                               .rows = 13,
                               .assignments = 92,
                               .bypass = moe::Bypass::kNone};
  stats.plans = {{}, plan, plan};
  stats.plan_seconds = {0, 0, 0};
  metrics_.OnStep(stats);
  ExpectSeries("lynx_moe_plans_total{phase=\"mixed\",result=\"applied\"}", "2");
  ExpectSeries("lynx_moe_assignments_total{phase=\"prefill\"}", "160");
  ExpectSeries("lynx_moe_assignments_total{phase=\"decode\"}", "24");
}

TEST_F(MoeMetricsTest, SaysWhyAPlanWasLeftExact) {
  model::StepStats stats;
  stats.decode_rows = 2;
  stats.plan_seconds = {0, 0, 0};
  const auto step = [&](moe::Bypass bypass, bool backed_off = false) {
    const moe::PlanStats plan = {.experts_exact = 9, .experts = 9, .rows = 2, .bypass = bypass};
    stats.plans = {{}, plan, plan};
    metrics_.OnStep(stats, backed_off);
  };
  step(moe::Bypass::kPhase);
  step(moe::Bypass::kBatchOfOne);
  step(moe::Bypass::kKEqualsN);
  step(moe::Bypass::kPolicyOff);
  step(moe::Bypass::kPolicyOff, /*backed_off=*/true);
  step(moe::Bypass::kOptOut);
  step(moe::Bypass::kBadLogits);
  for (const char* reason : {"phase", "batch_of_one", "k_equals_n", "policy_off", "quality_backoff",
                             "opt_out", "bad_logits"}) {
    ExpectSeries(absl::StrCat("lynx_moe_bypass_total{reason=\"", reason, "\"}"), "2");
  }
  ExpectSeries("lynx_moe_bypass_total{reason=\"guard\"}", "0");
  ExpectSeries("lynx_moe_plans_total{phase=\"decode\",result=\"bypassed\"}", "14");
}

// A step given up at a layer has fewer plans than the model layers.
TEST_F(MoeMetricsTest, CountsWhatAnAbandonedStepHasDone) {
  model::StepStats stats;
  stats.decode_rows = 1;
  stats.plans = {{}, {.experts_exact = 8, .experts = 8, .rows = 1, .assignments = 8}};
  stats.plan_seconds = {0, 0};
  metrics_.OnStep(stats);
  ExpectSeries("lynx_moe_layer_plans_total{layer=\"1\"}", "1");
  ExpectSeries("lynx_moe_layer_plans_total{layer=\"2\"}", "0");
}

}  // namespace
}  // namespace lynx::node
