#include "services/cli/eval/pareto_plot.h"

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace lynx::cli {
namespace {

using ::lynx::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::Not;

EvalResult Point(int32_t batch, std::string family, int32_t experts, double delta) {
  EvalResult result;
  result.policy = family;
  result.family = std::move(family);
  result.batch = batch;
  result.text = TextScore{};
  result.text->delta = {.mean = delta, .error = 0.001};
  moe::PlanStats plan;
  plan.experts_exact = 60;
  plan.experts = experts;
  result.text_routing.Add({&plan, 1});
  return result;
}

std::vector<EvalResult> Points() {
  return {Point(8, "exact", 60, 0), Point(8, "it's", 30, 0.02), Point(8, "it's", 40, 0.03),
          Point(16, "exact", 60, 0), Point(16, "oea", 50, -0.001)};
}

TEST(ParetoPlotTest, AScriptHasAPanelForEachBatchAndTheFrontOfEach) {
  const std::string script = ParetoScript(Points(), "x.svg");
  EXPECT_THAT(script, HasSubstr("multiplot layout 2,1"));
  EXPECT_THAT(script, HasSubstr("$front_8 << EOD\n30.0000 0.020000\n60.0000 0.000000\nEOD"));
  EXPECT_THAT(script, HasSubstr("$front_16 << EOD\n50.0000 -0.001000\nEOD"));
  EXPECT_THAT(script, HasSubstr("'it''s'"));
}

TEST(ParetoPlotTest, DrawsAPictureThatBrowsersOpenAndLeavesNothingElse) {
  if (!CheckPlotting().ok()) GTEST_SKIP() << CheckPlotting();
  TempDir dir;
  const std::filesystem::path svg = dir.path() / "it's.svg";
  const absl::Status status = DrawPareto(Points(), svg);
  ASSERT_TRUE(status.ok()) << status;
  const auto content = ReadFile(svg, 1 << 24);
  ASSERT_TRUE(content.ok());
  EXPECT_THAT(*content, HasSubstr("<svg"));
  EXPECT_THAT(*content, HasSubstr("</svg>"));
  EXPECT_THAT(*content, HasSubstr("Batch of 16"));
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    files.push_back(entry.path().filename());
  }
  EXPECT_THAT(files, ::testing::ElementsAre("it's.svg"));
}

TEST(ParetoPlotTest, WithoutGnuplotItSaysWhatToInstall) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nonexistent", 1);
  const absl::Status status = CheckPlotting();
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("gnuplot-nox"));
}

TEST(ParetoPlotTest, APlaceThatCannotBeWrittenIsAnError) {
  if (!CheckPlotting().ok()) GTEST_SKIP() << CheckPlotting();
  EXPECT_FALSE(DrawPareto(Points(), "/nonexistent/x.svg").ok());
}

}  // namespace
}  // namespace lynx::cli
