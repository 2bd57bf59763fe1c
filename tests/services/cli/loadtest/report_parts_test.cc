#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/loadtest/progress.h"
#include "services/cli/loadtest/svg_chart.h"

namespace lynx::loadtest {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

ProgressState At(absl::Duration elapsed, int64_t ended, int64_t failed = 0) {
  return {.elapsed = elapsed,
          .sent = ended + 3,
          .ended = ended,
          .failed = failed,
          .open = 3,
          .output_tokens = 64 * ended,
          .share = 0.5};
}

TEST(ProgressTest, ABarIsDrawnOverOnATerminal) {
  std::ostringstream out;
  Progress progress(out, /*terminal=*/true, "load");
  progress.Show(At(absl::Seconds(1), 10));
  progress.Show(At(absl::Seconds(1.1), 11));
  EXPECT_EQ(
      out.str(),
      "\r\x1b[Kload [############............] 1s  13 sent, 10 done, 3 open, 10.0 requests/s, "
      "640 tokens/s");
  progress.Finish();
  EXPECT_THAT(out.str(), ::testing::EndsWith("\r\x1b[K"));
}

TEST(ProgressTest, ElsewhereThereIsALineNowAndThen) {
  std::ostringstream out;
  Progress progress(out, /*terminal=*/false, "load");
  progress.Show(At(absl::Seconds(9), 1));
  EXPECT_EQ(out.str(), "");
  progress.Show(At(absl::Seconds(10), 20));
  progress.Show(At(absl::Seconds(20), 50, 2));
  EXPECT_EQ(out.str(),
            "load: 10s  23 sent, 20 done, 3 open, 2.0 requests/s, 128 tokens/s\n"
            "load: 20s  53 sent, 50 done, 3 open, 3.0 requests/s, 192 tokens/s, 2 failed\n");
  progress.Finish();
  EXPECT_THAT(out.str(), ::testing::EndsWith("2 failed\n"));
}

TEST(ProgressTest, TheBarStaysWithinItsBounds) {
  EXPECT_EQ(ProgressBar(-1, 4), "[....]");
  EXPECT_EQ(ProgressBar(0.5, 4), "[##..]");
  EXPECT_EQ(ProgressBar(7, 4), "[####]");
}

Chart MakeChart() {
  return {.title = "a <b>",
          .x_label = "x & y",
          .y_label = "ms",
          .series = {{.name = "\"one\"", .points = {{1, 10}, {2, 20}, {3, 0}}}}};
}

TEST(SvgChartTest, PointsLieWhereTheirValuesSay) {
  const std::string svg = ToSvg(MakeChart());
  // Linear in both: the middle x is in the middle, the largest y on top, 0 on the floor.
  EXPECT_THAT(svg, HasSubstr("points=\"64.0,109.0 266.0,12.0 468.0,206.0 \""));
}

TEST(SvgChartTest, TextIsEscaped) {
  const std::string svg = ToSvg(MakeChart());
  EXPECT_THAT(svg, HasSubstr("a &lt;b&gt;"));
  EXPECT_THAT(svg, HasSubstr("x &amp; y"));
  EXPECT_THAT(svg, HasSubstr("&quot;one&quot;"));
  EXPECT_THAT(svg, Not(HasSubstr("<b>")));
}

TEST(SvgChartTest, WhatCannotBeDrawnIsLeftOut) {
  Chart chart = MakeChart();
  chart.log_x = true;
  chart.series[0].points = {{0, 1},
                            {std::numeric_limits<double>::quiet_NaN(), 1},
                            {1, std::numeric_limits<double>::infinity()},
                            {10, 5}};
  const std::string svg = ToSvg(chart);
  EXPECT_THAT(svg, HasSubstr("points=\"64.0,12.0 \""));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  chart.series[0].points.clear();
  EXPECT_THAT(ToSvg(chart), IsEmpty());
}

TEST(SvgChartTest, ALimitFarOverTheRestIsNotDrawn) {
  Chart chart = MakeChart();
  chart.y_line = 30;
  EXPECT_THAT(ToSvg(chart), HasSubstr("class=\"limit\""));
  chart.y_line = 2000;
  EXPECT_EQ(ToSvg(chart), ToSvg(MakeChart()));
}

TEST(SvgChartTest, HistogramsTakeAnyValues) {
  EXPECT_THAT(HistogramSvg("t", "x", {}, 10), IsEmpty());
  EXPECT_THAT(HistogramSvg("t", "x", {std::numeric_limits<double>::infinity()}, 10), IsEmpty());
  for (const std::vector<double>& values :
       {std::vector<double>{5}, {0, 0, 0}, {1, 2, 3, 1e12}, {-1, 1}}) {
    const std::string svg = HistogramSvg("t", "x", values, 10);
    EXPECT_THAT(svg, HasSubstr("<rect"));
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
  }
}

}  // namespace
}  // namespace lynx::loadtest
