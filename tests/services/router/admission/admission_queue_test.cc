#include "services/router/admission/admission_queue.h"

#include <vector>

#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::router {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;

class AdmissionQueueTest : public ::testing::Test {
 protected:
  AdmissionQueue::Ticket Enter(AdmissionQueue& queue, uint64_t id) {
    AdmissionQueue::Ticket ticket = 0;
    EXPECT_THAT(queue.Enter(id, clock_.Now(), ticket), IsOk());
    return ticket;
  }
  std::vector<uint64_t> Order(const AdmissionQueue& queue) {
    std::vector<uint64_t> ids;
    for (const auto& [ticket, id] : queue.queue()) ids.push_back(id);
    return ids;
  }
  ManualClock clock_;
};

TEST_F(AdmissionQueueTest, IsBoundedAndSaysSo) {
  AdmissionQueue queue({.max_in_flight = 1, .max_queued = 2});
  queue.Dispatch(Enter(queue, 1), clock_.Now());
  Enter(queue, 2);
  Enter(queue, 3);
  AdmissionQueue::Ticket ticket = 0;
  EXPECT_THAT(queue.Enter(4, clock_.Now(), ticket),
              StatusIs(absl::StatusCode::kResourceExhausted, ::testing::HasSubstr("2 requests")));
  EXPECT_EQ(queue.queued(), 2u);
  EXPECT_EQ(queue.in_flight(), 1u);
}

TEST_F(AdmissionQueueTest, NoWaitingRoomStillLetsThroughWhoNeedNotWait) {
  AdmissionQueue queue({.max_in_flight = 1, .max_queued = 0});
  queue.Dispatch(Enter(queue, 1), clock_.Now());
  AdmissionQueue::Ticket ticket = 0;
  EXPECT_THAT(queue.Enter(2, clock_.Now(), ticket), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(AdmissionQueueTest, WhoComesBackTakesTheOldPlaceAndNeedsNoRoom) {
  AdmissionQueue queue({.max_in_flight = 2, .max_queued = 2});
  const auto first = Enter(queue, 1);
  queue.Dispatch(first, clock_.Now());
  const auto second = Enter(queue, 2);
  queue.Dispatch(second, clock_.Now());
  Enter(queue, 3);
  Enter(queue, 4);
  queue.Requeue(second, 2);
  queue.Requeue(first, 1);
  EXPECT_THAT(Order(queue), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(queue.in_flight(), 0u);
}

TEST_F(AdmissionQueueTest, LeavingWorksFromEverywhere) {
  AdmissionQueue queue({.max_in_flight = 2, .max_queued = 2});
  const auto placed = Enter(queue, 1);
  queue.Dispatch(placed, clock_.Now());
  const auto waiting = Enter(queue, 2);
  queue.Leave(waiting);
  queue.Leave(placed);
  EXPECT_EQ(queue.queued(), 0u);
  EXPECT_EQ(queue.in_flight(), 0u);
}

TEST_F(AdmissionQueueTest, RetryAfterFollowsThePaceWithinBounds) {
  AdmissionQueue queue({.max_in_flight = 1000, .max_queued = 1000});
  EXPECT_EQ(queue.RetryAfter(), absl::Seconds(1));
  std::vector<AdmissionQueue::Ticket> tickets;
  for (uint64_t id = 1; id <= 200; ++id) tickets.push_back(Enter(queue, id));
  for (size_t i = 0; i < 100; ++i) {
    clock_.Advance(absl::Milliseconds(100));
    queue.Dispatch(tickets[i], clock_.Now());
  }
  // 100 wait, ten a second go: about 10 s.
  EXPECT_GE(queue.RetryAfter(), absl::Seconds(10));
  EXPECT_LE(queue.RetryAfter(), absl::Seconds(11));
  for (size_t i = 100; i < 150; ++i) {
    clock_.Advance(absl::Seconds(30));
    queue.Dispatch(tickets[i], clock_.Now());
  }
  EXPECT_EQ(queue.RetryAfter(), absl::Seconds(60));
}

}  // namespace
}  // namespace lynx::router
