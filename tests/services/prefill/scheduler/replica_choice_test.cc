#include "services/prefill/scheduler/replica_choice.h"

#include <vector>

#include "gtest/gtest.h"

namespace lynx::prefill {
namespace {

size_t Choose(const std::vector<ReplicaOffer>& offers) { return ChooseReplica(offers); }

TEST(PrefillReplicaChoiceTest, TakesTheOneThatIsThroughWithTheFewestTokens) {
  EXPECT_EQ(Choose({{.queued_tokens = 100}, {.queued_tokens = 90}, {.queued_tokens = 95}}), 1u);
  // A prefix need not be computed, so its holder may have as many more queued.
  EXPECT_EQ(Choose({{.queued_tokens = 100, .held_tokens = 16}, {.queued_tokens = 90}}), 0u);
  EXPECT_EQ(Choose({{.queued_tokens = 100, .held_tokens = 16}, {.queued_tokens = 80}}), 1u);
}

TEST(PrefillReplicaChoiceTest, OfEqualOnesTakesTheOneWithTheMostFreeBlocksThenTheFirst) {
  EXPECT_EQ(Choose({{.free_blocks = 3}, {.free_blocks = 5}, {.free_blocks = 5}}), 1u);
  EXPECT_EQ(Choose({{.queued_tokens = 1, .free_blocks = 9}, {}}), 1u);
  EXPECT_EQ(Choose({{}, {}}), 0u);
}

}  // namespace
}  // namespace lynx::prefill
