#include "common/engine/engine.h"

#include <cmath>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_model_runner.h"
#include "tests/support/status_matchers.h"
#include "tests/support/wrapped_model_runner.h"

namespace lynx::engine {
namespace {

using ::lynx::testing::FakeModelRunner;
using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LambdaListener final : public StepListener {
 public:
  explicit LambdaListener(std::function<void(int32_t, std::span<const WorkItem>)> call,
                          std::function<void(Sequence&)> left = nullptr)
      : call_(std::move(call)), left_(std::move(left)) {}
  void OnLayerDone(int32_t layer, std::span<const WorkItem> items) override { call_(layer, items); }
  void OnLeft(Sequence& sequence) override {
    if (left_ != nullptr) left_(sequence);
  }

 private:
  std::function<void(int32_t, std::span<const WorkItem>)> call_;
  std::function<void(Sequence&)> left_;
};

class EngineTest : public ::testing::Test {
 protected:
  static constexpr FakeModelRunner::Options kModel{
      .vocab_size = 97, .layers = 3, .kv_blocks = 16, .max_step_rows = 32, .max_step_logits = 8};

  EngineTest() {
    auto runner = std::make_unique<FakeModelRunner>(kModel);
    runner_ = runner.get();
    engine_ = std::make_unique<Engine>(std::move(runner),
                                       EngineOptions{.vocab_size = kModel.vocab_size,
                                                     .max_step_rows = kModel.max_step_rows,
                                                     .max_step_logits = kModel.max_step_logits});
  }

  std::unique_ptr<Sequence> NewSequence(std::vector<TokenId> prompt, SamplingParams params,
                                        std::vector<TokenId> output = {}) {
    auto sequence =
        Sequence::Create(std::move(prompt), std::move(params),
                         {.vocab_size = kModel.vocab_size, .max_context_tokens = 100}, output);
    EXPECT_THAT(sequence, IsOk());
    EXPECT_THAT((*sequence)->EnsureBlocks(engine_->pool(), 40), IsOk());
    return *std::move(sequence);
  }

