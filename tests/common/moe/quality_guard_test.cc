#include "common/moe/quality_guard.h"

#include <vector>

#include "gtest/gtest.h"

namespace lynx::moe {
namespace {

using Change = QualityGuard::Change;
using Reason = QualityGuard::Reason;
using State = QualityGuard::State;

constexpr QualityBudget kBudget{.max_kl_nats = 0.05};

class QualityGuardTest : public ::testing::Test {
 protected:
  static constexpr QualityGuard::Options kOptions{.budget = kBudget,
                                                  .window = 10,
                                                  .return_share = 0.8,
                                                  .hold = absl::Minutes(1),
                                                  .max_hold = absl::Minutes(8)};

  // Feeds equal samples, one a second, until the guard changes; how many it took, 0 if it never
  // did.
  int Feed(QualityGuard& guard, const QualitySample& sample, int most, Change want) {
    for (int i = 1; i <= most; ++i) {
      now_ += absl::Seconds(1);
      const Change change = guard.OnSample(sample, now_);
      if (change == Change::kNone) continue;
      EXPECT_EQ(change, want);
      return i;
    }
    return 0;
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST_F(QualityGuardTest, StaysActiveWithinTheBudget) {
  QualityGuard guard(kOptions);
  EXPECT_EQ(guard.state(), State::kActive);
  EXPECT_EQ(Feed(guard, {.kl_nats = 0.05}, 1000, Change::kTripped), 0);
  EXPECT_EQ(guard.state(), State::kActive);
}

TEST_F(QualityGuardTest, TripsWithinOneWindowOfHarmAndNotOnLess) {
  QualityGuard fresh(kOptions);
  EXPECT_EQ(Feed(fresh, {.kl_nats = 0.06}, 1000, Change::kTripped), 10);
  EXPECT_EQ(fresh.state(), State::kBackoff);
  EXPECT_EQ(fresh.reason(), Reason::kKl);
  // After good samples the window's mean decides: 9 of 10 at 0.055 and one at 0 are 0.0495.
  QualityGuard used(kOptions);
  EXPECT_EQ(Feed(used, {.kl_nats = 0}, 50, Change::kTripped), 0);
  EXPECT_EQ(Feed(used, {.kl_nats = 0.055}, 1000, Change::kTripped), 10);
}

TEST_F(QualityGuardTest, OneTokenHoweverUnluckyDoesNotDecideAboutAWindow) {
  QualityGuard::Options options = kOptions;
  options.window = 20;
  QualityGuard guard(options);
  EXPECT_EQ(Feed(guard, {.kl_nats = 0}, 50, Change::kTripped), 0);
  EXPECT_EQ(guard.OnSample({.kl_nats = 1e6}, now_), Change::kNone);
  EXPECT_EQ(guard.OnSample({.kl_nats = 1e6}, now_), Change::kTripped);
}

TEST_F(QualityGuardTest, JudgesTop1AndKeptMassWhereTheyHaveABudget) {
  const QualitySample flips{.kl_nats = 0.01, .same_top1 = false, .kept_mass = 0.5};
  QualityGuard kl_only(kOptions);
  EXPECT_EQ(Feed(kl_only, flips, 100, Change::kTripped), 0);

  QualityGuard::Options options = kOptions;
  options.budget.min_top1 = 0.85;
  QualityGuard top1(options);
  EXPECT_EQ(Feed(top1, {.kl_nats = 0.01}, 100, Change::kTripped), 0);
  EXPECT_EQ(Feed(top1, flips, 100, Change::kTripped), 2);
  EXPECT_EQ(top1.reason(), Reason::kTop1);

  options.budget = kBudget;
  options.budget.min_kept_mass = 0.9;
  QualityGuard mass(options);
  EXPECT_EQ(Feed(mass, {.kl_nats = 0.01, .kept_mass = 0.95}, 100, Change::kTripped), 0);
  EXPECT_EQ(Feed(mass, {.kl_nats = 0.01, .kept_mass = 0.8}, 100, Change::kTripped), 4);
  EXPECT_EQ(mass.reason(), Reason::kKeptMass);
}

TEST_F(QualityGuardTest, WhatIsNotFiniteTripsAtOnce) {
  QualityGuard guard(kOptions);
  EXPECT_EQ(guard.OnBroken(now_), Change::kTripped);
  EXPECT_EQ(guard.state(), State::kBackoff);
  EXPECT_EQ(guard.reason(), Reason::kNan);
  EXPECT_EQ(guard.OnBroken(now_), Change::kNone);
}

// A node with little to do is guarded as a busy one is.
TEST_F(QualityGuardTest, SamplesCountHoweverFarApartTheyCome) {
  QualityGuard guard(kOptions);
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(Feed(guard, {.kl_nats = 1}, 1, Change::kTripped), 0);
    now_ += absl::Hours(1);
  }
  EXPECT_EQ(Feed(guard, {.kl_nats = 1}, 1, Change::kTripped), 1);
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(Feed(guard, {.kl_nats = 0}, 1, Change::kReturned), 0);
    now_ += absl::Hours(1);
  }
  EXPECT_EQ(Feed(guard, {.kl_nats = 0}, 1, Change::kReturned), 1);
}

TEST_F(QualityGuardTest, ReturnsAfterTheHoldWithAGoodWindowOfProbes) {
  QualityGuard guard(kOptions);
  Feed(guard, {.kl_nats = 1}, 10, Change::kTripped);
  ASSERT_EQ(guard.state(), State::kBackoff);
  // A good window comes long before the hold time is over.
  EXPECT_EQ(Feed(guard, {.kl_nats = 0}, 1000, Change::kReturned), 60);
  EXPECT_EQ(guard.state(), State::kActive);

  Feed(guard, {.kl_nats = 1}, 10, Change::kTripped);
  // Within the budget is not enough to return: it would trip again at once.
  EXPECT_EQ(Feed(guard, {.kl_nats = 0.045}, 1000, Change::kReturned), 0);
  // The hold is over: a window of good probes is all it takes.
  EXPECT_LE(Feed(guard, {.kl_nats = 0.03}, 1000, Change::kReturned), 10);
  EXPECT_EQ(guard.state(), State::kActive);
}

TEST_F(QualityGuardTest, AProbeThatIsNotFiniteVoidsTheWindow) {
  QualityGuard guard(kOptions);
  guard.OnBroken(now_);
  EXPECT_EQ(Feed(guard, {.kl_nats = 0}, 59, Change::kReturned), 0);
  EXPECT_EQ(guard.OnBroken(now_), Change::kNone);
  EXPECT_EQ(Feed(guard, {.kl_nats = 0}, 1000, Change::kReturned), 10);
}

TEST_F(QualityGuardTest, HoldsLongerEachTimeItTripsAgainSoon) {
  QualityGuard guard(kOptions);
  for (int64_t minutes : {1, 2, 4, 8, 8}) {
    const absl::Time before = now_;
    ASSERT_EQ(guard.OnBroken(now_), Change::kTripped);
    EXPECT_EQ(guard.hold_time(), absl::Minutes(minutes));
    ASSERT_GT(Feed(guard, {.kl_nats = 0}, 1000, Change::kReturned), 0);
    EXPECT_EQ(now_ - before, absl::Minutes(minutes));
  }
  now_ += absl::Minutes(8) + absl::Seconds(1);
  ASSERT_EQ(guard.OnBroken(now_), Change::kTripped);
  EXPECT_EQ(guard.hold_time(), absl::Minutes(1));
}

TEST_F(QualityGuardTest, OffStaysOff) {
  QualityGuard::Options options = kOptions;
  options.enabled = false;
  QualityGuard guard(options);
  EXPECT_EQ(Feed(guard, {.kl_nats = 100}, 100, Change::kTripped), 0);
  EXPECT_EQ(guard.OnBroken(now_), Change::kNone);
  EXPECT_EQ(guard.state(), State::kOff);
}

}  // namespace
}  // namespace lynx::moe
