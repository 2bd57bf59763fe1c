#include "services/router/placement/local_prefill.h"

#include "gtest/gtest.h"
#include "services/router/placement/least_load.h"
#include "services/router/placement/predicted_time.h"
#include "services/router/placement/prefix_aware.h"
#include "services/router/placement/random_choice.h"
#include "services/router/placement/round_robin.h"
#include "services/router/placement/slo_aware.h"

namespace lynx::router {
namespace {

constexpr StepTime kSteps = {
    .base = absl::Milliseconds(10), .per_row = absl::Milliseconds(1), .max_rows = 64};

DecodeCandidate Decode(int64_t load, int64_t held_tokens = 0) {
  return {.node = 1,
          .load = load,
          .step_time = kSteps,
          .held_tokens = held_tokens,
          .prompt_rows = 32,
          .queued_tokens = 0};
}
PrefillCandidate Prefill(int64_t queued_tokens, int64_t held_tokens = 0) {
  return {.node = 2,
          .queued_tokens = queued_tokens,
          .step_time = {.base = absl::Milliseconds(10),
                        .per_row = absl::Milliseconds(1),
                        .max_rows = 256},
          .held_tokens = held_tokens};
}

TEST(LocalPrefillTest, TheFirstTokenComesAfterWhatWaitsAndBesideWhatDecodes) {
  const PlacementRequest request = {.prompt_tokens = 48};
  EXPECT_EQ(FirstTokenTime(Decode(0), request), absl::Milliseconds(2 * 10 + 48));
  EXPECT_EQ(FirstTokenTime(Decode(5), request), absl::Milliseconds(2 * 10 + 48 + 2 * 5));
  EXPECT_EQ(FirstTokenTime(Decode(5, /*held_tokens=*/32), request),
            absl::Milliseconds(10 + 16 + 5));
  DecodeCandidate busy = Decode(0);
  busy.queued_tokens = 100;
  EXPECT_EQ(FirstTokenTime(busy, request), absl::Milliseconds(5 * 10 + 148));
  busy.prompt_rows = 0;
  EXPECT_EQ(FirstTokenTime(busy, request), absl::InfiniteDuration());
}

TEST(LocalPrefillTest, APromptGoesToAnIdlePrefillNode) {
  EXPECT_FALSE(CheaperLocally(Decode(0), Prefill(0), {.prompt_tokens = 100}));
  EXPECT_FALSE(CheaperLocally(Decode(8), Prefill(0), {.prompt_tokens = 100}));
}

TEST(LocalPrefillTest, AShortPromptDoesNotWaitForALongQueue) {
  const PlacementRequest request = {.prompt_tokens = 16};
  // Here 10 + 16 + 4 ms, and 4 sequences wait 16 ms each: 94 ms in all. There 10 ms a step of 256
  // rows and 16 ms, after what waits.
  EXPECT_FALSE(CheaperLocally(Decode(4), Prefill(67), request));
  EXPECT_TRUE(CheaperLocally(Decode(4), Prefill(69), request));
  EXPECT_FALSE(CheaperLocally(Decode(8), Prefill(69), request)) << "more sequences wait for it";
}

TEST(LocalPrefillTest, APromptThatTheDecodeNodeMostlyHoldsIsComputedThere) {
  const PlacementRequest request = {.prompt_tokens = 2000};
  EXPECT_TRUE(CheaperLocally(Decode(8, /*held_tokens=*/1984), Prefill(0, 1600), request));
  EXPECT_FALSE(CheaperLocally(Decode(8, /*held_tokens=*/1600), Prefill(0, 1600), request));
}

TEST(LocalPrefillTest, ASlowTransferCountsForTheDecodeNode) {
  PlacementRequest request = {.prompt_tokens = 16};
  EXPECT_FALSE(CheaperLocally(Decode(1), Prefill(0), request));
  request.transfer_per_token = absl::Milliseconds(2);
  EXPECT_TRUE(CheaperLocally(Decode(1), Prefill(0), request));
}

TEST(LocalPrefillTest, NeverWhereTheBatchIsFullOrStepsWouldPassTheLimit) {
  PlacementRequest request = {.prompt_tokens = 16};
  const PrefillCandidate late = Prefill(100'000);
  EXPECT_TRUE(CheaperLocally(Decode(63), late, request));
  EXPECT_FALSE(CheaperLocally(Decode(64), late, request));
  request.tpot_limit = absl::Milliseconds(30);
  EXPECT_TRUE(CheaperLocally(Decode(4), late, request)) << "10 + 4 + 16 ms";
  EXPECT_FALSE(CheaperLocally(Decode(5), late, request));
}

TEST(LocalPrefillTest, NeverBesideSequencesThatAreRemapped) {
  DecodeCandidate decode = Decode(8, /*held_tokens=*/96);
  EXPECT_TRUE(CheaperLocally(decode, Prefill(1000), {.prompt_tokens = 100}));
  decode.remaps = true;
  EXPECT_FALSE(CheaperLocally(decode, Prefill(1000), {.prompt_tokens = 100}));
  decode.load = 0;
  EXPECT_TRUE(CheaperLocally(decode, Prefill(1000), {.prompt_tokens = 100}));
}

TEST(LocalPrefillTest, NotBeforeBothNodesHaveSaidWhatTheirStepsCost) {
  const PlacementRequest request = {.prompt_tokens = 16};
  DecodeCandidate decode = Decode(0);
  PrefillCandidate prefill = Prefill(1000);
  EXPECT_TRUE(CheaperLocally(decode, prefill, request));
  prefill.step_time = {};
  EXPECT_FALSE(CheaperLocally(decode, prefill, request));
  prefill = Prefill(1000);
  decode.step_time = {};
  EXPECT_FALSE(CheaperLocally(decode, prefill, request));
}

TEST(LocalPrefillTest, PoliciesThatLookAtNoLoadDoNotWeighIt) {
  EXPECT_TRUE(LeastLoad().weighs_local_prefill());
  EXPECT_TRUE(PrefixAware().weighs_local_prefill());
  EXPECT_TRUE(SloAware().weighs_local_prefill());
  EXPECT_FALSE(RoundRobin().weighs_local_prefill());
  EXPECT_FALSE(RandomChoice(1).weighs_local_prefill());
}

TEST(LocalPrefillTest, WithoutPrefillNodesPrefixAwarePlacementWeighsWhatIsToBeComputed) {
  PrefixAware policy;
  std::vector<DecodeCandidate> nodes = {Decode(5, /*held_tokens=*/1984), Decode(3)};
  nodes[1].node = 2;
  for (DecodeCandidate& node : nodes) node.free_blocks = 1000;
  PlacementRequest request = {.prompt_tokens = 2000, .blocks_now = 126, .answer_tokens = 64};
  EXPECT_EQ(policy.PickDecode(nodes, request), 2u) << "shorter steps";
  request.local_only = true;
  EXPECT_EQ(policy.PickDecode(nodes, request), 1u) << "2000 rows fewer";
}

}  // namespace
}  // namespace lynx::router
