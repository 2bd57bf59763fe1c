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

TEST(RegistryTest, AliasesHaveTheirSeriesSumsAndLabels) {
  Registry registry;
  const double bounds[] = {1, 2};
  const auto ended = [&](const char* model, const char* reason, double count) {
    registry.AddCounter("lynx_test_ended_total", "Ended.", {{"model_name", model}, {"why", reason}})
        .Increment(count);
  };
  ended("m", "stop", 3);
  ended("m", "handoff", 5);
  ended("other", "stop", 7);
  registry.AddGauge("lynx_test_blocks", "Blocks.").Set(1e7);
  for (const char* kind : {"a", "b"}) {
    Histogram histogram =
        registry.AddHistogram("lynx_test_seconds", "Time.", bounds, {{"kind", kind}});
    histogram.Observe(1.5);
    if (kind[0] == 'a') histogram.Observe(9);
  }
  const MetricAlias aliases[] = {
      {.name = "x:ended_total",
       .help = "All.",
       .source = "lynx_test_ended_total",
       .label = "why",
       .values = {"stop", "length"},
       .kept_as = "reason"},
      {.name = "x:sum_total", .help = "Sum.", .source = "lynx_test_ended_total"},
      {.name = "x:info",
       .help = "Info.",
       .source = "lynx_test_blocks",
       .values_as_labels = {{"blocks", "lynx_test_blocks"}}},
      {.name = "x:seconds", .help = "Time.", .source = "lynx_test_seconds"},
      {.name = "x:absent", .help = "-", .source = "lynx_test_absent"},
  };
  EXPECT_EQ(registry.RenderAliases(aliases, {{"model_name", "own"}, {"engine", "0"}}),
            R"(# HELP x:ended_total All.
# TYPE x:ended_total counter
x:ended_total{engine="0",model_name="m",reason="stop"} 3
x:ended_total{engine="0",model_name="other",reason="stop"} 7
# HELP x:sum_total Sum.
# TYPE x:sum_total counter
x:sum_total{engine="0",model_name="m"} 8
x:sum_total{engine="0",model_name="other"} 7
# HELP x:info Info.
# TYPE x:info gauge
x:info{engine="0",model_name="own",blocks="10000000"} 1
# HELP x:seconds Time.
# TYPE x:seconds histogram
x:seconds_count{engine="0",model_name="own"} 3
x:seconds_sum{engine="0",model_name="own"} 12
x:seconds_bucket{engine="0",model_name="own",le="1"} 0
x:seconds_bucket{engine="0",model_name="own",le="2"} 2
x:seconds_bucket{engine="0",model_name="own",le="+Inf"} 3
)");
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
