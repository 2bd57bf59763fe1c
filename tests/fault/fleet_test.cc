#include <memory>

#include "gtest/gtest.h"
#include "services/router/placement/expert_affinity.h"
#include "services/router/placement/least_load.h"
#include "services/router/placement/prefix_aware.h"
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

std::vector<FleetRequest> Trace(uint64_t seed) {
  return MakeConversations({.seed = seed, .requests = 300, .requests_per_second = 60});
}

void ExpectEachEndsOnce(const FleetResult& result) {
  EXPECT_EQ(result.failed, 0);
  EXPECT_EQ(result.wrong, 0);
  EXPECT_EQ(result.refused, 0);
  EXPECT_GT(result.cancelled, 10);
  EXPECT_EQ(result.finished + result.cancelled, 300);
  EXPECT_TRUE(result.idle);
}

TEST(FleetTest, EveryRequestEndsOnceWithItsOwnAnswer) {
  const int seeds = testing::ForTestSize(3, 20, 100);
  for (int seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const auto number = static_cast<uint64_t>(seed);
    ExpectEachEndsOnce(RunFleet(SmallFleet(number), Trace(number)));
  }
}

// Prompts are computed on their decode node where that costs less, and where there is no other.
TEST(FleetTest, PromptsThatDecodeNodesComputeEndOnceToo) {
  const int seeds = testing::ForTestSize(3, 20, 100);
  int64_t beside_prefill = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const auto number = static_cast<uint64_t>(seed);
    FleetOptions options = SmallFleet(number);
    options.cluster.prompt_rows = 1 << (seed % 9);
    options.cluster.prefill = seed % 3;
    options.cluster.swap_blocks = seed % 2 == 0 ? 0 : 40;
    if (seed % 4 != 0) {
      options.cluster.make_placement = [] { return std::make_unique<router::PrefixAware>(); };
    }
    const FleetResult result = RunFleet(options, Trace(number));
    ExpectEachEndsOnce(result);
    if (seed % 3 != 0) {
      beside_prefill += result.local_prefills;
    } else {
      EXPECT_GE(result.local_prefills, result.finished);
    }
  }
  EXPECT_GT(beside_prefill, 0);
}

// As many nodes as a large site has, hard pressed: preempted sequences are computed again or copied
// back, tenants share.
TEST(FleetTest, ALargeFleetEndsEveryRequestOnceAndReplaysASeed) {
  constexpr int32_t kRequests = 600;
  const auto run = [](uint64_t seed) {
    FleetOptions options = {.cluster = {.routers = 3,
                                        .prefill = 32,
                                        .decode = 64,
                                        .kv_blocks = 110,
                                        .step_rows = 256,
                                        .max_batch = 16,
                                        .swap_blocks = seed % 2 == 0 ? 0 : 60},
                            .cancel_share = 0.2,
                            .tenants = 5,
                            .seed = seed};
    options.cluster.make_placement = [] { return std::make_unique<router::PrefixAware>(); };
    return RunFleet(
        options,
        MakeConversations(
            {.seed = seed, .requests = kRequests, .requests_per_second = 900, .burstiness = 0.3}));
  };
  int64_t preemptions = 0;
  int64_t copied = 0;
  const int seeds = testing::ForTestSize(1, 2, 100);
  for (int seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const FleetResult result = run(static_cast<uint64_t>(seed));
    EXPECT_EQ(result.failed, 0);
    EXPECT_EQ(result.wrong, 0);
    EXPECT_EQ(result.refused, 0);
    EXPECT_GT(result.cancelled, 20);
    EXPECT_EQ(result.finished + result.cancelled, kRequests);
    EXPECT_TRUE(result.idle);
    preemptions += result.preemptions;
    copied += result.copied_bytes;
    if (seed == 1) {
      EXPECT_EQ(run(1).digest, result.digest);
    }
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(copied, 0);
}

// Conversations that go on from the model's own answers, placed where their beginnings are.
TEST(FleetTest, PrefixAwarePlacementSharesMoreAndChangesNoAnswer) {
  const uint64_t seed = 3;
  const std::vector<FleetRequest> trace =
      MakeConversations({.seed = seed,
                         .requests = testing::ForTestSize(200, 400, 4000),
                         .requests_per_second = 40,
                         .answer = testing::FleetAnswer});
  const auto run = [&](auto make, bool prefix_cache) {
    FleetOptions options = SmallFleet(seed);
    options.cluster.prefix_cache = prefix_cache;
    options.cluster.make_placement = make;
    FleetResult result = RunFleet(options, trace);
    EXPECT_EQ(result.failed, 0);
    EXPECT_EQ(result.wrong, 0);
    EXPECT_TRUE(result.idle);
    return result;
  };
  const auto least_load = [] { return std::make_unique<router::LeastLoad>(); };
  const auto prefix_aware = [] { return std::make_unique<router::PrefixAware>(); };
  const FleetResult none = run(prefix_aware, false);
  EXPECT_EQ(none.cached_tokens, 0);
  EXPECT_EQ(none.held_tokens, 0);
  const FleetResult blind = run(least_load, true);
  const FleetResult aware = run(prefix_aware, true);
  EXPECT_GT(blind.cached_tokens, 0);
  EXPECT_GT(aware.cached_tokens, blind.cached_tokens);
  EXPECT_GT(aware.held_tokens, blind.held_tokens);
}

TEST(FleetTest, ExpertAffinityPlacementEndsEveryRequestOnceAndReplaysASeed) {
  const auto run = [](uint64_t seed) {
    FleetOptions options = SmallFleet(seed);
    options.cluster.make_placement = [] { return std::make_unique<router::ExpertAffinity>(); };
    return RunFleet(options, Trace(seed));
  };
  const int seeds = testing::ForTestSize(3, 20, 100);
  for (int seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const FleetResult result = run(static_cast<uint64_t>(seed));
    ExpectEachEndsOnce(result);
    if (seed == 1) {
      EXPECT_EQ(run(1).digest, result.digest);
    }
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
