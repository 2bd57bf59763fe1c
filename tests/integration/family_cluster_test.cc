// Every golden variant through a whole cluster (router, prefill in chunks, hand-off, decode),
// against what Hugging Face transformers computed and within the bounds of golden_test.
//
// Run as a whole it prints the table of docs/models.md.

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/golden_fixture.h"
#include "tests/support/recording_model_runner.h"
#include "tests/support/sim_cluster.h"

namespace lynx {
namespace {

using ::lynx::testing::Divergence;
using ::lynx::testing::GoldenPrompt;
using ::lynx::testing::GoldenTestName;
using ::lynx::testing::GoldenVariantPath;
using ::lynx::testing::kGoldenBoundBf16;
using ::lynx::testing::kGoldenBoundF32;
using ::lynx::testing::kGoldenDivergenceBf16;
using ::lynx::testing::kGoldenVariants;
using ::lynx::testing::LoadGoldenFixture;
using ::lynx::testing::LogSumExp;
using ::lynx::testing::PlainSampling;
using ::lynx::testing::RecordedRow;
using ::lynx::testing::RecordingModelRunner;
using ::lynx::testing::RecordingSink;
using ::lynx::testing::RelativeDifference;
using ::lynx::testing::SimCluster;
using ::testing::ElementsAreArray;

constexpr int32_t kSteps = 32;
constexpr int32_t kTopLogprobs = 16;

// What the nodes of a cluster of one pair computed for one request, and what its client got.
struct Answer {
  std::vector<RecordedRow> prefill;
  std::vector<RecordedRow> decode;
  RecordingSink client;
};

class Pair {
 public:
  Pair(const std::string& variant, DType dtype)
      : cluster_({.kv_blocks = 32,
                  .step_rows = 16,  // Fewer than a prompt has.
                  .compute_dtype = dtype,
                  .model_dir = GoldenVariantPath(variant),
                  .wrap_runner = [this](const std::string& name,
                                        std::unique_ptr<model::ModelRunner> model) {
                    return std::make_unique<RecordingModelRunner>(std::move(model), rows_[name]);
                  }}) {}

  std::unique_ptr<Answer> Ask(const std::vector<TokenId>& prompt, int32_t max_new_tokens) {
    auto answer = std::make_unique<Answer>();
    proto::SamplingParams sampling = PlainSampling(max_new_tokens);
    sampling.set_top_logprobs(kTopLogprobs);
    sampling.set_prompt_logprobs(true);
    cluster_.Submit(prompt, sampling, answer->client);
    EXPECT_TRUE(cluster_.RunUntil([&] { return answer->client.ended; }));
    EXPECT_TRUE(answer->client.end.status.ok()) << answer->client.end.status;
    answer->prefill.swap(rows_["prefill-0"]);
    answer->decode.swap(rows_["decode-0"]);
    return answer;
  }

