#include "common/moe/policy_controller.h"

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::moe {
namespace {

constexpr int kRungs = 9;
constexpr QualityBudget kBudget{.max_kl_nats = 0.05};

// A decode node under load, as the controller sees it. A step takes a + b * experts; a batch of B
// rows that each choose k of N calls for N * (1 - (1 - k/N)^B) of them, of which a rung r keeps
// 1 - 0.06 r; each step's time has 10 % of noise. A rung's divergence is that of its square, with
// exponential noise from token to token; every 50th step is compared, four rows of it.
class Load {
 public:
  explicit Load(const PolicyController::Options& options, uint32_t seed)
      : controller_(options), rng_(seed) {}

  double StepSeconds(double batch, int rung) const {
    const double experts = 64 * (1 - std::pow(1 - 8.0 / 64, batch));
    return 0.004 + 0.0004 * experts * (1 - 0.06 * rung);
  }
  double Divergence(int rung) const { return harm * 0.0006 * rung * rung; }

  // Runs for `seconds` of simulated time.
  void Run(double seconds, const std::function<double(double)>& batch_at) {
    const absl::Time began = now_;
    for (int64_t step = 0; now_ - began < absl::Seconds(seconds); ++step) {
      const double time = absl::ToDoubleSeconds(now_ - began);
      const double noise = 1 + 0.1 * std::normal_distribution<double>()(rng_);
      const absl::Duration took =
          absl::Seconds(StepSeconds(batch_at(time), controller_.rung()) * std::max(noise, 0.2));
      now_ += took;
      if (step % 50 == 49) {
        if (controller_.rung() == 0) continue;
        for (int row = 0; row < 4; ++row) {
          const double kl =
              std::exponential_distribution<double>(1 / Divergence(controller_.rung()))(rng_);
          controller_.OnSample({.kl_nats = kl});
          Note();
        }
      } else {
        controller_.OnStep(took, now_);
        Note();
      }
    }
  }

  int rung() const { return controller_.rung(); }
  // How often it went the other way than the move before.
  int turns() const { return turns_; }
  int moves() const { return moves_; }
  void Forget() { turns_ = moves_ = 0; }

  double harm = 1;
  PolicyController controller_;

 private:
  void Note() {
    const int way = controller_.rung() - last_rung_;
    if (way == 0) return;
    EXPECT_EQ(std::abs(way), 1);
    ++moves_;
    if (last_way_ != 0 && way != last_way_) ++turns_;
    last_way_ = way;
    last_rung_ = controller_.rung();
  }

  std::mt19937 rng_;
  absl::Time now_ = absl::UnixEpoch();
  int last_rung_ = 0;
  int last_way_ = 0;
  int turns_ = 0;
  int moves_ = 0;
};

constexpr double kHour = 3600;

PolicyController::Options Target(double seconds) {
  return {.rungs = kRungs, .target = absl::Seconds(seconds), .budget = kBudget};
}

std::function<double(double)> Constant(double batch) {
  return [batch](double) { return batch; };
}

TEST(PolicyControllerTest, SettlesAtTheGentlestRungThatMeetsTheTarget) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    Load load(Target(0.0235), seed);
    ASSERT_GT(load.StepSeconds(16, 2), 0.0235);
    ASSERT_LT(load.StepSeconds(16, 3), 0.0235);
    load.Run(300, Constant(16));
    EXPECT_EQ(load.rung(), 3) << "seed " << seed;
    load.Forget();
    load.Run(kHour, Constant(16));
    // Noise may cost a rung; nothing is ever taken back.
    EXPECT_LE(load.moves(), 1) << "seed " << seed;
    EXPECT_EQ(load.turns(), 0) << "seed " << seed;
  }
}

TEST(PolicyControllerTest, StaysExactWhileStepsAreFastEnough) {
  Load load(Target(0.03), 1);
  load.Run(kHour, Constant(16));
  EXPECT_EQ(load.moves(), 0);
  EXPECT_EQ(load.rung(), 0);
}

TEST(PolicyControllerTest, FollowsTheLoadUpAndDownWithoutOscillating) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    Load load(Target(0.0235), seed);
    load.Run(600, Constant(4));
    EXPECT_EQ(load.rung(), 0) << "seed " << seed;
    load.Run(600, Constant(16));
    EXPECT_EQ(load.rung(), 3) << "seed " << seed;
    load.Run(600, Constant(4));
    EXPECT_EQ(load.rung(), 0) << "seed " << seed;
    load.Run(600, Constant(16));
    EXPECT_EQ(load.rung(), 3) << "seed " << seed;
    // One turn at each change of the load but the first.
    EXPECT_EQ(load.turns(), 2) << "seed " << seed;
  }
}

TEST(PolicyControllerTest, FollowsASlowWaveWithTwoTurnsAPeriod) {
  const auto wave = [](double time) { return 10 + 8 * std::sin(time / 1800 * 2 * M_PI); };
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    Load load(Target(0.0235), seed);
    load.Run(4 * 1800, wave);
    EXPECT_GT(load.moves(), 8) << "seed " << seed;
    EXPECT_LE(load.turns(), 4 * 2) << "seed " << seed;
  }
}

