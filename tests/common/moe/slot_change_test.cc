#include "common/moe/slot_change.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "common/moe/expert_history.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::moe {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The cost of the fullest rank, copies of an expert sharing its cost.
double Fullest(const ExpertSlots& slots, const std::vector<double>& cost) {
  const ExpertPlacement placement = PlacementOf(slots, static_cast<int32_t>(cost.size()));
  std::vector<double> load(slots.size());
  for (size_t e = 0; e < cost.size(); ++e) {
    const std::vector<int32_t>& ranks = placement.ranks_of[e];
    for (const int32_t r : ranks) {
      load[static_cast<size_t>(r)] += cost[e] / static_cast<double>(ranks.size());
    }
  }
  return std::ranges::max(load);
}

TEST(ImproveSlotsTest, KeepsEveryExpertAndItsBounds) {
  int changed = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto ranks = static_cast<int32_t>(2 + random() % 4);
    const auto experts = static_cast<int32_t>(ranks * (1 + random() % 5) + random() % 3);
    ExpertSlots slots(static_cast<size_t>(ranks));
    for (int32_t e = 0; e < experts; ++e) slots[static_cast<size_t>(e % ranks)].push_back(e);
    for (std::vector<int32_t>& rank : slots) {
      for (uint64_t spare = random() % 3; spare > 0; --spare) {
        const auto e = static_cast<int32_t>(random() % static_cast<uint64_t>(experts));
        if (std::ranges::find(rank, e) == rank.end()) rank.push_back(e);
      }
    }
    std::vector<double> cost(static_cast<size_t>(experts));
    for (double& c : cost) c = static_cast<double>(random() % 1000) / 1000;
    const auto most_new = static_cast<int32_t>(random() % 4);

    const ExpertSlots better = ImproveSlots(slots, cost, most_new);
    ASSERT_EQ(better.size(), slots.size());
    for (const std::vector<int32_t>& held : PlacementOf(better, experts).ranks_of) {
      EXPECT_FALSE(held.empty());
    }
    for (size_t r = 0; r < slots.size(); ++r) {
      EXPECT_EQ(better[r].size(), slots[r].size());
      EXPECT_EQ(std::set(better[r].begin(), better[r].end()).size(), better[r].size());
      EXPECT_LE(CountNew({slots[r]}, {better[r]}), most_new);
    }
    EXPECT_LE(Fullest(better, cost), Fullest(slots, cost) + 1e-9);
    changed += better != slots ? 1 : 0;
  }
  EXPECT_GT(changed, 200);
}

TEST(ImproveSlotsTest, CopiesTheHotAndExchangesTheRest) {
  // The copy of expert 4 on rank 0 is of no use; 2 is what rank 1 groans under.
  const ExpertSlots slots = {{0, 1, 4}, {2, 3, 5}, {4, 6, 7}};
  const std::vector<double> hot = {0.1, 0.1, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1};
  EXPECT_THAT(ImproveSlots(slots, hot, 1)[0], ElementsAre(0, 1, 2));
  // No copies: the two that are needed most part.
  const ExpertSlots pairs = {{0, 1}, {2, 3}};
  const ExpertSlots parted = ImproveSlots(pairs, std::vector<double>{0.9, 0.9, 0.1, 0.1}, 1);
  EXPECT_EQ(CountNew(pairs, parted), 2);
  EXPECT_THAT(Fullest(parted, {0.9, 0.9, 0.1, 0.1}), DoubleNear(1.0, 1e-12));
  EXPECT_EQ(ImproveSlots(pairs, std::vector<double>{0.9, 0.9, 0.1, 0.1}, 0), pairs);
  // As even as can be: nothing moves for nothing.
  EXPECT_EQ(ImproveSlots(slots, std::vector<double>(8, 0.5), 4), slots);
}

TEST(MeanMostTest, IsOfTheBestChoiceInEachStep) {
  const ExpertSlots slots = {{0, 1}, {1, 2}};
  EXPECT_EQ(MeanMost(slots, 3, std::vector<std::vector<int32_t>>{{0, 1, 2}, {0, 1}, {2}}),
            (2 + 1 + 1) / 3.0);
}

TEST(PlanSlotsTest, ChangesOnlyWhereTheLastStepsWouldHaveGained) {
  const ExpertSlots slots = {{0, 1}, {2, 3}};
  ExpertHistory::Layer history{.steps = 4, .share = {1, 1, 0.5, 0}, .recent = {{0, 1}, {0, 1, 2}}};
  const SlotPlan plan = PlanSlots(slots, history, 1, 0.25);
  ASSERT_THAT(plan.changes, SizeIs(1));
  EXPECT_EQ(CountNew(slots, plan.changes[0]), 2);
  EXPECT_EQ(plan.before, 2);
  EXPECT_EQ(plan.after, 1.5);
  EXPECT_THAT(PlanSlots(slots, history, 1, 0.26).changes, IsEmpty());
  // Long ago it would have; not any more.
  history.recent = {{0, 2}, {1, 2}};
  EXPECT_THAT(PlanSlots(slots, history, 1, 0.01).changes, IsEmpty());
  // Nothing is lost, and nothing gained.
  history.recent = {{0}, {1}};
  EXPECT_THAT(PlanSlots(slots, history, 1, 0).changes, IsEmpty());
  history.share = {0.5, 0.5, 0.5, 0.5};
  EXPECT_THAT(PlanSlots(slots, history, 1, 0).changes, IsEmpty());
}

TEST(PlanSlotsTest, GetsThereByFewExpertsAtATime) {
  // Everything that is needed is on one rank.
  const ExpertSlots slots = {{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}};
  const ExpertHistory::Layer history{
      .steps = 1, .share = {1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0}, .recent = {{0, 1, 2, 3, 4, 5}}};
  const SlotPlan plan = PlanSlots(slots, history, 2, 0.5);
  ASSERT_THAT(plan.changes, SizeIs(2));
  EXPECT_EQ(CountNew(slots, plan.changes[0]), 4);
  EXPECT_EQ(CountNew(plan.changes[0], plan.changes[1]), 2);
  EXPECT_EQ(plan.after, 3);
}

TEST(ExpertHistoryTest, OldStepsCountLess) {
  ExpertHistory history(2, 3);
  for (int i = 0; i < 8; ++i) history.Record(1, std::vector<int32_t>{0, 2});
  history.Age(0.25);
  history.Record(1, std::vector<int32_t>{1});
  history.Record(1, std::vector<int32_t>{1, 2});
  const ExpertHistory::Layer layer = history.Get(1);
  EXPECT_EQ(layer.steps, 4);
  EXPECT_THAT(layer.share, ElementsAre(0.5, 0.5, 0.75));
  EXPECT_THAT(layer.recent, SizeIs(10));
  EXPECT_EQ(history.Get(0).steps, 0);
  EXPECT_THAT(history.Get(0).recent, SizeIs(0));
}

TEST(ExpertHistoryTest, RemembersTheLastSteps) {
  ExpertHistory history(1, 2);
  history.Record(0, std::vector<int32_t>{0});
  for (size_t i = 0; i < ExpertHistory::kRecent; ++i) history.Record(0, std::vector<int32_t>{1});
  EXPECT_THAT(history.Get(0).recent, SizeIs(ExpertHistory::kRecent));
  EXPECT_THAT(history.Get(0).recent, ::testing::Each(ElementsAre(1)));
}

}  // namespace
}  // namespace lynx::moe
