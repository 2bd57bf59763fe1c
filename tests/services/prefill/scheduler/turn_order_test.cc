#include "services/prefill/scheduler/turn_order.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::prefill {
namespace {

using ::testing::ElementsAre;

const absl::Time kNow = absl::FromUnixSeconds(1000);
// A step of 100 rows takes a tenth of a second.
const StepTime kStepTime = {.per_row = absl::Milliseconds(1), .max_rows = 100};

absl::Time In(double seconds) { return kNow + absl::Seconds(seconds); }

TEST(TurnOrderTest, TheShortestComesFirstAndAmongEqualsTheOldest) {
  const std::vector<Turn> turns = {{.arrival = 1, .rows_left = 500},
                                   {.arrival = 2, .rows_left = 20},
                                   {.arrival = 3, .rows_left = 400},
                                   {.arrival = 4, .rows_left = 20}};
  EXPECT_THAT(TurnOrder(turns, kStepTime, kNow), ElementsAre(1, 3, 2, 0));
}

TEST(TurnOrderTest, ThoseWhoseDeadlineIsNearComeBeforeShorterOnes) {
  const std::vector<Turn> turns = {
      {.arrival = 1, .rows_left = 20, .deadline = In(60)},
      {.arrival = 2, .rows_left = 500, .deadline = In(1.0)},  // Takes half a second alone.
      {.arrival = 3, .rows_left = 500, .deadline = In(0.7)},
      {.arrival = 4, .rows_left = 500, .deadline = In(1.2)}};  // Can wait a little longer.
  EXPECT_THAT(TurnOrder(turns, kStepTime, kNow), ElementsAre(2, 1, 0, 3));
}

TEST(TurnOrderTest, ThoseThatWillMissTheirDeadlineAnywayComeLast) {
  const std::vector<Turn> turns = {{.arrival = 1, .rows_left = 500, .deadline = In(0.4)},
                                   {.arrival = 2, .rows_left = 9, .deadline = In(-1)},
                                   {.arrival = 3, .rows_left = 900}};
  EXPECT_THAT(TurnOrder(turns, kStepTime, kNow), ElementsAre(2, 0, 1));
}

TEST(TurnOrderTest, DeadlinesCountOnceStepsHaveBeenMeasured) {
  const std::vector<Turn> turns = {{.arrival = 1, .rows_left = 500, .deadline = In(0.7)},
                                   {.arrival = 2, .rows_left = 20}};
  EXPECT_THAT(TurnOrder(turns, {}, kNow), ElementsAre(1, 0));
}

TEST(TurnOrderTest, TheLowerPriorityComesFirstThenTheTenantThatHadLess) {
  const std::vector<Turn> turns = {
      {.arrival = 1, .priority = 1, .rows_left = 2, .deadline = In(0.003)},
      {.arrival = 2, .priority = 0, .place = 10, .rows_left = 5},
      {.arrival = 3, .priority = 0, .place = 3, .rows_left = 50},
      {.arrival = 4, .priority = 0, .place = 3, .rows_left = 40}};
  EXPECT_THAT(TurnOrder(turns, kStepTime, kNow), ElementsAre(3, 2, 1, 0));
}

TEST(TurnOrderTest, NobodyIsNobody) { EXPECT_TRUE(TurnOrder({}, kStepTime, kNow).empty()); }

}  // namespace
}  // namespace lynx::prefill
