#include "services/router/membership/nodes_page.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "common/base/clock.h"
#include "gtest/gtest.h"

namespace lynx::router {
namespace {

using nlohmann::json;

TEST(NodesPageTest, TellsWhatNodesToldAndWhoIsMissing) {
  ManualClock clock;
  NodeTable table({});
  table.Add("a:1", proto::ROLE_DECODE);
  table.Add("b:1", proto::ROLE_PREFILL);
  proto::NodeStatus status;
  status.set_role(proto::ROLE_DECODE);
  status.set_state(proto::NODE_STATE_READY);
  status.set_model_name("m\xff");
  status.set_compatibility_hash("h");
  status.set_numeric_class("cpu-amx");
  status.set_kv_blocks_total(10);
  status.set_kv_blocks_free(4);
  status.set_running_sequences(3);
  status.mutable_step_time()->set_base_seconds(0.5);
  status.mutable_totals()->set_tokens(99);
  status.mutable_totals()->set_plans(7);
  std::vector<NodeTable::Event> events;
  ASSERT_TRUE(table.OnStatus("a:1", 0xabc, status, clock.Now(), events));
  clock.Advance(absl::Milliseconds(250));

  const json page = json::parse(NodesPage(table, clock.Now()));
  ASSERT_EQ(page["nodes"].size(), 2u);
  const json& node = page["nodes"][0];
  EXPECT_EQ(node["endpoint"], "a:1");
  EXPECT_EQ(node["role"], "decode");
  EXPECT_EQ(node["state"], "ready");
  EXPECT_EQ(node["incarnation"], "0000000000000abc");
  EXPECT_EQ(node["heard_seconds_ago"], 0.25);
  EXPECT_EQ(node["model"], "m\ufffd");
  EXPECT_EQ(node["numeric_class"], "cpu-amx");
  EXPECT_EQ(node["kv_blocks"], 10);
  EXPECT_EQ(node["kv_blocks_free"], 4);
  EXPECT_EQ(node["running"], 3);
  EXPECT_EQ(node["step_base_seconds"], 0.5);
  EXPECT_EQ(node["tokens_total"], 99);
  EXPECT_EQ(node["moe_plans_total"], 7);
  EXPECT_EQ(page["nodes"][1]["state"], "gone");
  EXPECT_FALSE(page["nodes"][1].contains("incarnation"));
}

}  // namespace
}  // namespace lynx::router
