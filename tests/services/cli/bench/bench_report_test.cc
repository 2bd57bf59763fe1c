#include "services/cli/bench/bench_report.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

BenchReport Report() {
  return {.mode = "decode",
          .model = "some-shape",
          .layers = 3,
          .threads = 2,
          .notes = {"not all of it"},
          .read_buffer_bytes = 64 << 20,
          .bandwidth_gb_s = 12.5,
          .results = {{.policy = "exact", .batch = 16, .context = 512, .step_ms_p50 = 4},
                      {.policy = "lynx:alpha=3",
                       .batch = 16,
                       .context = 512,
                       .step_ms_p50 = 2.5,
                       .step_ms_p99 = 3,
                       .tokens_per_s = 6400,
                       .bytes_per_step = 1e8,
                       .bandwidth_share = 0.875,
                       .roof_share = 0.9,
                       .arithmetic_bound = true,
                       .experts = 21.5,
                       .against_exact = BenchResult::Ratio{.time = 0.625, .bytes = 0.6}}}};
}

TEST(BenchReportTest, JsonHasTheKeysThatScriptsRead) {
  std::ostringstream out;
  PrintJson(Report(), out);
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_EQ(json["bandwidth_gb_s"], 12.5);
  ASSERT_EQ(json["results"].size(), 2u);
  const auto& row = json["results"][1];
  EXPECT_EQ(row["policy"], "lynx:alpha=3");
  EXPECT_EQ(row["batch"], 16);
  EXPECT_EQ(row["context"], 512);
  EXPECT_EQ(row["step_ms_p50"], 2.5);
  EXPECT_EQ(row["step_ms_p99"], 3);
  EXPECT_EQ(row["tokens_per_s"], 6400);
  EXPECT_EQ(row["bytes_per_step"], 1e8);
  EXPECT_EQ(row["bandwidth_share"], 0.875);
  EXPECT_EQ(row["experts"], 21.5);
  EXPECT_EQ(row["against_exact"]["time"], 0.625);
  EXPECT_FALSE(json["results"][0].contains("against_exact"));
}

TEST(BenchReportTest, APathThatIsNotUtf8LeavesTheJsonValid) {
  BenchReport report = Report();
  report.model = "/m\xff";
  std::ostringstream out;
  PrintJson(report, out);
  EXPECT_EQ(nlohmann::json::parse(out.str())["model"], "/m\uFFFD");
}

TEST(BenchReportTest, TableSaysWhatMattersBesideTheNumbers) {
  std::ostringstream out;
  PrintTable(Report(), out);
  EXPECT_THAT(out.str(),
              AllOf(HasSubstr("some-shape, 3 layers"), HasSubstr("12.50 GB/s"),
                    HasSubstr("note: not all of it"), HasSubstr("87.5%"), HasSubstr("90.0%*"),
                    HasSubstr("0.625 of the time, 0.600 of the bytes")));
}

TEST(BenchReportTest, TableSaysWhetherKernelsReadWhatThePlansSay) {
  BenchReport report = Report();
  std::ostringstream equal;
  PrintTable(report, equal);
  EXPECT_THAT(equal.str(), HasSubstr("read exactly those bytes"));
  report.results[0].streamed_share = 1.25;
  std::ostringstream unequal;
  PrintTable(report, unequal);
  EXPECT_THAT(unequal.str(), AllOf(Not(HasSubstr("exactly")),
                                   HasSubstr("exact, batch 16, context 512: kernels read 1.25")));
}

TEST(BenchReportTest, WithoutResultsThereIsNoTable) {
  std::ostringstream out;
  PrintTable({.mode = "memory", .threads = 2, .bandwidth_gb_s = 10}, out);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("memory"), Not(HasSubstr("policy"))));
}

}  // namespace
}  // namespace lynx::cli
