#include "services/decode/scheduler/replica_choice.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::decode {
namespace {

using ::testing::Eq;
using ::testing::Optional;

std::optional<size_t> Choose(const std::vector<ReplicaOffer>& offers) {
  return ChooseReplica(offers);
}

TEST(ReplicaChoiceTest, TakesTheOneWithTheMostBlocksFreeAfterThePrompt) {
  EXPECT_THAT(Choose({{.free_blocks = 50, .taken_blocks = 10},
                      {.free_blocks = 60, .taken_blocks = 10},
                      {.free_blocks = 55, .taken_blocks = 10}}),
              Optional(1u));
}

TEST(ReplicaChoiceTest, APrefixCountsForWhatItSaves) {
  // Ten blocks are there, in use by others: five are taken. The other has twelve more free.
  const ReplicaOffer holds = {.free_blocks = 40, .taken_blocks = 5, .held_blocks = 10};
  EXPECT_THAT(Choose({{.free_blocks = 52, .taken_blocks = 15}, holds}), Optional(1u));
  // The other has more free on top than the prefix has blocks.
  EXPECT_THAT(Choose({{.free_blocks = 61, .taken_blocks = 15}, holds}), Optional(0u));
  // Of two that hold one, the longer counts.
  EXPECT_THAT(Choose({{.free_blocks = 40, .taken_blocks = 10, .held_blocks = 5}, holds}),
              Optional(1u));
}

TEST(ReplicaChoiceTest, OfEqualOnesTakesTheOneWithTheFewestSequencesThenTheFirst) {
  const auto offer = [](int32_t sequences) {
    return ReplicaOffer{.free_blocks = 20, .taken_blocks = 3, .sequences = sequences};
  };
  EXPECT_THAT(Choose({offer(2), offer(1), offer(1)}), Optional(1u));
  EXPECT_THAT(Choose({offer(2), offer(2)}), Optional(0u));
}

TEST(ReplicaChoiceTest, OneWithoutRoomIsNotTakenWhateverItHolds) {
  EXPECT_THAT(Choose({{.free_blocks = 4, .taken_blocks = 5, .held_blocks = 100},
                      {.free_blocks = 5, .taken_blocks = 5, .sequences = 9}}),
              Optional(1u));
  EXPECT_THAT(Choose({{.free_blocks = -3, .taken_blocks = 0}}), Eq(std::nullopt));
  EXPECT_THAT(Choose({{.free_blocks = 4, .taken_blocks = 5}, {}}), Optional(1u));
}

}  // namespace
}  // namespace lynx::decode