 private:
  std::map<std::string, std::vector<RecordedRow>> rows_;
  SimCluster cluster_;
};

// The logits of positions [0, prompt) came from prefill, the others from decode.
void ExpectSplitServing(const Answer& answer, const std::vector<TokenId>& prompt) {
  ASSERT_EQ(answer.prefill.size(), prompt.size());
  for (size_t i = 0; i < prompt.size(); ++i) {
    ASSERT_EQ(answer.prefill[i].token, prompt[i]);
    ASSERT_EQ(answer.prefill[i].position, static_cast<int32_t>(i));
    ASSERT_FALSE(answer.prefill[i].decode);
  }
  ASSERT_EQ(answer.client.tokens.size(), size_t{kSteps});
  ASSERT_EQ(answer.decode.size(), size_t{kSteps - 1});
  for (size_t i = 0; i < answer.decode.size(); ++i) {
    ASSERT_EQ(answer.decode[i].token, answer.client.tokens[i].id());
    ASSERT_EQ(answer.decode[i].position, static_cast<int32_t>(prompt.size() + i));
    ASSERT_TRUE(answer.decode[i].decode);
  }
}

// The log-probabilities that the client got: of the prompt's tokens, of the first new one and of
// the best of each. A log-probability is the difference of two values that are each within `bound`.
void ExpectLogprobs(const RecordingSink& client, const GoldenPrompt& want, double bound) {
  std::vector<proto::Token> tokens = client.prompt;
  ASSERT_EQ(tokens.size(), want.tokens.size() - 1);
  tokens.push_back(client.tokens.front());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::vector<float>& logits = want.full[i];
    const double norm = LogSumExp(logits);
    const double limit = 2 * bound * want.largest[i];
    EXPECT_NEAR(tokens[i].logprob(), logits[static_cast<size_t>(tokens[i].id())] - norm, limit);
    ASSERT_EQ(tokens[i].top_size(), kTopLogprobs);
    for (int t = 0; t < kTopLogprobs; ++t) {
      const auto& top = tokens[i].top(t);
      EXPECT_NEAR(top.logprob(), logits[static_cast<size_t>(top.token())] - norm, limit);
      EXPECT_NEAR(top.logprob(), want.top[i][static_cast<size_t>(t)] - norm, limit);
    }
  }
}

// How many tokens are the fixture's before the first that is not; there the fixture's two best must
// be closer than `bound`. `widest` becomes at least that distance.
size_t EqualTokens(const RecordingSink& client, const GoldenPrompt& want, double bound,
                   double& widest) {
  const std::vector<TokenId> ids = client.ids();
  const size_t equal = static_cast<size_t>(
      std::mismatch(ids.begin(), ids.end(), want.greedy.begin()).first - ids.begin());
  if (equal < ids.size()) {
    EXPECT_LT(want.greedy_gaps[equal], bound) << "token " << equal;
    widest = std::max(widest, want.greedy_gaps[equal]);
  }
  return equal;
}

// A prefill of prompt and answer computes, to the bit, what decode computed after the hand-off.
void ExpectDecodeEqualsPrefill(const Answer& answer, const std::vector<TokenId>& prompt,
                               Pair& cluster) {
  std::vector<TokenId> all = prompt;
  for (const RecordedRow& row : answer.decode) all.push_back(row.token);
  const auto again = cluster.Ask(all, 1);
  ASSERT_EQ(again->prefill.size(), all.size());
  for (size_t i = 0; i < answer.decode.size(); ++i) {
    EXPECT_THAT(again->prefill[prompt.size() + i].logits, ElementsAreArray(answer.decode[i].logits))
        << "position " << prompt.size() + i;
  }
}

struct Row {
  double f32_logits = 0;
  size_t f32_tokens = 0;
  double f32_gap = 0;
  double bf16_divergence = 0;
  size_t bf16_tokens = 0;
  double bf16_gap = 0;
  size_t tokens = 0;
};

class FamilyClusterTest : public ::testing::TestWithParam<const char*> {
 protected:
  static void TearDownTestSuite() {
    std::string table =
        "\n| variant | f32 logits | f32 tokens | bf16 KL, nats | bf16 tokens | parted at |\n"
        "|---|---|---|---|---|---|\n";
    for (const auto& [name, row] : rows_) {
      absl::StrAppendFormat(&table, "| `%s` | %.1e | %d of %d | %.1e | %d of %d | %s |\n", name,
                            row.f32_logits, row.f32_tokens, row.tokens, row.bf16_divergence,
                            row.bf16_tokens, row.tokens,
                            row.bf16_gap > 0 ? absl::StrFormat("%.1e", row.bf16_gap) : "-");
    }
    std::puts(table.c_str());
  }

  static inline std::map<std::string, Row> rows_;
};

TEST_P(FamilyClusterTest, AnswersAsTransformersDo) {
  Row& row = rows_[GetParam()];
  Pair f32(GetParam(), DType::kF32);
  Pair bf16(GetParam(), DType::kBf16);
  for (const GoldenPrompt& want : LoadGoldenFixture(GoldenVariantPath(GetParam()))) {
    SCOPED_TRACE(absl::StrCat("prompt of ", want.tokens.size()));
    row.tokens += kSteps;
    {
      SCOPED_TRACE("f32");
      const auto answer = f32.Ask(want.tokens, kSteps);
      ASSERT_NO_FATAL_FAILURE(ExpectSplitServing(*answer, want.tokens));
      for (size_t i = 0; i < want.tokens.size(); ++i) {
        row.f32_logits =
            std::max(row.f32_logits, RelativeDifference(want.full[i], answer->prefill[i].logits));
      }
      ExpectLogprobs(answer->client, want, kGoldenBoundF32);
      row.f32_tokens += EqualTokens(answer->client, want, kGoldenBoundF32, row.f32_gap);
      ExpectDecodeEqualsPrefill(*answer, want.tokens, f32);
    }
    {
      SCOPED_TRACE("bf16");
      const auto answer = bf16.Ask(want.tokens, kSteps);
      ASSERT_NO_FATAL_FAILURE(ExpectSplitServing(*answer, want.tokens));
      for (size_t i = 0; i < want.tokens.size(); ++i) {
        row.bf16_divergence =
            std::max(row.bf16_divergence, Divergence(want.full[i], answer->prefill[i].logits));
      }
      row.bf16_tokens += EqualTokens(answer->client, want, kGoldenBoundBf16, row.bf16_gap);
      ExpectDecodeEqualsPrefill(*answer, want.tokens, bf16);
    }
  }
  EXPECT_LE(row.f32_logits, kGoldenBoundF32);
  EXPECT_EQ(row.f32_tokens, row.tokens);
  EXPECT_LE(row.bf16_divergence, kGoldenDivergenceBf16);
}

INSTANTIATE_TEST_SUITE_P(Variants, FamilyClusterTest, ::testing::ValuesIn(kGoldenVariants),
                         [](const auto& param) { return GoldenTestName(param.param); });

}  // namespace
}  // namespace lynx
