#include "services/cli/bench/transfer/ucx_perftest.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::cli {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;

TEST(UcxPerftestTest, ReadsTheOverallBandwidth) {
  const auto rate = ReadUcxPerftest(
      "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n"
      "357,2.417,920.885,920.885,4343.65,4343.50,1086,1086\n");
  ASSERT_THAT(rate, IsOk());
  EXPECT_EQ(*rate, 4343.5 * (1 << 20));
}

TEST(UcxPerftestTest, SaysWhatWasThereInsteadOfAFigure) {
  for (const char* text : {"", "no such test\n", "a,overall_bw\n", "a,overall_bw\n1\n",
                           "a,overall_bw\n1,fast\n", "a,overall_bw\n1,0\n"}) {
    EXPECT_THAT(ReadUcxPerftest(text), StatusIs(absl::StatusCode::kUnavailable)) << text;
  }
  EXPECT_THAT(std::string(ReadUcxPerftest("no such test\n").status().message()),
              HasSubstr("no such test"));
}

}  // namespace
}  // namespace lynx::cli
