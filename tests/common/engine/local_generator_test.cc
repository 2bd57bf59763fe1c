#include "common/engine/local_generator.h"

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_model_runner.h"
#include "tests/support/replicas_runner.h"
#include "tests/support/status_matchers.h"

namespace lynx::engine {
namespace {

using ::lynx::testing::FakeModelRunner;
using ::lynx::testing::IsOk;
using ::lynx::testing::ReplicasRunner;
using ::lynx::testing::StatusIs;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int32_t kVocab = 97;

std::unique_ptr<Engine> NewEngine(int32_t kv_blocks, int32_t max_step_rows = 64,
                                  int32_t max_step_logits = 16,
                                  const std::vector<kv::Reach>& reaches = {}) {
  return std::make_unique<Engine>(
      std::make_unique<FakeModelRunner>(FakeModelRunner::Options{.vocab_size = kVocab,
                                                                 .kv_blocks = kv_blocks,
                                                                 .max_step_rows = max_step_rows,
                                                                 .max_step_logits = max_step_logits,
                                                                 .reaches = reaches}),
      EngineOptions{.vocab_size = kVocab,
                    .max_step_rows = max_step_rows,
                    .max_step_logits = max_step_logits});
}

// Requests with every kind of setting in some mixture.
std::vector<GenerateRequest> MixedRequests(size_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<GenerateRequest> requests(count);
  for (GenerateRequest& request : requests) {
    request.prompt.resize(1 + rng() % 70);
    for (TokenId& token : request.prompt) token = static_cast<TokenId>(rng() % kVocab);
    SamplingParams& p = request.params;
    p.seed = rng();
    p.choice_index = static_cast<uint32_t>(rng() % 3);
    p.temperature = std::vector<float>{0, 0.3f, 1, 1.7f}[rng() % 4];
    p.top_k = std::vector<int32_t>{0, 3, 40}[rng() % 3];
    p.top_p = std::vector<float>{1, 0.9f, 0.4f}[rng() % 3];
    p.min_p = std::vector<float>{0, 0.1f}[rng() % 2];
    p.presence_penalty = std::vector<float>{0, 0.6f}[rng() % 2];
    p.frequency_penalty = std::vector<float>{0, -0.4f}[rng() % 2];
    p.repetition_penalty = std::vector<float>{1, 1.3f}[rng() % 2];
    if (rng() % 3 == 0) p.logit_bias = {{static_cast<TokenId>(rng() % kVocab), 2.0f}};
    p.max_new_tokens = 1 + static_cast<int32_t>(rng() % 60);
    p.min_new_tokens = static_cast<int32_t>(rng() % 4) % (p.max_new_tokens + 1);
    p.stop_token_ids = {static_cast<TokenId>(rng() % kVocab), static_cast<TokenId>(rng() % kVocab)};
    p.top_logprobs = static_cast<int32_t>(rng() % 4) - 1;
    p.prompt_logprobs = rng() % 3 == 0;
  }
  return requests;
}

void ExpectEqual(const std::vector<GenerateResult>& got, const std::vector<GenerateResult>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].status, want[i].status) << "request " << i;
    EXPECT_EQ(got[i].output, want[i].output) << "request " << i;
    EXPECT_EQ(got[i].prompt_logprobs, want[i].prompt_logprobs) << "request " << i;
    EXPECT_EQ(got[i].finish_reason, want[i].finish_reason) << "request " << i;
  }
}

constexpr GenerateOptions kAlone{
    .max_context_tokens = 128, .max_chunk_tokens = 64, .max_sequences = 1};

TEST(GenerateTest, AnswersDoNotDependOnBatchChunksOrPreemption) {
  for (uint32_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const std::vector<GenerateRequest> requests = MixedRequests(12, seed);
    auto roomy = NewEngine(/*kv_blocks=*/128);
    const auto alone = Generate(*roomy, requests, kAlone);
    ASSERT_THAT(alone, IsOk());
    for (int32_t chunk : {1, 7, 16, 64}) {
      for (int32_t sequences : {3, 12}) {
        for (int32_t kv_blocks : {9, 128}) {
          SCOPED_TRACE(::testing::Message() << "chunk " << chunk << " sequences " << sequences
                                            << " blocks " << kv_blocks);
          auto engine = NewEngine(kv_blocks);
          GenerateCounts counts;
          const auto got = Generate(
              *engine, requests,
              {.max_context_tokens = 128, .max_chunk_tokens = chunk, .max_sequences = sequences},
              &counts);
          ASSERT_THAT(got, IsOk());
          ExpectEqual(*got, *alone);
          EXPECT_EQ(engine->pool().free_blocks(), kv_blocks);
          if (kv_blocks == 9 && sequences == 12) {
            EXPECT_GT(counts.preemptions, 0);
          }
          if (kv_blocks == 128) {
            EXPECT_EQ(counts.preemptions, 0);
          }
        }
      }
    }
  }
}

