#include "services/decode/quality/quality_watch.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/moe/policy_ladder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_model_runner.h"
#include "tests/support/status_matchers.h"

namespace lynx::decode {
namespace {

using ::lynx::testing::FakeModelRunner;
using ::lynx::testing::IsOk;
using ::testing::ElementsAre;
using State = moe::QualityGuard::State;

constexpr moe::Policy kPolicy{.kind = moe::Policy::Kind::kOea, .k0 = 2};

// A decode batch over a model in which every lossy row is random: as much harm as there can be.
class QualityWatchTest : public ::testing::Test {
 protected:
  static constexpr FakeModelRunner::Options kModel{
      .vocab_size = 97, .layers = 3, .kv_blocks = 64, .max_step_rows = 64, .max_step_logits = 64};
  static constexpr int kSequences = 4;

  static QualityWatch::Options EveryStep() {
    return {.share = 1,
            .rows = 2,
            .guard = {.window = 8, .hold = absl::Seconds(10), .max_hold = absl::Seconds(80)}};
  }

  QualityWatchTest() {
    auto runner = std::make_unique<FakeModelRunner>(kModel);
    runner_ = runner.get();
    engine_ = std::make_unique<engine::Engine>(
        std::move(runner), engine::EngineOptions{.vocab_size = kModel.vocab_size,
                                                 .max_step_rows = kModel.max_step_rows,
                                                 .max_step_logits = kModel.max_step_logits});
    for (int i = 0; i < kSequences; ++i) sequences_.push_back(NewSequence(i + 1));
  }

  void Watch(const QualityWatch::Options& options) {
    registry_ = std::make_unique<telemetry::Registry>();
    watch_ = std::make_unique<QualityWatch>(options, kModel.vocab_size, *registry_);
  }

  std::unique_ptr<engine::Sequence> NewSequence(TokenId first) {
    auto sequence =
        engine::Sequence::Create({first, 5}, {.temperature = 0, .max_new_tokens = 500},
                                 {.vocab_size = kModel.vocab_size, .max_context_tokens = 1000});
    EXPECT_THAT(sequence, IsOk());
    EXPECT_THAT((*sequence)->EnsureBlocks(engine_->pool(), 2), IsOk());
    std::vector<engine::WorkItem> items = {{sequence->get(), 2}};
    EXPECT_THAT(engine_->Step(items), IsOk());
    return *std::move(sequence);
  }

  // One step of all sequences; `policies` may be shorter.
  void Step(std::vector<const moe::Policy*> policies) {
    items_.clear();
    for (size_t i = 0; i < sequences_.size(); ++i) {
      if (sequences_[i]->output().size() == 50) {
        sequences_[i].reset();
        sequences_[i] = NewSequence(static_cast<TokenId>(i) + 1);
      }
      engine::Sequence& sequence = *sequences_[i];
      ASSERT_THAT(sequence.EnsureBlocks(engine_->pool(), 100), IsOk());
      items_.push_back(
          {&sequence, sequence.pending_tokens(), i < policies.size() ? policies[i] : nullptr});
    }
    engine::Shadow* shadow = watch_->BeginStep(items_);
    compared_ = shadow != nullptr;
    compared_items_.clear();
    const absl::Status status = engine_->Step(items_, nullptr, shadow);
    ASSERT_THAT(status, IsOk());
    if (compared_) {
      for (const auto& row : shadow->rows()) compared_items_.push_back(row.item);
    }
    now_ += absl::Milliseconds(20);
    watch_->EndStep(status, engine_->results(), runner_->stats(), absl::Milliseconds(20), now_);
  }
  void StepAll() { Step(std::vector<const moe::Policy*>(kSequences, &kPolicy)); }

  bool Shows(const std::string& series) const {
    return registry_->Render().find("\n" + series + "\n") != std::string::npos;
  }

