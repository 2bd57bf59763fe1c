#include "services/cli/loadtest/rate_search.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/loadtest/slo.h"
#include "tests/support/status_matchers.h"

namespace lynx::loadtest {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Tries rates on a server that holds up to `capacity`; returns those tried.
std::vector<double> Drive(RateSearch& search, double capacity) {
  std::vector<double> tried;
  while (const auto rate = search.Next()) {
    tried.push_back(*rate);
    search.Report(*rate <= capacity);
    if (tried.size() > 100) break;
  }
  return tried;
}

RampPlan Between(double low, double high) { return {.rates = {}, .low = low, .high = high}; }

TEST(RateSearchTest, DoublesThenHalves) {
  RateSearch search(Between(1, 100), 0.2);
  const std::vector<double> tried = Drive(search, 5);
  ASSERT_GE(tried.size(), 5u);
  EXPECT_THAT(std::vector<double>(tried.begin(), tried.begin() + 4), ElementsAre(1, 2, 4, 8));
  EXPECT_LE(*search.highest(), 5);
  EXPECT_GT(*search.lowest_failed(), 5);
  EXPECT_LE(*search.lowest_failed(), *search.highest() * 1.2);
}

TEST(RateSearchTest, EndsAtEitherBound) {
  RateSearch all(Between(1, 10), 0.1);
  EXPECT_THAT(Drive(all, 1000), ElementsAre(1, 2, 4, 8, 10));
  EXPECT_EQ(all.highest(), 10);
  EXPECT_FALSE(all.lowest_failed().has_value());
  RateSearch none(Between(1, 10), 0.1);
  EXPECT_THAT(Drive(none, 0.5), ElementsAre(1));
  EXPECT_FALSE(none.highest().has_value());
}

TEST(RateSearchTest, AListIsRunThrough) {
  RateSearch search({.rates = {1, 3, 9, 27}}, 0.1);
  EXPECT_THAT(Drive(search, 4), ElementsAre(1, 3, 9, 27));
  EXPECT_EQ(search.highest(), 3);
  EXPECT_EQ(search.lowest_failed(), 9);
}

// A rate that held by luck over one that failed is no capacity.
TEST(RateSearchTest, ARateOverOneThatFailedDoesNotCount) {
  RateSearch search({.rates = {1, 2, 3}}, 0.1);
  for (const bool holds : {true, false, true}) search.Report(holds);
  EXPECT_EQ(search.highest(), 1);
}

TEST(ParseRampTest, ReadsBothForms) {
  const auto list = ParseRamp("0.5,1,20");
  ASSERT_THAT(list, IsOk());
  EXPECT_THAT(list->rates, ElementsAre(0.5, 1, 20));
  const auto search = ParseRamp("1:64");
  ASSERT_THAT(search, IsOk());
  EXPECT_EQ(search->low, 1);
  EXPECT_EQ(search->high, 64);
  for (const char* text :
       {"", "0", "-1,2", "2,1", "1,1", "a", "5:1", "1:", ":", "1:2:3", "1,inf", "1,1e9", "nan:2"}) {
    EXPECT_THAT(ParseRamp(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("LOW:HIGH")))
        << text;
  }
}

RequestRecord Good() {
  RequestRecord record;
  record.due_s = 1;
  record.sent_s = 3;
  record.first_s = 4;
  record.last_s = 5;
  record.end_s = 5;
  record.output_tokens = 11;  // TPOT 100 ms.
  record.outcome = Outcome::kOk;
  return record;
}

TEST(SloTest, TimesCountFromWhenARequestWasDue) {
  EXPECT_TRUE(Meets(Good(), ParseSlo("ttft=3s,tpot=100ms,e2e=4s").value()));
  EXPECT_FALSE(Meets(Good(), ParseSlo("ttft=2.9s").value()));
  EXPECT_FALSE(Meets(Good(), ParseSlo("tpot=99ms").value()));
  EXPECT_FALSE(Meets(Good(), ParseSlo("e2e=3.9s").value()));
}

TEST(SloTest, FailuresMeetNothing) {
  RequestRecord record = Good();
  record.outcome = Outcome::kTimeout;
  EXPECT_FALSE(Meets(record, ParseSlo("ttft=1h").value()));
  record = Good();
  record.first_s = -1;
  EXPECT_FALSE(Meets(record, ParseSlo("ttft=1h").value())) << "no token came";
}

TEST(SloTest, ASingleTokenHasNoTpot) {
  RequestRecord record = Good();
  record.output_tokens = 1;
  EXPECT_TRUE(Meets(record, ParseSlo("tpot=1ms").value()));
}

TEST(SloTest, ReadsWhatItWrites) {
  EXPECT_EQ(ToString(ParseSlo("e2e=90s,ttft=1.5s").value()), "ttft=1.5s,e2e=1m30s");
  for (const char* text : {"", "ttft", "ttft=", "ttft=2", "ttft=-1s", "ttft=0s", "ttft=inf",
                           "ttft=1s,ttft=2s", "itl=1s", "ttft=1s,", "ttft:1s"}) {
    EXPECT_THAT(ParseSlo(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ttft=2s")))
        << text;
  }
}

}  // namespace
}  // namespace lynx::loadtest
