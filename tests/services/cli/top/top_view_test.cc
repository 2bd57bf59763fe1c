#include "services/cli/top/top_view.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::cli {
namespace {

using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

NodeLine Prefill() {
  return {.endpoint = "10.0.0.1:1", .role = "prefill", .state = "ready", .incarnation = "1"};
}
NodeLine Decode() {
  return {.endpoint = "10.0.0.2:1", .role = "decode", .state = "ready", .incarnation = "2"};
}

TEST(TopViewTest, ShowsWhatHappenedBetween) {
  ClusterSample before;
  before.at = absl::UnixEpoch();
  before.metrics = MetricsPage::Parse("lynx_router_requests_total{outcome=\"ok\"} 100\n");
  before.nodes = {Prefill(), Decode()};
  ClusterSample now = before;
  now.at += absl::Seconds(10);
  now.metrics = MetricsPage::Parse(
      "lynx_router_requests_total{outcome=\"ok\"} 125\n"
      "lynx_router_requests_total{outcome=\"rejected\"} 500\n"
      "lynx_router_inflight_requests{model_name=\"m\"} 17\n"
      "lynx_router_queued_requests 3\n"
      "lynx_router_output_tokens_total{model_name=\"m\"} 5000\n"
      "lynx_router_time_to_first_token_seconds_bucket{le=\"0.5\"} 10\n"
      "lynx_router_time_to_first_token_seconds_bucket{le=\"+Inf\"} 10\n");
  now.nodes[0].queued_prompt_tokens = 1200;
  now.nodes[0].waiting = 2;
  now.nodes[0].kv_blocks = 64;
  now.nodes[0].kv_blocks_free = 64;
  now.nodes[1].running = 16;
  now.nodes[1].kv_blocks = 100;
  now.nodes[1].kv_blocks_free = 25;
  now.nodes[1].step_base_seconds = 0.016;
  now.nodes[1].step_row_seconds = 0.001;
  now.nodes[1].tokens_total = 5000;
  now.nodes[1].moe_plans_total = 100;
  now.nodes[1].moe_experts_exact_total = 5200;
  now.nodes[1].moe_experts_total = 3125;
  EXPECT_EQ(TopView(before, now),
            "requests  17 running, 3 sequences queued; a second: 2.5 ok, 50 rejected, "
            "0 server_error, 0 stream_error, 0 cancelled\n"
            "tokens    a second: 0 of prompts, 500 of answers\n"
            "latency   TTFT p50 250 ms  p95 475 ms  p99 495 ms   TPOT p50 -  p95 -  p99 -\n"
            "\n"
            "ROLE     NODE        STATE  RUNNING  WAITING  PROMPT TOKENS   KV  TOKENS/S     STEP  "
            "    EXPERTS\n"
            "prefill  10.0.0.1:1  ready        0        2           1200   0%         0        -  "
            "          -\n"
            "decode   10.0.0.2:1  ready       16        0              0  75%       500  32.0 ms  "
            "52.0 > 31.2\n");
}

TEST(TopViewTest, ANodeThatStartedAnewHasNoRatesYet) {
  ClusterSample before;
  before.at = absl::UnixEpoch();
  before.nodes = {Decode()};
  before.nodes[0].tokens_total = 9000;
  ClusterSample now = before;
  now.at += absl::Seconds(1);
  now.nodes[0].incarnation = "3";
  now.nodes[0].tokens_total = 1;
  EXPECT_THAT(TopView(before, now), Not(HasSubstr("-8999")));
}

TEST(TopViewTest, SaysWhyANodeDoesNotServe) {
  ClusterSample sample;
  sample.at = absl::UnixEpoch();
  sample.nodes = {
      {.endpoint = "10.0.0.3:1", .role = "decode", .state = "gone", .detail = "no answer for 5s"}};
  EXPECT_THAT(TopView(sample, sample), HasSubstr("\n10.0.0.3:1: no answer for 5s\n"));
}

TEST(NodesPageParseTest, RefusesWhatIsNone) {
  for (const char* body : {"", "x", "[]", "{}", R"({"nodes":3})", R"({"nodes":[3]})", "<html>"}) {
    EXPECT_THAT(ParseNodesPage(body), StatusIs(absl::StatusCode::kInvalidArgument)) << body;
  }
  const auto odd = ParseNodesPage(R"({"nodes":[{"endpoint":3,"running":"many"}]})");
  ASSERT_TRUE(odd.ok());
  EXPECT_EQ((*odd)[0].endpoint, "");
  EXPECT_EQ((*odd)[0].running, 0);
}

}  // namespace
}  // namespace lynx::cli
