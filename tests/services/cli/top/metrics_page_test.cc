#include "services/cli/top/metrics_page.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::cli {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(MetricsPageTest, SumsTheSeriesThatHaveTheLabels) {
  const MetricsPage page = MetricsPage::Parse(
      "# HELP requests_total Requests.\n# TYPE requests_total counter\n"
      "requests_total{code=\"200\",model=\"a\"} 3\n"
      "requests_total{code=\"429\",model=\"a\"} 4\n"
      "requests_total{code=\"200\",model=\"b\"} 5 1700000000000\n"
      "up 1\n");
  EXPECT_EQ(page.Sum("requests_total"), 12);
  EXPECT_EQ(page.Sum("requests_total", {{"code", "200"}}), 8);
  EXPECT_EQ(page.Sum("requests_total", {{"code", "200"}, {"model", "b"}}), 5);
  EXPECT_EQ(page.Sum("requests_total", {{"code", "500"}}), 0);
  EXPECT_EQ(page.Sum("up"), 1);
  EXPECT_EQ(page.Sum("down"), 0);
}

TEST(MetricsPageTest, ReadsEscapedLabelValues) {
  const MetricsPage page =
      MetricsPage::Parse("m{a=\"x\\\"},b=\\\"y\",c=\"\\\\\\n\"} 7\nm{a=\"other\"} 1\n");
  EXPECT_EQ(page.Sum("m", {{"a", "x\"},b=\"y"}, {"c", "\\\n"}}), 7);
}

TEST(MetricsPageTest, PassesOverWhatIsNoMetric) {
  for (const char* text :
       {"", "\n\n", "word", "m ", "m{", "m{a", "m{a=\"", "m{a=\"b\"", "m{a=\"b\"}", "m{a=\"b\"} ",
        "m{a=\"b\"} x", "m{=} 1", "m{} ", "m{a=\"\\", "{"}) {
    EXPECT_EQ(MetricsPage::Parse(text).Sum("m"), 0) << text;
  }
  EXPECT_EQ(MetricsPage::Parse("m{ 1\nm 2").Sum("m"), 2);
}

MetricsPage Histogram(int upto_1, int upto_2, int upto_4, int all) {
  std::string text;
  const auto bucket = [&](const std::string& bound, int count) {
    text += "h_bucket{le=\"" + bound + "\",model=\"m\"} " + std::to_string(count) + "\n";
  };
  bucket("1", upto_1);
  bucket("2", upto_2);
  bucket("4", upto_4);
  bucket("+Inf", all);
  return MetricsPage::Parse(text + "h_bucket{model=\"no bound\"} 5\n");
}

TEST(MetricsPageTest, AddsUpTheBucketsOfAllSeries) {
  EXPECT_THAT(Histogram(0, 0, 0, 0).Buckets("none"), IsEmpty());
  const MetricsPage page = MetricsPage::Parse(
      "h_bucket{le=\"1\",m=\"a\"} 1\nh_bucket{le=\"1\",m=\"b\"} 2\nh_bucket{le=\"5\",m=\"a\"} 9\n");
  EXPECT_THAT(page.Buckets("h"), ElementsAre(Pair(1, 3), Pair(5, 9)));
}

TEST(MetricsPageTest, QuantilesAreOfWhatCameBetween) {
  const MetricsPage before = Histogram(100, 100, 100, 100);
  EXPECT_LT(QuantileBetween(before, before, "h", 0.5), 0);
  EXPECT_LT(QuantileBetween(before, before, "none", 0.5), 0);
  // Ten in (1, 2] and ten in (2, 4].
  const MetricsPage after = Histogram(100, 110, 120, 120);
  EXPECT_THAT(QuantileBetween(before, after, "h", 0.25), DoubleNear(1.5, 1e-9));
  EXPECT_THAT(QuantileBetween(before, after, "h", 0.5), DoubleNear(2, 1e-9));
  EXPECT_THAT(QuantileBetween(before, after, "h", 0.95), DoubleNear(3.8, 1e-9));
  // Nothing is known of those beyond the last bound but that they are.
  EXPECT_EQ(QuantileBetween(before, Histogram(100, 100, 100, 101), "h", 0.5), 4);
}

}  // namespace
}  // namespace lynx::cli
