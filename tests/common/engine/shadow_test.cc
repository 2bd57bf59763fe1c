#include "common/engine/shadow.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "common/engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_model_runner.h"
#include "tests/support/status_matchers.h"

namespace lynx::engine {
namespace {

using ::lynx::testing::FakeModelRunner;
using ::lynx::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// --- The comparison itself. ---

TEST(CompareTest, IsTheDivergenceOfTheTwoSoftmaxes) {
  // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4): KL = 1/2 log 2 - 1/4 log 2.
  const std::vector<float> p = {std::log(2.0f), 0, 0};
  const std::vector<float> q = {0, std::log(2.0f), 0};
  const Comparison got = Compare(p, q);
  EXPECT_EQ(got.kind, Comparison::Kind::kCompared);
  EXPECT_NEAR(got.kl_nats, 0.25 * std::log(2.0), 1e-7);
  EXPECT_FALSE(got.same_top1);
}

TEST(CompareTest, TheExactSideComesFirst) {
  // p = (1/2, 1/2), q = (3/4, 1/4).
  const std::vector<float> p = {0, 0};
  const std::vector<float> q = {std::log(3.0f), 0};
  EXPECT_NEAR(Compare(p, q).kl_nats, 0.5 * std::log(4.0 / 3), 1e-7);
  EXPECT_NEAR(Compare(q, p).kl_nats, 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-7);
}

TEST(CompareTest, ShiftsAndScaleDoNotHurt) {
  std::vector<float> p;
  std::vector<float> q;
  for (int i = 0; i < 1000; ++i) {
    p.push_back(static_cast<float>(i % 37) * 0.25f);
    q.push_back(static_cast<float>(i % 41) * 0.25f);
  }
  const double want = Compare(p, q).kl_nats;
  EXPECT_GT(want, 1);
  for (float& logit : q) logit += 8192;
  EXPECT_NEAR(Compare(p, q).kl_nats, want, 1e-9);
  EXPECT_EQ(Compare(p, p).kl_nats, 0);
  EXPECT_TRUE(Compare(p, p).same_top1);
  // As far apart as logits can be: finite, and neither sum overflows.
  EXPECT_NEAR(Compare(std::vector<float>{1e4f, 0}, std::vector<float>{0, 1e4f}).kl_nats, 1e4, 1e-6);
}

TEST(CompareTest, TiesGoToTheLowestId) {
  EXPECT_TRUE(Compare(std::vector<float>{1, 1, 0}, std::vector<float>{1, 0, 1}).same_top1);
  EXPECT_FALSE(Compare(std::vector<float>{0, 1, 1}, std::vector<float>{1, 1, 0}).same_top1);
}

TEST(CompareTest, SaysWhichSideIsBroken) {
  const std::vector<float> sound = {1, 2, 3};
  for (const std::vector<float>& broken :
       {std::vector<float>{1, kNan, 3}, {1, kInf, 3}, {-kInf, -kInf, -kInf}}) {
    EXPECT_EQ(Compare(sound, broken).kind, Comparison::Kind::kPolicyBroken);
    EXPECT_EQ(Compare(broken, sound).kind, Comparison::Kind::kExactBroken);
    EXPECT_EQ(Compare(broken, broken).kind, Comparison::Kind::kExactBroken);
  }
  // What is impossible exactly may be possible under the policy, not the other way round.
  EXPECT_EQ(Compare(std::vector<float>{-kInf, 2, 3}, sound).kind, Comparison::Kind::kCompared);
  EXPECT_EQ(Compare(sound, std::vector<float>{-kInf, 2, 3}).kind, Comparison::Kind::kPolicyBroken);
}

// --- The pass, over a model whose bits tell the plan. ---

class ShadowTest : public ::testing::Test {
 protected:
  static constexpr FakeModelRunner::Options kModel{
      .vocab_size = 97, .layers = 3, .kv_blocks = 16, .max_step_rows = 32, .max_step_logits = 8};
  static constexpr moe::Policy kPolicy{.kind = moe::Policy::Kind::kOea, .k0 = 2};

