// The exactness contract on the demo model: same request, same seed, same bits, whatever shares the
// step, however the prompt is cut, and after preemption.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/engine/local_generator.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::engine {
namespace {

using ::lynx::testing::IsOk;

class ExactnessTest : public ::testing::TestWithParam<DType> {
 protected:
  static constexpr int32_t kMaxRows = 128;
  static constexpr int32_t kMaxLogits = 32;

  std::unique_ptr<Engine> NewEngine(int32_t kv_blocks) {
    auto runner = model::ModelRunner::Load({.model_dir = "models/lynx-tiny-moe",
                                            .compute_dtype = GetParam(),
                                            .kv_dtype = GetParam(),
                                            .kv_blocks = kv_blocks,
                                            .max_step_rows = kMaxRows,
                                            .max_step_logits = kMaxLogits,
                                            .threads = 2});
    EXPECT_THAT(runner, IsOk());
    vocab_size_ = (*runner)->spec().vocab_size;
    return std::make_unique<Engine>(
        *std::move(runner),
        EngineOptions{
            .vocab_size = vocab_size_, .max_step_rows = kMaxRows, .max_step_logits = kMaxLogits});
  }

  std::vector<GenerateRequest> MixedRequests(size_t count, uint32_t seed) {
    std::mt19937 rng(seed);
    std::vector<GenerateRequest> requests(count);
    for (size_t i = 0; i < count; ++i) {
      GenerateRequest& request = requests[i];
      request.prompt.resize(1 + rng() % 90);
      for (TokenId& token : request.prompt) {
        token = static_cast<TokenId>(rng() % static_cast<uint32_t>(vocab_size_));
      }
      SamplingParams& p = request.params;
      p.seed = rng();
      p.temperature = std::vector<float>{0, 0.7f, 1, 1.5f}[i % 4];
      p.top_k = std::vector<int32_t>{0, 20}[rng() % 2];
      p.top_p = std::vector<float>{1, 0.9f}[rng() % 2];
      p.repetition_penalty = std::vector<float>{1, 1.2f}[rng() % 2];
      p.frequency_penalty = std::vector<float>{0, 0.5f}[rng() % 2];
      p.max_new_tokens = 8 + static_cast<int32_t>(rng() % 32);
      p.stop_token_ids = {4095};
      p.top_logprobs = 2;  // Equal log-probabilities: the logits themselves had the same bits.
      p.prompt_logprobs = i % 3 == 0;
    }
    return requests;
  }

  int32_t vocab_size_ = 0;
};

TEST_P(ExactnessTest, AnswersDoNotDependOnBatchChunksOrPreemption) {
  constexpr uint32_t kSeed = 20240229;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  auto roomy = NewEngine(/*kv_blocks=*/256);
  const std::vector<GenerateRequest> requests = MixedRequests(9, kSeed);
  const auto alone =
      Generate(*roomy, requests,
               {.max_context_tokens = 256, .max_chunk_tokens = kMaxRows, .max_sequences = 1});
  ASSERT_THAT(alone, IsOk());

  const struct {
    int32_t chunk, sequences, kv_blocks;
  } kRuns[] = {{kMaxRows, 9, 256}, {7, 9, 256}, {16, 4, 256}, {kMaxRows, 9, 12}, {33, 9, 12}};
  for (const auto& run : kRuns) {
    SCOPED_TRACE(::testing::Message() << "chunk " << run.chunk << " sequences " << run.sequences
                                      << " blocks " << run.kv_blocks);
    auto engine = NewEngine(run.kv_blocks);
    GenerateCounts counts;
    const auto got = Generate(
        *engine, requests,
        {.max_context_tokens = 256, .max_chunk_tokens = run.chunk, .max_sequences = run.sequences},
        &counts);
    ASSERT_THAT(got, IsOk());
    EXPECT_EQ(counts.preemptions > 0, run.kv_blocks < 256);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_THAT((*got)[i].status, IsOk());
      EXPECT_EQ((*got)[i].output, (*alone)[i].output) << "request " << i;
      EXPECT_EQ((*got)[i].prompt_logprobs, (*alone)[i].prompt_logprobs) << "request " << i;
    }
    EXPECT_EQ(engine->pool().free_blocks(), run.kv_blocks);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ExactnessTest, ::testing::Values(DType::kF32, DType::kBf16),
                         [](const auto& dtype) { return std::string(Name(dtype.param)); });

}  // namespace
}  // namespace lynx::engine