// Rungs so coarse that one is too slow and the next has time to spare: the worst case for a
// controller that goes for both.
TEST(PolicyControllerTest, TurnsLogarithmicallyOftenWhereNoRungFits) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    PolicyController::Options options = Target(0.0235);
    options.rungs = 2;
    options.slack = 0.01;
    PolicyController controller(options);
    std::mt19937 rng(seed);
    absl::Time now = absl::UnixEpoch();
    int turns = 0;
    for (int i = 0; i < 4 * 3600 * 50; ++i) {
      const int before = controller.rung();
      now += absl::Milliseconds(20);
      const double mean = before == 0 ? 0.026 : 0.016;
      controller.OnStep(absl::Seconds(mean * (1 + 0.1 * std::normal_distribution<double>()(rng))),
                        now);
      turns += controller.rung() != before;
    }
    // Patience grows 5, 10, ... to 300 intervals: 7 doublings in the first ten minutes, then two
    // moves every five minutes.
    EXPECT_GE(turns, 14);
    EXPECT_LE(turns, 14 + 2 * (4 * 3600 / 300)) << "seed " << seed;
  }
}

// The target is out of reach at any rung; the budget ends between rungs 4 and 5.
TEST(PolicyControllerTest, QualityGoesBeforeTheTarget) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    Load load(Target(0.010), seed);
    load.harm = 4;  // 0.0024 r^2: 0.0384 at rung 4, 0.06 at rung 5.
    load.Run(kHour, Constant(16));
    EXPECT_LE(load.rung(), 5) << "seed " << seed;
    EXPECT_GE(load.rung(), 3) << "seed " << seed;
    load.Forget();
    load.Run(2 * kHour, Constant(16));
    EXPECT_LE(load.turns(), 30) << "seed " << seed;
  }
}

TEST(PolicyControllerTest, WithoutATargetItUsesTheBudget) {
  Load load(Target(0), 1);
  load.harm = 4;
  load.Run(600, Constant(4));
  EXPECT_GE(load.rung(), 3);
  EXPECT_LE(load.rung(), 5);
}

TEST(PolicyControllerTest, SoftensWhenQualityFallsAndComesBack) {
  Load load(Target(0.017), 3);
  load.Run(900, Constant(16));
  const int settled = load.rung();
  ASSERT_GE(settled, 6);
  load.harm = 20;
  load.Run(300, Constant(16));
  EXPECT_LE(load.rung(), 2);
  load.harm = 1;
  load.Run(3600, Constant(16));
  EXPECT_EQ(load.rung(), settled);
}

TEST(PolicyControllerTest, NeedsProofBeforeTheNextRung) {
  PolicyController controller(Target(0.01));
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 10000; ++i) {
    now += absl::Milliseconds(20);
    controller.OnStep(absl::Milliseconds(20), now);
  }
  EXPECT_EQ(controller.rung(), 1);
}

TEST(PolicyControllerTest, AGuardThatTripsHalvesTheRungAndKeepsItLossy) {
  Load load(Target(0.010), 1);
  load.Run(900, Constant(16));
  ASSERT_GE(load.rung(), 7);
  PolicyController& controller = load.controller_;
  const int before = controller.rung();
  controller.OnGuardTripped();
  EXPECT_EQ(controller.rung(), before / 2);
  // Exact steps say nothing about it, slow or fast.
  absl::Time now = absl::UnixEpoch() + absl::Hours(10);
  for (int ms : {1000, 1}) {
    for (int i = 0; i < 1000; ++i)
      controller.OnStep(absl::Milliseconds(ms), now += absl::Seconds(1));
    EXPECT_EQ(controller.rung(), before / 2);
  }
  // Bad probes soften it down to the gentlest that is not exact.
  for (int i = 0; i < 1000; ++i) controller.OnSample({.kl_nats = 1});
  EXPECT_EQ(controller.rung(), 1);
  controller.OnGuardReturned();
  for (int i = 0; i < 32; ++i) controller.OnSample({.kl_nats = 1});
  EXPECT_EQ(controller.rung(), 0);
}

// Requests may name policies of their own while the controller is at exact.
TEST(PolicyControllerTest, AGuardThatTripsLeavesSomethingToProbeAndExactAsItWas) {
  PolicyController controller(Target(0.01));
  controller.OnGuardTripped();
  EXPECT_EQ(controller.rung(), 1);
  controller.OnGuardReturned();
  EXPECT_EQ(controller.rung(), 0);
}

TEST(PolicyControllerTest, IsPatientOnceWhenTheLoadFallsAfterManyMistakes) {
  PolicyController controller({.rungs = 4,
                               .target = absl::Milliseconds(20),
                               .budget = kBudget,
                               .interval = absl::ZeroDuration(),
                               .interval_steps = 1,
                               .evidence = 1,
                               .patience = 5,
                               .max_patience = 80});
  absl::Time now = absl::UnixEpoch();
  const auto intervals_until = [&](int rung, int ms) {
    for (int i = 1; i <= 1000; ++i) {
      now += absl::Seconds(1);
      controller.OnStep(absl::Milliseconds(ms), now);
      controller.OnSample({.kl_nats = 0});
      if (controller.rung() == rung) return i;
    }
    return 0;
  };
  EXPECT_EQ(intervals_until(3, 30), 6);
  // Each step down is taken back.
  for (int patience : {5, 10, 20, 40, 80, 80}) {
    EXPECT_EQ(intervals_until(2, 10), patience);
    EXPECT_EQ(intervals_until(3, 30), 2);
  }
  EXPECT_EQ(intervals_until(2, 10), 80);
  EXPECT_EQ(intervals_until(1, 10), 80);
  EXPECT_EQ(intervals_until(0, 10), 5);
}

}  // namespace
}  // namespace lynx::moe