  // An engine with three sequences, prompts computed.
  struct World {
    FakeModelRunner* runner = nullptr;
    std::unique_ptr<Engine> engine;
    std::vector<std::unique_ptr<Sequence>> sequences;

    std::vector<WorkItem> Items(std::vector<const moe::Policy*> policies) const {
      std::vector<WorkItem> items;
      for (size_t i = 0; i < sequences.size(); ++i) {
        items.push_back({sequences[i].get(), 1, policies[i]});
      }
      return items;
    }
    std::vector<std::vector<TokenId>> Outputs() const {
      std::vector<std::vector<TokenId>> outputs;
      for (const auto& sequence : sequences) {
        outputs.emplace_back(sequence->output().begin(), sequence->output().end());
      }
      return outputs;
    }
    std::vector<float> Logits() const { return {runner->logits().begin(), runner->logits().end()}; }
    // KV of every computed token.
    std::vector<std::byte> Kv() const {
      std::vector<std::byte> bytes;
      kv::KvArena& arena = runner->kv();
      for (const auto& sequence : sequences) {
        for (int32_t p = 0; p < sequence->computed_tokens(); ++p) {
          const auto block = sequence->blocks().group(0)[static_cast<size_t>(p / kv::kBlockTokens)];
          for (int32_t layer = 0; layer < kModel.layers; ++layer) {
            const std::byte* slot =
                arena.BlockLayer(layer, block) + p % kv::kBlockTokens * sizeof(uint64_t);
            bytes.insert(bytes.end(), slot, slot + sizeof(uint64_t));
          }
        }
      }
      return bytes;
    }
  };

  World NewWorld() {
    World world;
    auto runner = std::make_unique<FakeModelRunner>(kModel);
    world.runner = runner.get();
    world.engine = std::make_unique<Engine>(
        std::move(runner), EngineOptions{.vocab_size = kModel.vocab_size,
                                         .max_step_rows = kModel.max_step_rows,
                                         .max_step_logits = kModel.max_step_logits});
    std::vector<WorkItem> items;
    for (std::vector<TokenId> prompt : {std::vector<TokenId>{1, 2, 3}, {7}, {9, 8, 7, 6}}) {
      const auto tokens = static_cast<int32_t>(prompt.size());
      auto sequence =
          Sequence::Create(std::move(prompt), {.temperature = 0, .max_new_tokens = 50},
                           {.vocab_size = kModel.vocab_size, .max_context_tokens = 100});
      EXPECT_THAT(sequence, IsOk());
      EXPECT_THAT((*sequence)->EnsureBlocks(world.engine->pool(), 40), IsOk());
      world.sequences.push_back(*std::move(sequence));
      items.push_back({world.sequences.back().get(), tokens});
    }
    EXPECT_THAT(world.engine->Step(items), IsOk());
    return world;
  }

