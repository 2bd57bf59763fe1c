#include "gtest/gtest.h"
#include "tests/support/fleet_trial.h"
#include "tests/support/test_size.h"

// Whole fleets under load, with clients that leave at any moment: every session ends once, with the
// answer that the model gives alone, and everything returns to rest.
namespace lynx {
namespace {

using ::lynx::testing::FleetOptions;
using ::lynx::testing::FleetRequest;
using ::lynx::testing::FleetResult;
using ::lynx::testing::MakeConversations;
using ::lynx::testing::RunFleet;

FleetOptions SmallFleet(uint64_t seed) {
  return {.cluster = {.routers = 2,
                      .prefill = 3,
                      .decode = 4,
                      .kv_blocks = 160,
                      .step_rows = 256,
                      .max_batch = 16},
          .cancel_share = 0.2,
          .seed = seed};
}

TEST(FleetTest, EveryRequestEndsOnceWithItsOwnAnswer) {
  const int seeds = testing::ForTestSize(3, 20, 100);
  for (int seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const std::vector<FleetRequest> trace = MakeConversations(
        {.seed = static_cast<uint64_t>(seed), .requests = 300, .requests_per_second = 60});
    const FleetResult result = RunFleet(SmallFleet(static_cast<uint64_t>(seed)), trace);
    EXPECT_EQ(result.failed, 0);
    EXPECT_EQ(result.wrong, 0);
    EXPECT_EQ(result.refused, 0);
    EXPECT_GT(result.cancelled, 10);
    EXPECT_EQ(result.finished + result.cancelled, 300);
    EXPECT_TRUE(result.idle);
  }
}

TEST(FleetTest, ARunIsAPureFunctionOfItsSeed) {
  const std::vector<FleetRequest> trace =
      MakeConversations({.seed = 7, .requests = 200, .requests_per_second = 40});
  const FleetResult once = RunFleet(SmallFleet(7), trace);
  const FleetResult again = RunFleet(SmallFleet(7), trace);
  EXPECT_EQ(once.digest, again.digest);
  EXPECT_NE(RunFleet(SmallFleet(8), trace).digest, once.digest);
}

}  // namespace
}  // namespace lynx
