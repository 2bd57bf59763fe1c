#include "common/telemetry/metrics.h"

#include "common/telemetry/buckets.h"
#include "common/telemetry/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::telemetry {
namespace {

using ::testing::HasSubstr;

TEST(LogTest, LevelsHaveTheirNames) {
  EXPECT_EQ(LogLevelOf("debug"), LogLevel::kDebug);
  EXPECT_EQ(LogLevelOf("info"), LogLevel::kInfo);
  EXPECT_EQ(LogLevelOf("warning"), LogLevel::kWarning);
  EXPECT_EQ(LogLevelOf("error"), LogLevel::kError);
  EXPECT_DEATH(LogLevelOf("loud"), "loud");
}

TEST(RegistryTest, EverySeriesReadsZeroBeforeItsFirstEvent) {
  Registry registry;
  registry.AddCounter("lynx_test_events_total", "Events.", {{"kind", "a"}});
  Counter b = registry.AddCounter("lynx_test_events_total", "Events.", {{"kind", "b"}});
  b.Increment();
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("lynx_test_events_total{kind=\"a\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("lynx_test_events_total{kind=\"b\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("process_resident_memory_bytes "));
}

TEST(RegistryTest, TheSameNameAndLabelsAreOneSeries) {
  Registry registry;
  Gauge first = registry.AddGauge("lynx_test_level", "Level.");
  Gauge second = registry.AddGauge("lynx_test_level", "Level.");
  first.Set(2);
  second.Add(3);
  EXPECT_THAT(registry.Render(), HasSubstr("lynx_test_level 5\n"));
}

TEST(RegistryTest, LabelValuesThatNeedItAreEscaped) {
  Registry registry;
  registry.AddGauge("lynx_test_info", "Info.", {{"path", "a\"b\\c\nd"}});
  EXPECT_THAT(registry.Render(), HasSubstr("path=\"a\\\"b\\\\c\\nd\""));
}

TEST(RegistryTest, HistogramBoundsIncludeTheUsualObjectives) {
  Registry registry;
  Histogram h = registry.AddHistogram("lynx_test_seconds", "Latency.", kTtftSeconds);
  h.Observe(1.5);
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("lynx_test_seconds_bucket{le=\"1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("lynx_test_seconds_bucket{le=\"2\"} 1\n"));
}

TEST(LogTest, ALineIsOneJsonObjectWhateverTheBytes) {
  ::testing::internal::CaptureStderr();
  LogInfo("odd \"bytes\" \xFF", {{"k", "line\nbreak"}});
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(line, HasSubstr("\"message\":\"odd \\\"bytes\\\" \xEF\xBF\xBD\""));
  EXPECT_THAT(line, HasSubstr("\"k\":\"line\\nbreak\"}\n"));
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
}

}  // namespace
}  // namespace lynx::telemetry
