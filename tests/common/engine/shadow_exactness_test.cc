// Shadow passes on the demo model: no bit of the step changes, and what they compare is what a step
// of the other plan computes.
#include <cstddef>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "common/engine/shadow.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::engine {
namespace {

using ::lynx::testing::IsOk;

constexpr uint32_t kSeed = 20240301;
constexpr int32_t kSequences = 6;
constexpr moe::Policy kPrune{.kind = moe::Policy::Kind::kPrune, .k0 = 1};
constexpr moe::Policy kOea{.kind = moe::Policy::Kind::kOea, .k0 = 1};

// An engine of its own with the same sequences, prompts computed.
class World {
 public:
  explicit World(DType dtype) {
    auto runner = model::ModelRunner::Load({.model_dir = "models/lynx-tiny-moe",
                                            .compute_dtype = dtype,
                                            .kv_dtype = dtype,
                                            .kv_blocks = 64,
                                            .max_step_rows = 256,
                                            .max_step_logits = 16,
                                            .threads = 1});
    EXPECT_THAT(runner, IsOk());
    vocab_size_ = (*runner)->spec().vocab_size;
    engine_ = std::make_unique<Engine>(
        *std::move(runner),
        EngineOptions{.vocab_size = vocab_size_, .max_step_rows = 256, .max_step_logits = 16});
    std::mt19937 rng(kSeed);
    std::vector<WorkItem> items;
    for (int32_t i = 0; i < kSequences; ++i) {
      std::vector<TokenId> prompt(1 + rng() % 30);
      for (TokenId& token : prompt) token = static_cast<TokenId>(rng() % 4000);
      const auto tokens = static_cast<int32_t>(prompt.size());
      auto sequence = Sequence::Create(
          std::move(prompt), {.temperature = i % 2 == 0 ? 0.0f : 0.8f, .max_new_tokens = 50},
          {.vocab_size = vocab_size_, .max_context_tokens = 100});
      EXPECT_THAT(sequence, IsOk());
      EXPECT_THAT((*sequence)->EnsureBlocks(engine_->pool(), 80), IsOk());
      sequences_.push_back(*std::move(sequence));
      items.push_back({sequences_.back().get(), tokens});
    }
    EXPECT_THAT(engine_->Step(items), IsOk());
  }

  void Step(const std::vector<const moe::Policy*>& policies, Shadow* shadow = nullptr) {
    std::vector<WorkItem> items;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      items.push_back({sequences_[i].get(), 1, policies[i]});
    }
    ASSERT_THAT(engine_->Step(items, nullptr, shadow), IsOk());
  }
  std::vector<float> Logits() const {
    const auto logits = engine_->runner().logits();
    return {logits.begin(), logits.end()};
  }
  std::span<const float> Row(int32_t row) const {
    return engine_->runner().logits().subspan(static_cast<size_t>(row * vocab_size_),
                                              static_cast<size_t>(vocab_size_));
  }
  std::vector<std::vector<TokenId>> Outputs() const {
    std::vector<std::vector<TokenId>> outputs;
    for (const auto& sequence : sequences_) {
      outputs.emplace_back(sequence->output().begin(), sequence->output().end());
    }
    return outputs;
  }
  // All of it: what no sequence holds is zero in every world.
  std::vector<std::byte> Kv() const {
    std::vector<std::byte> bytes;
    kv::KvArena& arena = engine_->runner().kv();
    for (int32_t layer = 0; layer < arena.layout().layers; ++layer) {
      for (kv::BlockId block = 0; block < arena.blocks(); ++block) {
        const auto data = arena.BlockLayerSpan(layer, block);
        bytes.insert(bytes.end(), data.begin(), data.end());
      }
    }
    return bytes;
  }
  int32_t Remapped() const {
    int32_t remapped = 0;
    for (const auto& plan : engine_->runner().stats().plans) {
      remapped += plan.experts_exact - plan.experts;
    }
    return remapped;
  }
  int32_t vocab_size() const { return vocab_size_; }

 private:
  int32_t vocab_size_ = 0;
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

class ShadowExactnessTest : public ::testing::TestWithParam<DType> {
 protected:
  const std::vector<const moe::Policy*> lossy_ = {&kOea, nullptr, &kOea, &kPrune, &kOea, nullptr};
  const std::vector<const moe::Policy*> exact_ = std::vector<const moe::Policy*>(kSequences);
  const std::vector<int32_t> rows_ = {0, 3, 4};
};

TEST_P(ShadowExactnessTest, NoBitOfTheStepChanges) {
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  for (const bool probe : {false, true}) {
    SCOPED_TRACE(probe ? "probe of the policies" : "exact shadow");
    World plain(GetParam());
    World shadowed(GetParam());
    Shadow shadow(plain.vocab_size(), 4);
    for (int step = 0; step < 12; ++step) {
      plain.Step(probe ? exact_ : lossy_);
      probe ? shadow.CompareWithPolicies(rows_, lossy_) : shadow.CompareWithExact(rows_);
      shadowed.Step(probe ? exact_ : lossy_, &shadow);
      ASSERT_EQ(shadow.outcome(), Shadow::Outcome::kCompared);
      ASSERT_EQ(plain.Remapped() > 0, !probe);
      ASSERT_GT(shadow.rows()[0].comparison.kl_nats, 0) << "the two plans differ";
      ASSERT_EQ(plain.Logits(), shadowed.Logits()) << "step " << step;
      ASSERT_EQ(plain.Outputs(), shadowed.Outputs()) << "step " << step;
      ASSERT_EQ(plain.Kv(), shadowed.Kv()) << "step " << step;
    }
  }
}

TEST_P(ShadowExactnessTest, ComparesTheRowsThatStepsOfBothPlansCompute) {
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  // One past, under the policies, then a step of either kind.
  const auto grown = [&] {
    auto world = std::make_unique<World>(GetParam());
    for (int step = 0; step < 5; ++step) world->Step(lossy_);
    return world;
  };
  const auto exact = grown();
  const auto lossy = grown();
  exact->Step(exact_);
  lossy->Step(lossy_);
  Shadow shadow(exact->vocab_size(), 4);
  for (const bool probe : {false, true}) {
    SCOPED_TRACE(probe ? "probe of the policies" : "exact shadow");
    const auto world = grown();
    probe ? shadow.CompareWithPolicies(rows_, lossy_) : shadow.CompareWithExact(rows_);
    world->Step(probe ? exact_ : lossy_, &shadow);
    ASSERT_EQ(shadow.rows().size(), rows_.size());
    for (const Shadow::Row& row : shadow.rows()) {
      const Comparison want = Compare(exact->Row(row.item), lossy->Row(row.item));
      EXPECT_GT(want.kl_nats, 0);
      EXPECT_EQ(row.comparison.kl_nats, want.kl_nats) << "item " << row.item;
      EXPECT_EQ(row.comparison.same_top1, want.same_top1) << "item " << row.item;
    }
    EXPECT_LT(shadow.kept_mass(), 1);
    EXPECT_GT(shadow.kept_mass(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ShadowExactnessTest, ::testing::Values(DType::kF32, DType::kBf16),
                         [](const auto& dtype) { return std::string(Name(dtype.param)); });

}  // namespace
}  // namespace lynx::engine
