#include "services/router/admission/admission_queue.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
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
  AdmissionQueue::Ticket Enter(AdmissionQueue& queue, const AdmissionQueue::Newcomer& newcomer) {
    AdmissionQueue::Ticket ticket;
    EXPECT_THAT(queue.Enter(newcomer, clock_.Now(), ticket, displaced_), IsOk());
    if (displaced_.has_value()) {  // Its owner ends it.
      const auto& waiting = queue.queue();
      queue.Leave(std::find_if(waiting.begin(), waiting.end(), [&](const auto& entry) {
                    return entry.second == *displaced_;
                  })->first);
    }
    return ticket;
  }
  AdmissionQueue::Ticket Enter(AdmissionQueue& queue, uint64_t id) {
    return Enter(queue, {.id = id, .tokens = 10});
  }
  absl::Status TryEnter(AdmissionQueue& queue, const AdmissionQueue::Newcomer& newcomer) {
    AdmissionQueue::Ticket ticket;
    return queue.Enter(newcomer, clock_.Now(), ticket, displaced_);
  }
  std::vector<uint64_t> Order(const AdmissionQueue& queue) {
    std::vector<uint64_t> ids;
    for (const auto& [ticket, id] : queue.queue()) ids.push_back(id);
    return ids;
  }
  ManualClock clock_;
  std::optional<uint64_t> displaced_;
};

TEST_F(AdmissionQueueTest, IsBoundedAndSaysSo) {
  AdmissionQueue queue({.max_in_flight = 1, .max_queued = 2});
  queue.Dispatch(Enter(queue, 1), clock_.Now());
  Enter(queue, 2);
  Enter(queue, 3);
  EXPECT_THAT(TryEnter(queue, {.id = 4}),
              StatusIs(absl::StatusCode::kResourceExhausted, ::testing::HasSubstr("2 requests")));
  EXPECT_EQ(queue.queued(), 2u);
  EXPECT_EQ(queue.in_flight(), 1u);
}

TEST_F(AdmissionQueueTest, NoWaitingRoomStillLetsThroughWhoNeedNotWait) {
  AdmissionQueue queue({.max_in_flight = 1, .max_queued = 0});
  queue.Dispatch(Enter(queue, 1), clock_.Now());
  EXPECT_THAT(TryEnter(queue, {.id = 2}), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(AdmissionQueueTest, TheLowerPriorityGoesFirst) {
  AdmissionQueue queue({.max_in_flight = 1, .max_queued = 10});
  for (const auto& [id, priority] : {std::pair{1, 5}, {2, 0}, {3, 1000}, {4, 5}, {5, 0}}) {
    Enter(queue, {.id = static_cast<uint64_t>(id), .priority = priority, .tokens = 10});
  }
  EXPECT_THAT(Order(queue), ElementsAre(2, 5, 1, 4, 3));
}

TEST_F(AdmissionQueueTest, TenantsShareByTokens) {
  AdmissionQueue queue({.max_in_flight = 1000, .max_queued = 1000});
  std::map<uint64_t, AdmissionQueue::Ticket> tickets;
  for (uint64_t id = 1; id <= 100; ++id) {  // A flood, then one with a few long ones.
    tickets[id] = Enter(queue, {.id = id, .tenant = 7, .tokens = 10});
  }
  for (uint64_t id = 101; id <= 105; ++id) {
    tickets[id] = Enter(queue, {.id = id, .tenant = 8, .tokens = 100});
  }
  int flood = 0;
  int others = 0;
  while (others < 5) {
    const uint64_t id = queue.queue().begin()->second;
    queue.Dispatch(tickets.at(id), clock_.Now());
    (id <= 100 ? flood : others) += 1;
  }
  EXPECT_NEAR(flood, 40, 11) << "ten tokens each for a hundred of the other's";
}

TEST_F(AdmissionQueueTest, TokensOfAnswersCountToo) {
  AdmissionQueue queue({.max_in_flight = 1000, .max_queued = 1000});
  for (TenantId tenant : {7, 8}) {
    queue.Dispatch(Enter(queue, {.id = tenant, .tenant = tenant, .tokens = 10}), clock_.Now());
  }
  Enter(queue, {.id = 1, .tenant = 7, .tokens = 10});
  Enter(queue, {.id = 2, .tenant = 8, .tokens = 10});
  queue.Used(7, 500);
  Enter(queue, {.id = 3, .tenant = 7, .tokens = 10});
  Enter(queue, {.id = 4, .tenant = 8, .tokens = 10});
  EXPECT_THAT(Order(queue), ElementsAre(1, 2, 4, 3));
}

TEST_F(AdmissionQueueTest, AFullQueueKeepsThoseWhoGoFirst) {
  AdmissionQueue queue({.max_in_flight = 0, .max_queued = 2});
  Enter(queue, {.id = 1, .tenant = 7, .tokens = 10});
  Enter(queue, {.id = 2, .tenant = 7, .tokens = 10});
  EXPECT_THAT(TryEnter(queue, {.id = 3, .tenant = 7, .tokens = 10}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  Enter(queue, {.id = 4, .tenant = 8, .tokens = 10});
  EXPECT_EQ(displaced_, 2u) << "the second of a tenant makes place for the first of another";
  EXPECT_THAT(TryEnter(queue, {.id = 5, .tenant = 9, .tokens = 10}),
              StatusIs(absl::StatusCode::kResourceExhausted))
      << "all three are the first of their tenants";
  EXPECT_THAT(Order(queue), ElementsAre(1, 4));
}

TEST_F(AdmissionQueueTest, WhoComesBackIsNotDisplaced) {
  AdmissionQueue queue({.max_in_flight = 1, .max_queued = 2});
  const AdmissionQueue::Ticket back = Enter(queue, {.id = 1, .priority = 9});
  queue.Dispatch(back, clock_.Now());
  Enter(queue, {.id = 2, .priority = 5});
  queue.Requeue(back, 1);
  EXPECT_THAT(Order(queue), ElementsAre(2, 1));
  const AdmissionQueue::Ticket urgent = Enter(queue, 3);
  EXPECT_EQ(displaced_, 2u);
  EXPECT_THAT(Order(queue), ElementsAre(3, 1));
  queue.Dispatch(urgent, clock_.Now());
  Enter(queue, {.id = 4, .priority = 8});
  EXPECT_THAT(TryEnter(queue, {.id = 5, .priority = 8}),
              StatusIs(absl::StatusCode::kResourceExhausted));
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
