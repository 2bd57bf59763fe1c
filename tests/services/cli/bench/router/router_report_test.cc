#include "services/cli/bench/router/router_report.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RouterReport Report() {
  return {.streams = 5000,
          .rate = 5,
          .batch = 64,
          .notes = {"not all of it"},
          .router = {.tokens = 100'000,
                     .seconds = 4,
                     .cpu_seconds = 2,
                     .bytes_per_token = 233,
                     .latency_ms_p50 = 1.5,
                     .latency_ms_p99 = 6},
          .echo = {.tokens = 100'000,
                   .seconds = 4,
                   .cpu_seconds = 1,
                   .bytes_per_token = 233,
                   .latency_ms_p50 = 1,
                   .latency_ms_p99 = 3}};
}

TEST(RouterReportTest, JsonHasTheKeysThatScriptsRead) {
  std::ostringstream out;
  PrintRouterJson(Report(), out);
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_EQ(json["mode"], "router");
  EXPECT_EQ(json["streams"], 5000);
  EXPECT_EQ(json["notes"][0], "not all of it");
  EXPECT_EQ(json["router"]["tokens_per_s"], 25'000);
  EXPECT_EQ(json["router"]["tokens_per_cpu_s"], 50'000);
  EXPECT_EQ(json["echo"]["tokens_per_cpu_s"], 100'000);
  EXPECT_EQ(json["p50_ratio"], 1.5);
  EXPECT_EQ(json["p99_ratio"], 2);
}

TEST(RouterReportTest, TheTableHasBothProcesses) {
  std::ostringstream out;
  PrintRouterTable(Report(), out);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("5000 open streams, 5 tokens/s each"),
                               HasSubstr("note: not all of it"), HasSubstr("50000"),
                               HasSubstr("1.50 of the p50, 2.00 of the p99")));
}

}  // namespace
}  // namespace lynx::cli
