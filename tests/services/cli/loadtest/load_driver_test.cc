#include "services/cli/loadtest/load_driver.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/loadtest/run_result.h"

namespace lynx::loadtest {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kMs = absl::Milliseconds(1);

// Requests due at given milliseconds.
class ListedWorkload final : public Workload {
 public:
  explicit ListedWorkload(std::vector<int> due_ms) : due_ms_(std::move(due_ms)) {}
  std::optional<PlannedRequest> Next() override {
    if (next_ == due_ms_.size()) return std::nullopt;
    PlannedRequest request;
    request.index = static_cast<int64_t>(next_);
    request.due = due_ms_[next_++] * kMs;
    request.output_tokens = 3;
    return request;
  }
  std::string Body() override { return std::to_string(next_ - 1); }

 private:
  std::vector<int> due_ms_;
  size_t next_ = 0;
};

class FakeTransport final : public Transport {
 public:
  void Send(RequestId id, std::string body) override { sent.emplace_back(id, std::move(body)); }
  void Cancel(RequestId id) override { cancelled.push_back(id); }
  std::vector<std::pair<RequestId, std::string>> sent;
  std::vector<RequestId> cancelled;
};

class LoadDriverTest : public ::testing::Test {
 protected:
  LoadDriver& Start(const DriverOptions& options, std::vector<int> due_ms) {
    workload_ = std::make_unique<ListedWorkload>(std::move(due_ms));
    driver_ = std::make_unique<LoadDriver>(options, *workload_, transport_, 100, clock_.Now());
    return *driver_;
  }

  // Moves to a time after the start, going through every wake-up on the way.
  void Until(int ms) {
    const absl::Time end = start_ + ms * kMs;
    for (;;) {
      driver_->Tick(clock_.Now());
      const absl::Time wake = driver_->NextWake();
      if (driver_->done() || wake > end) break;
      ASSERT_GT(wake, clock_.Now()) << "nothing was done, and it wants to be called at once";
      clock_.Advance(wake - clock_.Now());
    }
    clock_.Advance(end - clock_.Now());
    driver_->Tick(clock_.Now());
  }

  void Head(RequestId id, int status = 200) {
    driver_->OnHead(
        id, {.status = status, .headers = {{"content-type", "text/event-stream"}}, .body = ""},
        clock_.Now());
  }
  bool Body(RequestId id, const std::string& data) {
    return driver_->OnBody(id, http::FormatSseData(data), clock_.Now());
  }
  void Token(RequestId id) { Body(id, R"({"choices":[{"delta":{"content":"x"}}]})"); }
  void Answer(RequestId id) {
    Head(id);
    Token(id);
    Body(id, "[DONE]");
  }