  FakeModelRunner* runner_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<std::unique_ptr<engine::Sequence>> sequences_;
  std::unique_ptr<telemetry::Registry> registry_;
  std::unique_ptr<QualityWatch> watch_;
  std::vector<engine::WorkItem> items_;
  bool compared_ = false;
  std::vector<int32_t> compared_items_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST_F(QualityWatchTest, TakesHarmfulPoliciesAwayWithinAWindowAndGivesThemBackAfterTheHarm) {
  Watch(EveryStep());
  EXPECT_TRUE(Shows("lynx_quality_guard_state{state=\"active\"} 1"));
  for (int step = 0; step < 4; ++step) {  // Two rows each: eight samples.
    EXPECT_EQ(watch_->state(), State::kActive);
    StepAll();
    EXPECT_EQ(items_[0].policy, &kPolicy);
  }
  EXPECT_EQ(watch_->state(), State::kBackoff);
  EXPECT_TRUE(Shows("lynx_quality_guard_state{state=\"backoff\"} 1"));
  EXPECT_TRUE(Shows("lynx_quality_guard_state{state=\"active\"} 0"));
  EXPECT_TRUE(Shows("lynx_quality_guard_trips_total{reason=\"kl\"} 1"));
  EXPECT_TRUE(Shows("lynx_quality_samples_total{result=\"breach\"} 4"));
  EXPECT_TRUE(Shows("lynx_quality_kl_divergence_nats_count 8"));

  // The hold time alone does not bring them back while they would still harm.
  for (int step = 0; step < 600; ++step) {
    StepAll();
    ASSERT_TRUE(watch_->took_policies());
    for (const engine::WorkItem& item : items_) ASSERT_EQ(item.policy, nullptr);
  }
  EXPECT_EQ(watch_->state(), State::kBackoff);
  runner_->StopRemapping();
  for (int step = 0; step < 4; ++step) StepAll();
  EXPECT_EQ(watch_->state(), State::kActive);
  EXPECT_TRUE(Shows("lynx_quality_guard_state{state=\"active\"} 1"));
  EXPECT_TRUE(Shows("lynx_quality_guard_trips_total{reason=\"kl\"} 1"));
  StepAll();
  EXPECT_FALSE(watch_->took_policies());
  EXPECT_EQ(items_[0].policy, &kPolicy);
}

TEST_F(QualityWatchTest, ComparesTheGivenShareOfTheStepsThatHaveLossyRows) {
  QualityWatch::Options options = EveryStep();
  options.share = 0.125;
  options.guard.window = 1000;
  Watch(options);
  int compared = 0;
  for (int step = 0; step < 160; ++step) {
    Step({});
    EXPECT_FALSE(compared_) << "no lossy row";
    StepAll();
    compared += compared_;
  }
  EXPECT_EQ(compared, 20);
  EXPECT_TRUE(Shows("lynx_quality_kl_divergence_nats_count 40"));
}

TEST_F(QualityWatchTest, EveryLossyRowHasItsTurnAndExactOnesNever) {
  Watch(EveryStep());
  std::vector<int> turns(kSequences);
  for (int step = 0; step < 3; ++step) {
    Step({&kPolicy, nullptr, &kPolicy, &kPolicy});
    for (int32_t item : compared_items_) ++turns[static_cast<size_t>(item)];
  }
  EXPECT_THAT(turns, ElementsAre(2, 0, 2, 2));
}

TEST_F(QualityWatchTest, AShareOfZeroIsOff) {
  QualityWatch::Options options = EveryStep();
  options.share = 0;
  Watch(options);
  EXPECT_TRUE(Shows("lynx_quality_guard_state{state=\"off\"} 1"));
  for (int step = 0; step < 100; ++step) {
    StepAll();
    EXPECT_FALSE(compared_);
  }
  EXPECT_EQ(items_[0].policy, &kPolicy);
}

TEST_F(QualityWatchTest, ABatchOfOneIsExactAndNotCompared) {
  Watch(EveryStep());
  sequences_.resize(1);
  Step({&kPolicy});
  EXPECT_TRUE(Shows("lynx_quality_samples_total{result=\"skipped\"} 1"));
  EXPECT_TRUE(Shows("lynx_quality_kl_divergence_nats_count 0"));
}

TEST_F(QualityWatchTest, ARowThatBreaksUnderAPolicyTripsTheGuardAtOnce) {
  QualityWatch::Options options = EveryStep();
  options.share = 0.001;  // None of these steps is compared.
  Watch(options);
  runner_->PoisonLogitsAfter(sequences_[2]->tokens().back());
  StepAll();
  EXPECT_FALSE(compared_);
  EXPECT_EQ(watch_->state(), State::kBackoff);
  EXPECT_TRUE(Shows("lynx_quality_guard_trips_total{reason=\"nan\"} 1"));
}

TEST_F(QualityWatchTest, ARowThatBreaksExactlyTooIsTheModelsFault) {
  QualityWatch::Options options = EveryStep();
  options.rows = kSequences;
  options.guard.window = 1000;
  Watch(options);
  runner_->PoisonLogitsAfter(sequences_[2]->tokens().back());
  StepAll();
  EXPECT_TRUE(compared_);
  EXPECT_EQ(watch_->state(), State::kActive);
  EXPECT_TRUE(Shows("lynx_quality_kl_divergence_nats_count 3"));
}

TEST_F(QualityWatchTest, ABrokenExactRowSaysNothingOfThePolicies) {
  QualityWatch::Options options = EveryStep();
  options.share = 0.001;
  Watch(options);
  runner_->PoisonLogitsAfter(sequences_[2]->tokens().back());
  Step({&kPolicy, &kPolicy, nullptr, &kPolicy});
  EXPECT_EQ(watch_->state(), State::kActive);
}

TEST_F(QualityWatchTest, ABrokenRowOfAStepThatRemappedNothingSaysNothingEither) {
  QualityWatch::Options options = EveryStep();
  options.share = 0.001;
  Watch(options);
  sequences_.resize(1);
  runner_->PoisonLogitsAfter(sequences_[0]->tokens().back());
  Step({&kPolicy});
  EXPECT_EQ(watch_->state(), State::kActive);
}

class AutoTest : public QualityWatchTest {
 protected:
  // Half of the steps are compared; the others tell the time.
  void WatchAuto(double max_kl_nats) {
    QualityWatch::Options options = EveryStep();
    options.share = 0.5;
    options.guard.budget.max_kl_nats = max_kl_nats;
    const auto ladder = moe::MakePolicyLadder({.kind = moe::Policy::Kind::kOea, .k0 = 6},
                                              {.kind = moe::Policy::Kind::kOea, .k0 = 2}, 5);
    ASSERT_THAT(ladder, IsOk());
    options.ladder = *ladder;
    options.step_target = absl::Milliseconds(10);  // Steps take 20.
    Watch(options);
    ASSERT_NE(watch_->AutoPolicy(), nullptr);
  }
  void StepAuto() { Step(std::vector<const moe::Policy*>(kSequences, watch_->AutoPolicy())); }
};

TEST_F(AutoTest, IsExactUntilStepsAreTooSlowAndGentlerAfterATrip) {
  WatchAuto(/*max_kl_nats=*/0.05);
  EXPECT_FALSE(watch_->AutoPolicy()->lossy());
  int steps = 0;
  for (; !watch_->AutoPolicy()->lossy() && steps < 1000; ++steps) StepAuto();
  // Two intervals of a second; exact steps are not compared.
  EXPECT_EQ(steps, 100);
  EXPECT_EQ(watch_->AutoPolicy()->k0, 6);
  EXPECT_TRUE(Shows("lynx_moe_auto_rung 1"));
  for (int step = 0; step < 8; ++step) StepAuto();
  EXPECT_EQ(watch_->state(), State::kBackoff);
  EXPECT_TRUE(watch_->AutoPolicy()->lossy()) << "there must be something to probe";
  runner_->StopRemapping();
  for (steps = 0; watch_->state() == State::kBackoff && steps < 10000; ++steps) StepAuto();
  EXPECT_EQ(watch_->state(), State::kActive);
  EXPECT_EQ(watch_->AutoPolicy()->k0, 6);
  for (steps = 0; watch_->AutoPolicy()->k0 == 6 && steps < 20000; ++steps) StepAuto();
  EXPECT_EQ(watch_->AutoPolicy()->k0, 5);
}

TEST_F(AutoTest, MovesByTheTimeOfPlainStepsWithAutoInThemOnly) {
  WatchAuto(/*max_kl_nats=*/100);
  for (int step = 0; step < 300; ++step) StepAll();
  for (int step = 0; step < 300; ++step) {
    sequences_[0]->Preempt();
    StepAuto();
  }
  EXPECT_TRUE(Shows("lynx_moe_auto_rung 0"));
  QualityWatch::Options options = EveryStep();
  options.guard.budget.max_kl_nats = 100;
  options.ladder = {moe::Policy{}, kPolicy};
  Watch(options);
  for (int step = 0; step < 100; ++step) StepAuto();
  EXPECT_TRUE(Shows("lynx_moe_auto_rung 1"));
}

TEST_F(AutoTest, NeedsProofOfItsOwnSamples) {
  WatchAuto(/*max_kl_nats=*/100);
  runner_->StopRemapping();
  for (int step = 0; step < 100; ++step) StepAuto();
  ASSERT_TRUE(Shows("lynx_moe_auto_rung 1"));
  // In a batch of a few rows of another policy and one of auto, only that one speaks for it: of 32
  // samples it needs, one in every eight compared rows comes.
  int steps = 0;
  for (; !Shows("lynx_moe_auto_rung 2") && steps < 10000; ++steps) {
    Step({&kPolicy, &kPolicy, &kPolicy, watch_->AutoPolicy()});
  }
  // Every second step compares two of four rows: one of auto's in four steps.
  EXPECT_GT(steps, 32 * 4 - 8);
  EXPECT_LT(steps, 32 * 4 + 300);
}

}  // namespace
}  // namespace lynx::decode