  static std::vector<float> Row(const std::vector<float>& logits, int32_t row) {
    const auto begin = logits.begin() + row * kModel.vocab_size;
    return {begin, begin + kModel.vocab_size};
  }
  static std::vector<const moe::Policy*> All(const moe::Policy* policy) {
    return std::vector<const moe::Policy*>(3, policy);
  }
};

TEST_F(ShadowTest, LeavesTokensLogitsAndKvOfTheStepAsTheyAre) {
  for (const bool probe : {false, true}) {
    SCOPED_TRACE(probe ? "probe of the policy" : "exact shadow");
    const auto real = probe ? std::vector<const moe::Policy*>(3, nullptr)
                            : std::vector<const moe::Policy*>{&kPolicy, nullptr, &kPolicy};
    World plain = NewWorld();
    World shadowed = NewWorld();
    Shadow shadow(kModel.vocab_size, 2);
    for (int step = 0; step < 20; ++step) {
      ASSERT_THAT(plain.engine->Step(plain.Items(real)), IsOk());
      if (probe) {
        shadow.CompareWithPolicies({{0, 2}}, {{&kPolicy, nullptr, &kPolicy}});
      } else {
        shadow.CompareWithExact({{0, 2}});
      }
      ASSERT_THAT(shadowed.engine->Step(shadowed.Items(real), nullptr, &shadow), IsOk());
      ASSERT_EQ(shadow.outcome(), Shadow::Outcome::kCompared);
      ASSERT_EQ(plain.Logits(), shadowed.Logits()) << "step " << step;
      ASSERT_EQ(plain.Outputs(), shadowed.Outputs()) << "step " << step;
      ASSERT_EQ(plain.Kv(), shadowed.Kv()) << "step " << step;
    }
    EXPECT_EQ(plain.engine->stats().steps, shadowed.engine->stats().steps);
  }
}

// Three worlds of one past: what the shadow in the first has compared is what the other two
// compute.
TEST_F(ShadowTest, ComparesWithWhatAStepOfTheOtherPlanGives) {
  World exact = NewWorld();
  World lossy = NewWorld();
  ASSERT_THAT(exact.engine->Step(exact.Items(All(nullptr))), IsOk());
  ASSERT_THAT(lossy.engine->Step(lossy.Items({&kPolicy, nullptr, &kPolicy})), IsOk());
  const std::vector<float> p = exact.Logits();
  const std::vector<float> q = lossy.Logits();
  ASSERT_NE(Row(p, 0), Row(q, 0));
  ASSERT_EQ(Row(p, 1), Row(q, 1)) << "a row without a policy does not depend on its neighbours'";

  Shadow shadow(kModel.vocab_size, 4);
  const auto expect_both = [&] {
    ASSERT_EQ(shadow.outcome(), Shadow::Outcome::kCompared);
    ASSERT_THAT(shadow.rows(), SizeIs(2));
    EXPECT_EQ(shadow.kept_mass(), 0.75);
    for (const Shadow::Row& row : shadow.rows()) {
      const Comparison want = Compare(Row(p, row.item), Row(q, row.item));
      EXPECT_GT(want.kl_nats, 0);
      EXPECT_EQ(row.comparison.kl_nats, want.kl_nats) << "item " << row.item;
      EXPECT_EQ(row.comparison.same_top1, want.same_top1);
    }
    EXPECT_EQ(shadow.rows()[0].item, 0);
    EXPECT_EQ(shadow.rows()[1].item, 2);
  };
  World one = NewWorld();
  shadow.CompareWithExact({{0, 2}});
  ASSERT_THAT(one.engine->Step(one.Items({&kPolicy, nullptr, &kPolicy}), nullptr, &shadow), IsOk());
  expect_both();
  World other = NewWorld();
  shadow.CompareWithPolicies({{0, 2}}, {{&kPolicy, nullptr, &kPolicy}});
  ASSERT_THAT(other.engine->Step(other.Items(All(nullptr)), nullptr, &shadow), IsOk());
  expect_both();
}

TEST_F(ShadowTest, ComparesAtMostTheRowsItWasMadeFor) {
  World world = NewWorld();
  Shadow shadow(kModel.vocab_size, 2);
  shadow.CompareWithExact({{0, 1, 2}});
  ASSERT_THAT(world.engine->Step(world.Items(All(&kPolicy)), nullptr, &shadow), IsOk());
  EXPECT_THAT(shadow.rows(), SizeIs(2));
}

TEST_F(ShadowTest, StepsThatAreExactAnywayAreNotCompared) {
  World world = NewWorld();
  Shadow shadow(kModel.vocab_size, 2);
  const auto unsuitable = [&](std::vector<WorkItem> items, std::vector<int32_t> rows) {
    shadow.CompareWithExact(rows);
    EXPECT_THAT(world.engine->Step(items, nullptr, &shadow), IsOk());
    EXPECT_EQ(shadow.outcome(), Shadow::Outcome::kUnsuitable);
    EXPECT_THAT(shadow.rows(), IsEmpty());
  };
  shadow.CompareWithExact({{0}});
  ASSERT_THAT(world.engine->Step(world.Items(All(&kPolicy)), nullptr, &shadow), IsOk());
  ASSERT_EQ(shadow.outcome(), Shadow::Outcome::kCompared);
  unsuitable({world.Items(All(&kPolicy))[0]}, {0});  // One row.
  unsuitable(world.Items(All(nullptr)), {});         // Nothing to compare.
  world.sequences[1]->Preempt();                     // To be computed again: prompt rows.
  ASSERT_THAT(world.sequences[1]->EnsureBlocks(world.engine->pool(), 40), IsOk());
  unsuitable(world.Items(All(&kPolicy)), {0, 2});
}

TEST_F(ShadowTest, AShadowThatFailsLeavesTheStepAlone) {
  World plain = NewWorld();
  World world = NewWorld();
  Shadow shadow(kModel.vocab_size, 2);
  world.runner->FailNextStep(absl::UnavailableError("lost"));
  shadow.CompareWithExact({{0}});
  ASSERT_THAT(world.engine->Step(world.Items(All(&kPolicy)), nullptr, &shadow), IsOk());
  EXPECT_EQ(shadow.outcome(), Shadow::Outcome::kFailed);
  EXPECT_TRUE(absl::IsUnavailable(shadow.status()));
  ASSERT_THAT(plain.engine->Step(plain.Items(All(&kPolicy))), IsOk());
  EXPECT_EQ(plain.Outputs(), world.Outputs());
}

TEST_F(ShadowTest, AStepThatFailsOrIsRefusedComparesNothing) {
  World world = NewWorld();
  Shadow shadow(kModel.vocab_size, 2);
  shadow.CompareWithExact({{0}});
  std::vector<WorkItem> twice = world.Items(All(&kPolicy));
  twice[1] = twice[0];
  EXPECT_FALSE(world.engine->Step(twice, nullptr, &shadow).ok());
  EXPECT_EQ(shadow.outcome(), Shadow::Outcome::kNothing);
  for (auto& sequence : world.sequences) sequence->Cancel();
  shadow.CompareWithExact({{0}});
  ASSERT_THAT(world.engine->Step(world.Items(All(&kPolicy)), nullptr, &shadow), IsOk());
  EXPECT_THAT(shadow.rows(), IsEmpty());
  EXPECT_NE(shadow.outcome(), Shadow::Outcome::kCompared);
}

// The KV of a shadow is not final: nobody may be told of it.
TEST_F(ShadowTest, TheListenerHearsOfTheStepOnly) {
  class Listener final : public StepListener {
   public:
    void OnLayerDone(int32_t layer, std::span<const WorkItem>) override { layers.push_back(layer); }
    void OnLeft(Sequence&) override {}
    std::vector<int32_t> layers;
  };
  World world = NewWorld();
  Shadow shadow(kModel.vocab_size, 2);
  Listener listener;
  shadow.CompareWithExact({{0}});
  ASSERT_THAT(world.engine->Step(world.Items(All(&kPolicy)), &listener, &shadow), IsOk());
  EXPECT_THAT(listener.layers, ElementsAre(0, 1, 2));
}

TEST_F(ShadowTest, ABrokenPolicyRowIsToldFromABrokenModel) {
  World world = NewWorld();
  const TokenId fed = world.sequences[0]->tokens().back();
  world.runner->PoisonLogitsAfter(fed);
  Shadow shadow(kModel.vocab_size, 2);
  shadow.CompareWithExact({{0}});
  ASSERT_THAT(world.engine->Step(world.Items(All(&kPolicy)), nullptr, &shadow), IsOk());
  ASSERT_THAT(shadow.rows(), SizeIs(1));
  EXPECT_EQ(shadow.rows()[0].comparison.kind, Comparison::Kind::kExactBroken);
}

}  // namespace
}  // namespace lynx::engine