// A pool of nine blocks and two sequences that need six each.
TEST(GenerateTest, PreemptionIsTokenIdenticalToARoomyRun) {
  std::vector<GenerateRequest> requests(2);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt.assign(40, static_cast<TokenId>(i + 1));
    requests[i].params = {.temperature = 0, .max_new_tokens = 48};
  }
  const GenerateOptions options{
      .max_context_tokens = 128, .max_chunk_tokens = 64, .max_sequences = 2};
  auto roomy = NewEngine(64);
  const auto want = Generate(*roomy, requests, options);
  auto tight = NewEngine(9);
  GenerateCounts counts;
  const auto got = Generate(*tight, requests, options, &counts);
  ASSERT_THAT(want, IsOk());
  ASSERT_THAT(got, IsOk());
  ExpectEqual(*got, *want);
  EXPECT_GE(counts.preemptions, 1);
  EXPECT_EQ(tight->pool().free_blocks(), 9);
  EXPECT_THAT((*got)[0].output, SizeIs(48));
}

// Whole-context KV: all blocks of the context are leased at the start and none is given back.
std::vector<GenerateResult> WithWholeContext(const std::vector<GenerateRequest>& requests,
                                             const std::vector<kv::Reach>& reaches) {
  std::vector<GenerateResult> results;
  for (const GenerateRequest& request : requests) {
    auto engine = NewEngine(/*kv_blocks=*/64, 64, 64, reaches);
    auto sequence = Sequence::Create(request.prompt, request.params,
                                     {.vocab_size = kVocab, .max_context_tokens = 128});
    EXPECT_THAT(sequence, IsOk());
    EXPECT_THAT((*sequence)->EnsureBlocks(engine->pool(), 128), IsOk());
    GenerateResult& result = results.emplace_back();
    while (!(*sequence)->finished()) {
      const int32_t chunk = std::min((*sequence)->pending_tokens(), 64);
      EXPECT_THAT(engine->Step({{{sequence->get(), chunk}}}), IsOk());
      const ItemResult& item = engine->results()[0];
      result.prompt_logprobs.insert(result.prompt_logprobs.end(), item.prompt_logprobs.begin(),
                                    item.prompt_logprobs.end());
      if (item.has_token) result.output.push_back(item.token);
    }
    EXPECT_EQ(engine->pool().capacity_blocks() - engine->pool().free_blocks(), 24);
    result.finish_reason = (*sequence)->finish_reason();
  }
  return results;
}

TEST(GenerateTest, WhatWindowsHavePassedIsNotMissed) {
  const std::vector<kv::Reach> reaches = {{}, {.window = 20}, {.chunk = 24}};
  for (uint32_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const std::vector<GenerateRequest> requests = MixedRequests(12, seed);
    const std::vector<GenerateResult> whole = WithWholeContext(requests, reaches);
    for (int32_t chunk : {1, 7, 16, 64}) {
      for (int32_t kv_blocks : {23, 128}) {
        SCOPED_TRACE(::testing::Message() << "chunk " << chunk << " blocks " << kv_blocks);
        auto engine = NewEngine(kv_blocks, 64, 16, reaches);
        GenerateCounts counts;
        const auto got = Generate(
            *engine, requests,
            {.max_context_tokens = 128, .max_chunk_tokens = chunk, .max_sequences = 12}, &counts);
        ASSERT_THAT(got, IsOk());
        ExpectEqual(*got, whole);
        EXPECT_EQ(engine->pool().free_blocks(), kv_blocks);
        EXPECT_EQ(counts.preemptions > 0, kv_blocks == 23);
      }
    }
  }
}

std::unique_ptr<Engine> NewReplicas(int32_t replicas, int32_t kv_blocks) {
  std::vector<std::unique_ptr<model::ModelRunner>> runners;
  while (std::ssize(runners) < replicas) {
    runners.push_back(std::make_unique<FakeModelRunner>(
        FakeModelRunner::Options{.vocab_size = kVocab, .kv_blocks = kv_blocks}));
  }
  return std::make_unique<Engine>(
      std::make_unique<ReplicasRunner>(std::move(runners)),
      EngineOptions{
          .vocab_size = kVocab, .max_step_rows = 64, .max_step_logits = 16, .replicas = replicas});
}

