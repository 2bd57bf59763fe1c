#include "services/cli/eval/results.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/eval/report.h"

namespace lynx::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

moe::PlanStats Plan(int32_t exact, int32_t experts, float mean, float min,
                    moe::Bypass bypass = moe::Bypass::kNone) {
  moe::PlanStats plan;
  plan.experts_exact = exact;
  plan.experts = experts;
  plan.kept_mass_mean = mean;
  plan.kept_mass_min = min;
  plan.bypass = bypass;
  return plan;
}

TEST(RoutingTallyTest, AveragesOverMoeLayersAndStepsAndKeepsTheWorstRow) {
  RoutingTally tally;
  const moe::PlanStats dense;
  tally.Add(std::vector{dense, Plan(10, 6, 0.8f, 0.5f), Plan(20, 20, 1, 1, moe::Bypass::kGuard)});
  tally.Add(std::vector{dense, Plan(12, 8, 0.6f, 0.25f), Plan(22, 10, 0.9f, 0.75f)});
  EXPECT_EQ(tally.steps(), 2);
  EXPECT_DOUBLE_EQ(tally.experts_exact(), 16);
  EXPECT_DOUBLE_EQ(tally.experts(), 11);
  EXPECT_NEAR(tally.kept_mass_mean(), (0.8 + 1 + 0.6 + 0.9) / 4, 1e-7);
  EXPECT_EQ(tally.kept_mass_min(), 0.25);
  EXPECT_DOUBLE_EQ(tally.guarded_share(), 0.25);
  ASSERT_THAT(tally.layers(), SizeIs(2));
  EXPECT_EQ(tally.layers()[0].layer, 1);
  EXPECT_DOUBLE_EQ(tally.layers()[0].experts, 7);
  EXPECT_DOUBLE_EQ(tally.layers()[1].experts_exact, 21);
}

// Two domains of two windows, two tasks of two items and one.
class ResultsTest : public ::testing::Test {
 protected:
  ResultsTest() {
    texts_.domains = {"prose", "code"};
    texts_.windows = {{0, {}}, {1, {}}, {0, {}}, {1, {}}};
    tasks_.tasks = {"sum", "sort"};
    tasks_.items = {{0, {}, "1"}, {1, {}, "2"}, {0, {}, "3"}};
    exact_tasks_.correct = {1, 1, 0};
  }

  TextRun Text(int32_t experts, double delta) {
    TextRun run;
    run.routing.Add(std::vector{Plan(100, experts, 1, 1)});
    run.windows = {
        {1, 1 + delta, delta, 1}, {2, 2, 0, 1}, {3, 3 + delta, delta, 0.5}, {4, 4, 0, 1}};
    return run;
  }
  TaskRun Task(int32_t experts, std::vector<uint8_t> correct) {
    TaskRun run;
    run.routing.Add(std::vector{Plan(50, experts, 1, 1)});
    run.correct = std::move(correct);
    return run;
  }
  std::vector<EvalResult> Summary() {
    const std::vector<EvalPolicy> policies = {
        {"exact", "exact", {}}, {"a:1", "a", {}}, {"a:2", "a", {}}, {"b:1", "b", {}}};
    const std::vector<TextRun> texts = {Text(100, 0), Text(40, 0.4), Text(80, 0.2), Text(95, 0.1)};
    const std::vector<TaskRun> tasks = {Task(50, {1, 1, 0}), Task(20, {0, 0, 0}),
                                        Task(40, {1, 1, 1}), Task(49, {1, 1, 0})};
    return CollectResults(16, policies, texts_, texts, tasks_, tasks, exact_tasks_);
  }

  TextSet texts_;
  TaskSet tasks_;
  TaskRun exact_tasks_;
};

TEST_F(ResultsTest, ScoresAreMeansOverWindowsAndItems) {
  const EvalResult result = Summary()[1];
  EXPECT_DOUBLE_EQ(result.text->nll_exact.mean, 2.5);
  EXPECT_DOUBLE_EQ(result.text->delta.mean, 0.2);
  EXPECT_NEAR(result.text->delta.error, std::sqrt(4 * 0.04 / 3 / 4), 1e-12)
      << "of the paired differences, not of the NLL";
  EXPECT_DOUBLE_EQ(result.text->agreement.mean, 0.875);
  ASSERT_THAT(result.domains, SizeIs(2));
  EXPECT_EQ(result.domains[0].name, "prose");
  EXPECT_DOUBLE_EQ(result.domains[0].delta.mean, 0.4);
  EXPECT_DOUBLE_EQ(result.domains[1].delta.mean, 0);
  ASSERT_THAT(result.tasks, SizeIs(2));
  EXPECT_DOUBLE_EQ(result.tasks[0].exact.mean, 0.5);
  EXPECT_DOUBLE_EQ(result.tasks[0].policy.mean, 0);
  EXPECT_DOUBLE_EQ(result.tasks[0].delta.mean, -0.5);
  EXPECT_DOUBLE_EQ(result.task_delta.mean, -0.75) << "each task counts the same";
}

TEST_F(ResultsTest, FamiliesAreComparedAtEqualCounts) {
  const auto matched = MatchFamilies(Summary(), std::vector{0.2, 0.4, 0.7});
  ASSERT_THAT(matched, SizeIs(1)) << "a single setting reaches no cut, exact is no family";
  EXPECT_EQ(matched[0].family, "a");
  EXPECT_DOUBLE_EQ(matched[0].scores[0].nll_delta->mean, 0.1);
  EXPECT_NEAR(matched[0].scores[1].nll_delta->mean, 0.15, 1e-12) << "half-way from 40 to 80";
  EXPECT_FALSE(matched[0].scores[2].nll_delta.has_value()) << "30 is below its smallest";
  EXPECT_DOUBLE_EQ(matched[0].scores[0].task_delta->mean, 0.25);
}

TEST_F(ResultsTest, JsonHoldsWhatReadersExpect) {
  const auto json = nlohmann::json::parse(ToJson({.model = "m"}, Summary()));
  ASSERT_EQ(json["results"].size(), 4u);
  const auto& result = json["results"][1];
  EXPECT_EQ(result["policy"], "a:1");
  EXPECT_EQ(result["batch"], 16);
  EXPECT_EQ(result["experts_exact"], 100);
  EXPECT_EQ(result["experts"], 40);
  for (const char* key : {"kept_mass_mean", "kept_mass_min", "nll_exact", "nll", "nll_delta_error",
                          "kl", "top1_agreement"}) {
    EXPECT_TRUE(result[key].is_number()) << key;
  }
  EXPECT_EQ(result["domains"]["code"]["nll"], 3);
  EXPECT_EQ(result["tasks"]["sum"]["exact"], 0.5);
  EXPECT_EQ(result["tasks"]["sum"]["policy"], 0);
  EXPECT_EQ(result["layers"][0]["experts"], 40);
}

TEST_F(ResultsTest, TablesShowEveryPolicyAndFamily) {
  std::ostringstream out;
  PrintTables({.context = 3, .positions = 2, .windows = 4, .task_items = 3}, Summary(), out);
  EXPECT_THAT(out.str(), HasSubstr("batch 16"));
  EXPECT_THAT(out.str(), HasSubstr("a:1       40.0  60%"));
  EXPECT_THAT(out.str(), HasSubstr("+0.2000 (0.1155)"));
  EXPECT_THAT(out.str(), HasSubstr("at a cut of the text's experts"));
}

}  // namespace
}  // namespace lynx::cli