  ManualClock clock_;
  const absl::Time start_ = clock_.Now();
  FakeTransport transport_;
  std::unique_ptr<ListedWorkload> workload_;
  std::unique_ptr<LoadDriver> driver_;
};

TEST_F(LoadDriverTest, SendsWhenDueAndMeasuresBothWays) {
  Start({.max_open = 10}, {100, 250});
  Until(99);
  EXPECT_THAT(transport_.sent, IsEmpty());
  Until(100);
  ASSERT_THAT(transport_.sent, SizeIs(1));
  EXPECT_EQ(transport_.sent[0].first, 100u);
  Until(150);
  Head(100);
  Until(180);
  Token(100);
  Until(230);
  Token(100);
  Until(240);
  EXPECT_FALSE(Body(100, "[DONE]"));
  EXPECT_FALSE(driver_->done());
  Until(260);
  ASSERT_THAT(transport_.sent, SizeIs(2));
  Answer(101);
  EXPECT_TRUE(driver_->done());
  const RunLog log = driver_->TakeLog();
  ASSERT_THAT(log.records, SizeIs(2));
  const RequestRecord& record = log.records[0];
  EXPECT_EQ(record.outcome, Outcome::kOk);
  EXPECT_NEAR(record.due_s, 0.1, 1e-9);
  EXPECT_NEAR(record.ttft_s(), 0.08, 1e-9);
  EXPECT_NEAR(record.tpot_s(), 0.05, 1e-9);
  EXPECT_NEAR(record.e2e_s(), 0.14, 1e-9);
  EXPECT_EQ(record.output_tokens, 2);
}

// The bound delays requests; it drops none, and the delay shows in the times from due.
TEST_F(LoadDriverTest, WhatTheBoundHoldsBackIsSentLateAndCounted) {
  Start({.max_open = 1}, {0, 10, 20});
  Until(500);
  ASSERT_THAT(transport_.sent, SizeIs(1));
  Answer(100);
  Until(501);
  ASSERT_THAT(transport_.sent, SizeIs(2));
  Until(601);
  Answer(101);
  Until(602);
  ASSERT_THAT(transport_.sent, SizeIs(3));
  Answer(102);
  EXPECT_TRUE(driver_->done());
  const RunResult result = MakeRunResult(driver_->TakeLog(), Slo{}, {});
  EXPECT_EQ(result.held_back, 2);
  EXPECT_EQ(result.measured, 3);
  EXPECT_NEAR(result.ttft.max, 0.5, 1e-9);
  EXPECT_NEAR(result.ttft_from_due.p50, 0.582, 1e-9) << "of 500, 591 and 582 ms";
  EXPECT_NEAR(result.send_delay.max, 0.581, 1e-9);
}

TEST_F(LoadDriverTest, WhatIsStillWaitingAtTheEndIsCountedAsUnsent) {
  Start({.max_open = 1, .warmup = 1, .duration = absl::Seconds(1)}, {0, 100, 200, 900, 1100});
  Until(1000);
  ASSERT_THAT(transport_.sent, SizeIs(1));
  EXPECT_FALSE(driver_->done()) << "one is still open";
  Answer(100);
  EXPECT_TRUE(driver_->done());
  Slo slo;
  slo.ttft = absl::Hours(1);
  const RunResult result = MakeRunResult(driver_->TakeLog(), slo, {});
  EXPECT_EQ(result.warmup, 1);
  EXPECT_EQ(result.measured, 3);
  EXPECT_EQ(result.outcomes[static_cast<size_t>(Outcome::kUnsent)], 3);
  EXPECT_EQ(result.attainment, 0);
}

TEST_F(LoadDriverTest, WhatIsDueJustBeforeTheEndIsSentByALateCall) {
  Start({.max_open = 5, .duration = absl::Seconds(1)}, {999, 1000});
  clock_.Advance(absl::Seconds(3));
  driver_->Tick(clock_.Now());
  ASSERT_THAT(transport_.sent, SizeIs(1)) << "and not what is due at the end";
  Answer(100);
  EXPECT_TRUE(driver_->done());
  EXPECT_EQ(driver_->TakeLog().unsent, 0);
}

TEST_F(LoadDriverTest, AClosedLoopKeepsItsNumberOpen) {
  Start({.closed_loop = true, .max_open = 2, .requests = 4}, {9000, 9000, 9000, 9000, 9000});
  driver_->Tick(clock_.Now());
  EXPECT_THAT(transport_.sent, SizeIs(2));
  Answer(100);
  driver_->Tick(clock_.Now());
  EXPECT_THAT(transport_.sent, SizeIs(3));
  Answer(101);
  Answer(102);
  driver_->Tick(clock_.Now());
  EXPECT_THAT(transport_.sent, SizeIs(4)) << "and not one more";
  Answer(103);
  EXPECT_TRUE(driver_->done());
  const RunLog log = driver_->TakeLog();
  for (const RequestRecord& record : log.records) {
    EXPECT_EQ(record.due_s, record.sent_s);
    EXPECT_FALSE(record.held_back);
  }
}

TEST_F(LoadDriverTest, AClosedLoopDoesNotHammerAServerThatFails) {
  Start({.closed_loop = true, .max_open = 1, .requests = 3}, {0, 0, 0});
  Until(0);
  ASSERT_THAT(transport_.sent, SizeIs(1));
  driver_->OnEnd(100, absl::UnavailableError("refused"), clock_.Now());
  Until(99);
  EXPECT_THAT(transport_.sent, SizeIs(1));
  Until(100);
  EXPECT_THAT(transport_.sent, SizeIs(2));
}

TEST_F(LoadDriverTest, RequestsAndWarmUpAreCountedApart) {
  Start({.max_open = 9, .warmup = 2, .requests = 3}, {0, 1, 2, 3, 4, 5, 6});
  Until(50);
  ASSERT_THAT(transport_.sent, SizeIs(5));
  for (RequestId id = 100; id < 105; ++id) Answer(id);
  EXPECT_TRUE(driver_->done());
  const RunResult result = MakeRunResult(driver_->TakeLog(), Slo{}, {});
  EXPECT_EQ(result.warmup, 2);
  EXPECT_EQ(result.measured, 3);
  EXPECT_EQ(result.ok(), 3);
}

TEST_F(LoadDriverTest, ARequestThatTakesTooLongIsGivenUp) {
  Start({.max_open = 9, .timeout = absl::Seconds(1)}, {0, 500});
  Until(600);
  Head(101);
  Until(999);
  EXPECT_THAT(transport_.cancelled, IsEmpty());
  Until(1000);
  EXPECT_THAT(transport_.cancelled, ElementsAre(100));
  Until(1500);
  EXPECT_THAT(transport_.cancelled, ElementsAre(100, 101));
  EXPECT_TRUE(driver_->done());
  Answer(101);  // Too late; must not matter.
  const RunLog log = driver_->TakeLog();
  ASSERT_THAT(log.records, SizeIs(2));
  EXPECT_EQ(log.records[0].outcome, Outcome::kTimeout);
  EXPECT_NEAR(log.records[1].e2e_s(), 1, 1e-9);
}

TEST_F(LoadDriverTest, BreakingOffBlamesNobody) {
  Start({.max_open = 9}, {0, 1, 5000});
  Until(10);
  Answer(100);
  driver_->Stop(clock_.Now());
  EXPECT_TRUE(driver_->done());
  EXPECT_THAT(transport_.cancelled, ElementsAre(101));
  Slo slo;
  slo.e2e = absl::Seconds(1);
  const RunResult result = MakeRunResult(driver_->TakeLog(), slo, {});
  EXPECT_EQ(result.attainment, 1) << "of those that had a chance";
  EXPECT_EQ(result.outcomes[static_cast<size_t>(Outcome::kUnfinished)], 1);
}

TEST_F(LoadDriverTest, FailuresCountAgainstAttainmentAndKeepTheirWords) {
  Start({.max_open = 9}, {0, 0, 0, 0});
  Until(5);
  Answer(100);
  driver_->OnHead(101, {.status = 429, .headers = {{"retry-after", "2"}}, .body = ""},
                  clock_.Now());
  driver_->OnEnd(101, absl::OkStatus(), clock_.Now());
  driver_->OnHead(102, {.status = 503, .headers = {}, .body = ""}, clock_.Now());
  driver_->OnBody(102, "no node", clock_.Now());
  driver_->OnEnd(102, absl::OkStatus(), clock_.Now());
  driver_->OnEnd(103, absl::UnavailableError("reset"), clock_.Now());
  Slo slo;
  slo.ttft = absl::Seconds(1);
  const RunResult result = MakeRunResult(driver_->TakeLog(), slo, {});
  EXPECT_EQ(result.attainment, 0.25);
  EXPECT_EQ(result.outcomes[static_cast<size_t>(Outcome::kRefused)], 1);
  EXPECT_EQ(result.retry_after.mean, 2);
  EXPECT_EQ(result.statuses.at(503), 1);
  EXPECT_EQ(result.problems.at({Outcome::kHttpStatus, "no node"}), 1);
  EXPECT_EQ(result.problems.at({Outcome::kConnection, "reset"}), 1);
}

}  // namespace
}  // namespace lynx::loadtest