  FakeModelRunner* runner_;
  std::unique_ptr<Engine> engine_;
};

SamplingParams Greedy() { return {.temperature = 0, .max_new_tokens = 50}; }

TEST_F(EngineTest, SamplesOnlyWhenNothingIsPending) {
  auto sequence = NewSequence({1, 2, 3, 4, 5}, Greedy());
  ASSERT_THAT(engine_->Step({{{sequence.get(), 3}}}), IsOk());
  ASSERT_THAT(engine_->results(), SizeIs(1));
  EXPECT_FALSE(engine_->results()[0].has_token);
  EXPECT_EQ(sequence->computed_tokens(), 3);
  ASSERT_THAT(engine_->Step({{{sequence.get(), 2}}}), IsOk());
  ASSERT_TRUE(engine_->results()[0].has_token);
  EXPECT_THAT(sequence->output(), ElementsAre(engine_->results()[0].token.id));
  EXPECT_EQ(sequence->pending_tokens(), 1);
  EXPECT_EQ(engine_->stats().rows, 5);
  EXPECT_EQ(engine_->stats().sampled_tokens, 1);
}

// Penalties and random numbers follow the sequence's own past.
TEST_F(EngineTest, SamplesFromTheLastRowWithTheStateOfTheOutputSoFar) {
  const SamplingParams params{.temperature = 1,
                              .presence_penalty = 2,
                              .repetition_penalty = 1.5f,
                              .seed = 3,
                              .max_new_tokens = 12};
  auto sequence = NewSequence({1, 2, 3}, params);
  SamplerState state(params, sequence->prompt());
  Sampler sampler(kModel.vocab_size);
  while (!sequence->finished()) {
    ASSERT_THAT(engine_->Step({{{sequence.get(), sequence->pending_tokens()}}}), IsOk());
    SampledToken want;
    ASSERT_THAT(sampler.Sample(runner_->logits(), params, state, want), IsOk());
    ASSERT_EQ(engine_->results()[0].token, want) << "position " << state.output_position();
    state.Append(want.id);
  }
  EXPECT_EQ(state.output_position(), 12);
}

TEST_F(EngineTest, BadItemsAreRefusedBeforeAnythingIsComputed) {
  auto one = NewSequence({1, 2, 3}, Greedy());
  auto other = NewSequence(std::vector<TokenId>(35, 1), Greedy());
  auto finished = NewSequence({1}, {.max_new_tokens = 1}, {5});
  const auto refused = [&](std::vector<WorkItem> items, const char* why) {
    EXPECT_THAT(engine_->Step(items), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
    EXPECT_THAT(engine_->results(), IsEmpty());
  };
  refused({}, "without items");
  refused({{one.get(), 0}}, "asks for 0");
  refused({{one.get(), 4}}, "asks for 4");
  refused({{one.get(), 1}, {one.get(), 1}}, "already");
  refused({{finished.get(), 1}}, "finished");
  refused({{one.get(), 3}, {other.get(), 30}}, "33 rows");
  one->Preempt();
  refused({{one.get(), 1}}, "blocks hold 0");
  EXPECT_EQ(other->computed_tokens(), 0);
  EXPECT_EQ(engine_->stats().steps, 0);
  // And the refused sequences are not left locked.
  ASSERT_THAT(one->EnsureBlocks(engine_->pool(), 3), IsOk());
  EXPECT_THAT(engine_->Step({{{one.get(), 3}, {other.get(), 29}}}), IsOk());
}

TEST_F(EngineTest, AFailedStepChangesNothingAndCanBeRepeated) {
  auto sequence = NewSequence({1, 2, 3}, Greedy());
  auto twin = NewSequence({1, 2, 3}, Greedy());
  runner_->FailNextStep(absl::InternalError("device lost"));
  EXPECT_THAT(engine_->Step({{{sequence.get(), 3}}}), StatusIs(absl::StatusCode::kInternal));
  EXPECT_EQ(sequence->computed_tokens(), 0);
  ASSERT_THAT(engine_->Step({{{sequence.get(), 3}, {twin.get(), 3}}}), IsOk());
  EXPECT_EQ(sequence->output()[0], twin->output()[0]);
}

TEST_F(EngineTest, BrokenLogitsFailTheirSequenceOnly) {
  auto good = NewSequence({1, 2}, Greedy());
  auto bad = NewSequence({1, 66}, Greedy());
  runner_->PoisonLogitsAfter(66);
  ASSERT_THAT(engine_->Step({{{bad.get(), 2}, {good.get(), 2}}}), IsOk());
  EXPECT_THAT(engine_->results()[0].status,
              StatusIs(absl::StatusCode::kInternal, HasSubstr("position 1")));
  EXPECT_FALSE(engine_->results()[0].has_token);
  EXPECT_THAT(bad->output(), IsEmpty());
  EXPECT_THAT(engine_->results()[1].status, IsOk());
  EXPECT_TRUE(engine_->results()[1].has_token);
  EXPECT_EQ(engine_->stats().broken_logits, 1);
}

TEST_F(EngineTest, ListenerHearsEveryLayerWithTheItems) {
  auto sequence = NewSequence({1, 2, 3}, Greedy());
  std::vector<int32_t> layers;
  LambdaListener listener([&](int32_t layer, std::span<const WorkItem> items) {
    layers.push_back(layer);
    ASSERT_THAT(items, SizeIs(1));
    EXPECT_EQ(items[0].sequence, sequence.get());
    EXPECT_EQ(items[0].tokens, 3);
    EXPECT_EQ(sequence->computed_tokens(), 0) << "counted when all layers are done";
  });
  ASSERT_THAT(engine_->Step({{{sequence.get(), 3}}}, &listener), IsOk());
  EXPECT_THAT(layers, ElementsAre(0, 1, 2));
}

TEST_F(EngineTest, StepEndsAtTheNextLayerWhenEverySequenceIsCancelled) {
  auto one = NewSequence({1, 2, 3}, Greedy());
  auto two = NewSequence({4, 5}, Greedy());
  int layers = 0;
  LambdaListener listener([&](int32_t, std::span<const WorkItem>) {
    ++layers;
    one->Cancel();
    if (layers == 2) two->Cancel();
  });
  ASSERT_THAT(engine_->Step({{{one.get(), 3}, {two.get(), 2}}}, &listener), IsOk());
  EXPECT_EQ(layers, 2) << "goes on while one is wanted, then stops";
  for (const ItemResult& result : engine_->results()) {
    EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kCancelled));
    EXPECT_FALSE(result.has_token);
  }
  EXPECT_EQ(engine_->stats().abandoned_steps, 1);
  one.reset();
  two.reset();
  EXPECT_EQ(engine_->pool().free_blocks(), 16);
}

TEST_F(EngineTest, ACancelledSequenceDoesNotDisturbItsNeighbour) {
  auto alone = NewSequence({4, 5}, Greedy());
  ASSERT_THAT(engine_->Step({{{alone.get(), 2}}}), IsOk());
  auto cancelled = NewSequence({1, 2, 3}, Greedy());
  auto kept = NewSequence({4, 5}, Greedy());
  LambdaListener listener([&](int32_t, std::span<const WorkItem>) { cancelled->Cancel(); });
  ASSERT_THAT(engine_->Step({{{cancelled.get(), 3}, {kept.get(), 2}}}, &listener), IsOk());
  EXPECT_THAT(engine_->results()[0].status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(cancelled->output(), IsEmpty());
  ASSERT_THAT(engine_->results()[1].status, IsOk());
  EXPECT_EQ(kept->output()[0], alone->output()[0]);
}

TEST_F(EngineTest, BlocksOfOneThatLeavesAreFreeWhileTheOthersGoOn) {
  auto alone = NewSequence({4, 5}, Greedy());
  ASSERT_THAT(engine_->Step({{{alone.get(), 2}}}), IsOk());
  auto first = NewSequence({4, 5}, Greedy());
  auto leaves = NewSequence({1, 2, 3}, Greedy());
  auto last = NewSequence({4, 5}, Greedy());
  kv::KvArena& kv = engine_->runner().kv();
  const kv::BlockId block = leaves->blocks().group(0)[0];
  const auto mark = std::byte{0x5a};
  std::optional<kv::BlockLease> taken;
  std::vector<size_t> items;
  LambdaListener listener(
      [&](int32_t layer, std::span<const WorkItem> now) {
        items.push_back(now.size());
        if (layer == 0) leaves->Cancel();
      },
      [&](Sequence& left) {
        EXPECT_EQ(&left, leaves.get());
        leaves.reset();
        taken = *engine_->pool().Acquire(1);
        for (int32_t layer = 0; layer < kModel.layers; ++layer) {
          std::ranges::fill(kv.BlockLayerSpan(layer, block), mark);
        }
      });
  ASSERT_THAT(engine_->Step({{{first.get(), 2}, {leaves.get(), 3}, {last.get(), 2}}}, &listener),
              IsOk());
  EXPECT_THAT(items, ElementsAre(3, 2, 2));
  ASSERT_TRUE(taken.has_value());
  EXPECT_THAT(taken->blocks(), ElementsAre(block));
  for (int32_t layer = 0; layer < kModel.layers; ++layer) {
    EXPECT_THAT(kv.BlockLayerSpan(layer, block), Each(mark)) << "the step wrote layer " << layer;
  }
  ASSERT_THAT(engine_->results(), SizeIs(3));
  EXPECT_THAT(engine_->results()[1].status, StatusIs(absl::StatusCode::kCancelled));
  for (const Sequence* stayed : {first.get(), last.get()}) {
    EXPECT_THAT(stayed->output(), ElementsAre(alone->output()[0]));
  }
  EXPECT_TRUE(engine_->results()[0].has_token);
  EXPECT_TRUE(engine_->results()[2].has_token);
}

// Keeps which replica each entry of the last step named, and its first block.
class ReplicaRunner final : public testing::WrappedModelRunner {
 public:
  using Seen = std::vector<std::pair<int32_t, kv::BlockId>>;
  ReplicaRunner(const FakeModelRunner::Options& options, Seen& seen)
      : WrappedModelRunner(std::make_unique<FakeModelRunner>(options)), seen_(seen) {}
  absl::Status Step(std::span<const model::SequenceRows> batch,
                    model::StepObserver* observer) override {
    seen_.clear();
    for (const model::SequenceRows& rows : batch) {
      seen_.emplace_back(rows.replica, rows.blocks[0]);
    }
    return model_->Step(batch, observer);
  }

 private:
  Seen& seen_;
};

TEST_F(EngineTest, EachReplicaHasItsPoolAndItsPartOfAStep) {
  FakeModelRunner::Options model = kModel;
  model.max_step_rows *= 2;
  ReplicaRunner::Seen seen;
  Engine engine(std::make_unique<ReplicaRunner>(model, seen),
                {.vocab_size = kModel.vocab_size,
                 .max_step_rows = kModel.max_step_rows,
                 .max_step_logits = kModel.max_step_logits,
                 .replicas = 2});
  const auto place = [&](int32_t replica, size_t prompt) {
    auto sequence = Sequence::Create(std::vector<TokenId>(prompt, 1), Greedy(),
                                     {.vocab_size = kModel.vocab_size, .max_context_tokens = 100});
    EXPECT_THAT(sequence, IsOk());
    (*sequence)->PlaceOn(replica);
    EXPECT_THAT((*sequence)->EnsureBlocks(engine.pool(replica), 40), IsOk());
    return *std::move(sequence);
  };
  auto first = place(0, 20);
  auto second = place(1, 32);
  auto third = place(0, 13);
  EXPECT_EQ(engine.pool(0).free_blocks(), 10);
  EXPECT_EQ(engine.pool(1).free_blocks(), 13);
  ASSERT_THAT(engine.Step({{{first.get(), 20}, {second.get(), 32}, {third.get(), 12}}}), IsOk());
  EXPECT_THAT(seen, ElementsAre(std::pair(0, first->blocks().group(0)[0]),
                                std::pair(1, second->blocks().group(0)[0]),
                                std::pair(0, third->blocks().group(0)[0])));
  EXPECT_EQ(seen[0].second, seen[1].second) << "pools have ids of their own";
  first->Preempt();
  third->Preempt();
  ASSERT_THAT(first->EnsureBlocks(engine.pool(0), 40), IsOk());
  ASSERT_THAT(third->EnsureBlocks(engine.pool(0), 40), IsOk());
  EXPECT_THAT(engine.Step({{{first.get(), 20}, {third.get(), 13}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("33 rows")));
  auto stranger = place(1, 3);
  stranger->Preempt();
  stranger->PlaceOn(2);
  EXPECT_THAT(engine.Step({{{stranger.get(), 1}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("replica 2 of 2")));
}

using EngineDeathTest = EngineTest;

TEST_F(EngineDeathTest, ASequenceKeepsTheReplicaOfItsBlocks) {
  auto sequence = NewSequence({1, 2, 3}, Greedy());
  EXPECT_DEATH(sequence->PlaceOn(1), "blocks of a replica");
}

TEST_F(EngineDeathTest, BlocksCannotLeaveInsideAStep) {
  auto sequence = NewSequence({1, 2, 3}, Greedy());
  LambdaListener preempt([&](int32_t, std::span<const WorkItem>) { sequence->Preempt(); });
  EXPECT_DEATH(engine_->Step({{{sequence.get(), 3}}}, &preempt).IgnoreError(), "inside a step");
  LambdaListener destroy([&](int32_t, std::span<const WorkItem>) { sequence.reset(); });
  EXPECT_DEATH(engine_->Step({{{sequence.get(), 3}}}, &destroy).IgnoreError(), "inside a step");
}

// Prompt log-probabilities are those the model gives each prompt token, however the prompt is cut.
TEST_F(EngineTest, PromptLogprobsCoverEachTokenOnceInAnyChunks) {
  SamplingParams params = Greedy();
  params.prompt_logprobs = true;
  params.top_logprobs = 2;
  const std::vector<TokenId> prompt = {5, 4, 3, 2, 1, 9, 8};
  std::vector<SampledToken> whole;
  {
    auto sequence = NewSequence(prompt, params);
    ASSERT_THAT(engine_->Step({{{sequence.get(), 7}}}), IsOk());
    whole = engine_->results()[0].prompt_logprobs;
    EXPECT_TRUE(engine_->results()[0].has_token);
  }
  ASSERT_THAT(whole, SizeIs(6));
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i].id, prompt[i + 1]);
    EXPECT_THAT(whole[i].top, SizeIs(2));
    // The same token scored as the next output of the prompt up to it.
    SamplingParams forced = Greedy();
    forced.logit_bias = {{prompt[i + 1], 100.0f}};
    forced.top_logprobs = 2;
    auto prefix =
        NewSequence({prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(i) + 1}, forced);
    ASSERT_THAT(engine_->Step({{{prefix.get(), static_cast<int32_t>(i) + 1}}}), IsOk());
    EXPECT_EQ(engine_->results()[0].token, whole[i]);
  }
  for (int32_t chunk : {1, 2, 3, 6}) {
    auto sequence = NewSequence(prompt, params);
    std::vector<SampledToken> got;
    bool preempted = false;
    while (sequence->output().empty()) {
      const WorkItem item{sequence.get(), std::min(chunk, sequence->pending_tokens())};
      ASSERT_THAT(engine_->Step({{item}}), IsOk());
      const auto& entries = engine_->results()[0].prompt_logprobs;
      got.insert(got.end(), entries.begin(), entries.end());
      if (!preempted && sequence->computed_tokens() > 3) {
        preempted = true;
        sequence->Preempt();
        ASSERT_THAT(sequence->EnsureBlocks(engine_->pool(), 40), IsOk());
      }
    }
    EXPECT_EQ(got, whole) << "chunk " << chunk;
  }
}

TEST_F(EngineTest, PromptLogprobsRefuseAHeldPrefixAndAreNotRepeatedAfterAHandOff) {
  SamplingParams params = Greedy();
  params.prompt_logprobs = true;
  auto held = NewSequence({1, 2, 3}, params);
  auto lease = held->TakeBlocks();
  held->AdoptKv(std::move(lease), 2);
  EXPECT_THAT(engine_->Step({{{held.get(), 1}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("prompt log-prob")));
  auto taken_over = NewSequence({1, 2, 3}, params, {7});
  ASSERT_THAT(engine_->Step({{{taken_over.get(), 4}}}), IsOk());
  EXPECT_THAT(engine_->results()[0].prompt_logprobs, IsEmpty());
  EXPECT_TRUE(engine_->results()[0].has_token);
}

TEST_F(EngineTest, LargestChunkKeepsWithinBothBudgets) {
  auto plain = NewSequence(std::vector<TokenId>(20, 1), Greedy());
  EXPECT_EQ(Engine::LargestChunk(*plain, 32, 8), 20);
  EXPECT_EQ(Engine::LargestChunk(*plain, 7, 8), 7);
  EXPECT_EQ(Engine::LargestChunk(*plain, 32, 0), 19) << "all but the row that is sampled";
  EXPECT_EQ(Engine::LargestChunk(*plain, 0, 8), 0);
  SamplingParams params = Greedy();
  params.prompt_logprobs = true;
  auto scored = NewSequence(std::vector<TokenId>(20, 1), params);
  EXPECT_EQ(Engine::LargestChunk(*scored, 32, 8), 8);
  EXPECT_EQ(Engine::LargestChunk(*scored, 32, 0), 0);
  EXPECT_EQ(Engine::LargestChunk(*scored, 32, 100), 20);
  for (int32_t logits_left = 0; logits_left < 25; ++logits_left) {
    for (Sequence* sequence : {plain.get(), scored.get()}) {
      const int32_t chunk = Engine::LargestChunk(*sequence, 32, logits_left);
      if (chunk > 0) {
        EXPECT_LE(Engine::LogitsRows({sequence, chunk}), logits_left);
      }
      if (chunk < 20) {
        EXPECT_GT(Engine::LogitsRows({sequence, chunk + 1}), logits_left);
      }
    }
  }
}

}  // namespace
}  // namespace lynx::engine