TEST(GenerateTest, ReplicasShareRequestsAndGiveTheSameAnswers) {
  for (uint32_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const std::vector<GenerateRequest> requests = MixedRequests(24, seed);
    auto roomy = NewEngine(/*kv_blocks=*/128);
    const auto alone = Generate(*roomy, requests, kAlone);
    ASSERT_THAT(alone, IsOk());
    for (int32_t replicas : {2, 3}) {
      for (int32_t kv_blocks : {9, 128}) {
        SCOPED_TRACE(::testing::Message() << replicas << " replicas, blocks " << kv_blocks);
        auto engine = NewReplicas(replicas, kv_blocks);
        GenerateCounts counts;
        const auto got = Generate(
            *engine, requests,
            {.max_context_tokens = 128, .max_chunk_tokens = 16, .max_sequences = 12}, &counts);
        ASSERT_THAT(got, IsOk());
        ExpectEqual(*got, *alone);
        for (int32_t i = 0; i < replicas; ++i) {
          EXPECT_EQ(engine->pool(i).free_blocks(), kv_blocks) << "replica " << i;
        }
        EXPECT_EQ(counts.preemptions > 0, kv_blocks == 9);
      }
    }
  }
}

// Both prompts fill a step and both answers a pool, so that one replica would take turns.
TEST(GenerateTest, EachReplicaHasStepsAndBlocksOfItsOwn) {
  std::vector<GenerateRequest> requests(2);
  for (GenerateRequest& request : requests) {
    request.prompt.assign(64, 5);
    request.params = {.temperature = 0, .max_new_tokens = 48};
  }
  auto engine = NewReplicas(/*replicas=*/2, /*kv_blocks=*/7);
  GenerateCounts counts;
  const auto got =
      Generate(*engine, requests,
               {.max_context_tokens = 128, .max_chunk_tokens = 64, .max_sequences = 2}, &counts);
  ASSERT_THAT(got, IsOk());
  EXPECT_EQ(counts.steps, 48);
  EXPECT_EQ(counts.preemptions, 0);
}

// A node that dies after any token: another one goes on from prompt and output.
TEST(GenerateTest, ASequenceTakenOverGoesOnAsIfNothingHadHappened) {
  for (const GenerateRequest& request : MixedRequests(8, 5)) {
    auto engine = NewEngine(32);
    const auto whole = Generate(*engine, {{request}}, kAlone);
    ASSERT_THAT(whole, IsOk());
    const std::vector<SampledToken>& output = (*whole)[0].output;
    for (size_t cut = 1; cut < output.size(); ++cut) {
      std::vector<TokenId> done;
      for (size_t i = 0; i < cut; ++i) done.push_back(output[i].id);
      auto other = NewEngine(32);
      auto sequence = Sequence::Create(request.prompt, request.params,
                                       {.vocab_size = kVocab, .max_context_tokens = 128}, done);
      ASSERT_THAT(sequence, IsOk());
      for (size_t i = cut; i < output.size(); ++i) {
        Sequence& running = **sequence;
        ASSERT_FALSE(running.finished());
        ASSERT_THAT(running.EnsureBlocks(other->pool(), 128), IsOk());
        do {
          const int32_t chunk = std::min(running.pending_tokens(), 64);
          ASSERT_THAT(other->Step({{{&running, chunk}}}), IsOk());
        } while (!other->results()[0].has_token);
        ASSERT_EQ(other->results()[0].token, output[i]) << "cut " << cut << " token " << i;
      }
      EXPECT_EQ((*sequence)->finish_reason(), (*whole)[0].finish_reason);
    }
  }
}

TEST(GenerateTest, BadRequestsAreNamedAndLeaveThePoolFull) {
  auto engine = NewEngine(4);
  std::vector<GenerateRequest> requests(2);
  requests[0].prompt = {1};
  requests[1].prompt = {1};
  requests[1].params.top_p = 7;
  EXPECT_THAT(Generate(*engine, requests, kAlone),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("request 1: top_p")));
  requests[1].params = {.max_new_tokens = 100};
  requests[1].prompt.assign(60, 1);
  EXPECT_THAT(Generate(*engine, requests, kAlone), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(engine->pool().free_blocks(), 4);
}

}  // namespace
}  // namespace lynx::engine
