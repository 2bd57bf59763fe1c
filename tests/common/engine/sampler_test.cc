#include "common/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::engine {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SamplingParams Greedy() { return {.temperature = 0, .max_new_tokens = 1000}; }

SamplerState StateOf(const SamplingParams& params, std::vector<TokenId> prompt,
                     std::vector<TokenId> output) {
  SamplerState state(params, prompt);
  for (TokenId token : output) state.Append(token);
  return state;
}

TokenId Choose(const std::vector<float>& row, const SamplingParams& params,
               const std::vector<TokenId>& prompt = {0}, const std::vector<TokenId>& output = {}) {
  Sampler sampler(static_cast<int32_t>(row.size()));
  SampledToken token;
  EXPECT_THAT(sampler.Sample(row, params, StateOf(params, prompt, output), token), IsOk());
  return token.id;
}

// How often each token comes at positions 0..count-1 of one seed.
std::vector<int> Histogram(const std::vector<float>& row, SamplingParams params, int count) {
  Sampler sampler(static_cast<int32_t>(row.size()));
  SamplerState state(params, {});
  std::vector<int> histogram(row.size());
  SampledToken token;
  for (int i = 0; i < count; ++i) {
    EXPECT_THAT(sampler.Sample(row, params, state, token), IsOk());
    ++histogram[static_cast<size_t>(token.id)];
    state.Append(token.id);
  }
  return histogram;
}

// The distribution that the documented order defines, by full sorts in float64.
std::vector<double> Reference(const std::vector<float>& row, const SamplingParams& params) {
  const size_t size = row.size();
  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return row[a] > row[b]; });
  if (params.top_k > 0) order.resize(std::min(size, static_cast<size_t>(params.top_k)));
  std::vector<double> weight;
  for (size_t i : order) {
    weight.push_back(std::exp((static_cast<double>(row[i]) - static_cast<double>(row[order[0]])) /
                              static_cast<double>(params.temperature)));
  }
  const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  size_t kept = 0;
  for (double sum = 0; kept < order.size() && sum < static_cast<double>(params.top_p) * total;) {
    sum += weight[kept++];
  }
  while (kept > 1 && weight[kept - 1] < static_cast<double>(params.min_p)) --kept;
  const double kept_total =
      std::accumulate(weight.begin(), weight.begin() + static_cast<ptrdiff_t>(kept), 0.0);
  std::vector<double> probability(size);
  for (size_t i = 0; i < kept; ++i) probability[order[i]] = weight[i] / kept_total;
  return probability;
}

TEST(SamplerTest, GreedyTakesTheLargestAndTheLowestIdOfATie) {
  EXPECT_EQ(Choose({1, 3, 2}, Greedy()), 1);
  EXPECT_EQ(Choose({1, 3, 3, 3}, Greedy()), 1);
  EXPECT_EQ(Choose({-kInf, -5, -kInf}, Greedy()), 1);
}

TEST(SamplerTest, BrokenLogitsAreAnErrorNotAnAnswer) {
  for (const SamplingParams& params : {Greedy(), SamplingParams{}}) {
    for (float poison : {kNan, kInf}) {
      Sampler sampler(3);
      SampledToken token;
      EXPECT_THAT(
          sampler.Sample(std::vector<float>{0, poison, 1}, params, StateOf(params, {}, {}), token),
          StatusIs(absl::StatusCode::kInternal));
      EXPECT_THAT(sampler.Score(std::vector<float>{0, 1, poison}, 0, 0, token),
                  StatusIs(absl::StatusCode::kInternal));
    }
  }
  Sampler sampler(2);
  SampledToken token;
  EXPECT_THAT(
      sampler.Sample(std::vector<float>{-kInf, -kInf}, Greedy(), StateOf(Greedy(), {}, {}), token),
      StatusIs(absl::StatusCode::kInternal));
}

TEST(SamplerTest, RepetitionPenaltyCoversPromptAndOutputOnce) {
  SamplingParams params = Greedy();
  params.repetition_penalty = 2;
  EXPECT_EQ(Choose({4, 3, -1}, params, {0, 0, 0}), 1) << "4 / 2 < 3, however often it was there";
  EXPECT_EQ(Choose({4, 3, -1}, params, {2}, {0}), 1) << "output counts too";
  EXPECT_EQ(Choose({-1, -1.5f}, params, {0}), 1) << "negative logits are multiplied";
  EXPECT_EQ(Choose({4, 1.9f, -1}, params, {0}), 0);
}

TEST(SamplerTest, FrequencyAndPresencePenaltiesCoverTheOutputOnly) {
  SamplingParams params = Greedy();
  params.frequency_penalty = 0.5f;
  EXPECT_EQ(Choose({2, 1}, params, {0, 0, 0, 0}), 0) << "the prompt does not count";
  EXPECT_EQ(Choose({2, 1}, params, {1}, {0}), 0) << "2 - 0.5";
  EXPECT_EQ(Choose({2, 1}, params, {1}, {0, 0, 0}), 1) << "2 - 1.5";
  params.frequency_penalty = 0;
  params.presence_penalty = 0.75f;
  EXPECT_EQ(Choose({2, 1}, params, {1}, {0, 0, 0}), 0) << "once, however often";
  params.presence_penalty = 1.5f;
  EXPECT_EQ(Choose({2, 1}, params, {1}, {0}), 1);
  params.presence_penalty = -1.5f;
  EXPECT_EQ(Choose({2, 1}, params, {0}, {1}), 1) << "a negative penalty invites";
}

TEST(SamplerTest, LogitBiasIsAdded) {
  SamplingParams params = Greedy();
  params.logit_bias = {{0, -100.0f}, {2, 0.5f}};
  EXPECT_EQ(Choose({50, 3, 2.75f}, params), 2);
}

TEST(SamplerTest, StopIdsAreMaskedUntilTheMinimumAndBiasCannotReviveThem) {
  SamplingParams params = Greedy();
  params.min_new_tokens = 2;
  params.stop_token_ids = {1};
  params.logit_bias = {{1, 100.0f}};
  EXPECT_EQ(Choose({1, 5, 2}, params), 2);
  EXPECT_EQ(Choose({1, 5, 2}, params, {0}, {0}), 2);
  EXPECT_EQ(Choose({1, 5, 2}, params, {0}, {0, 0}), 1);

  params.stop_token_ids = {0, 1, 2};
  Sampler sampler(3);
  SampledToken token;
  EXPECT_THAT(sampler.Sample(std::vector<float>{1, 5, 2}, params, StateOf(params, {0}, {}), token),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("no token is left")));
}

TEST(SamplerTest, ExtremeTemperaturesStayFinite) {
  SamplingParams params{.temperature = 1e-40f};
  EXPECT_EQ(Choose({1, 3, 3.0001f, -kInf}, params), 2);
  params.temperature = 100;
  params.top_p = 0.5f;
  Choose({1, 3, 2, -kInf, -1e38f, 1e38f}, params);
}

TEST(SamplerTest, TruncationNeverDropsTheBestToken) {
  SamplingParams params;
  params.top_p = 1e-6f;
  EXPECT_EQ(Choose({0, 1, 2, 3}, params), 3);
  params = {.top_k = 1};
  EXPECT_EQ(Choose({0, 3, 2, 3}, params), 1);
  params = {.min_p = 1};
  EXPECT_EQ(Choose({0, 1, 2, 3}, params), 3);
}

// Every way through the sampler against the definition: what cannot come never comes, and what can
// comes as often as it should. The seed is fixed, so the outcome is too.
TEST(SamplerTest, FrequenciesFollowTheDefinition) {
  std::mt19937 rng(20240229);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> row(1100);
  for (float& x : row) x = normal(rng);
  row[3] = -kInf;
  for (size_t i = 0; i < 8; ++i) row[i * 130 + 7] = 5.0f + static_cast<float>(i % 4);

  constexpr int kDraws = 2000;
  for (float temperature : {0.5f, 1.0f, 1.5f}) {
    for (int32_t top_k : {0, 5, 600}) {
      for (float top_p : {1.0f, 0.9f, 0.5f}) {
        for (float min_p : {0.0f, 0.05f}) {
          const SamplingParams params{.temperature = temperature,
                                      .top_p = top_p,
                                      .top_k = top_k,
                                      .min_p = min_p,
                                      .seed = 42};
          SCOPED_TRACE(::testing::Message() << "T " << temperature << " top_k " << top_k
                                            << " top_p " << top_p << " min_p " << min_p);
          const std::vector<double> want = Reference(row, params);
          const std::vector<int> got = Histogram(row, params, kDraws);
          // Pearson's statistic over the tokens expected often enough, the others in one bin.
          double statistic = 0;
          double rest_want = 0;
          double rest_got = 0;
          int bins = 0;
          for (size_t i = 0; i < row.size(); ++i) {
            if (want[i] == 0) {
              ASSERT_EQ(got[i], 0) << "token " << i << " must not come";
            }
            const double expected = want[i] * kDraws;
            if (expected >= 10) {
              statistic += (got[i] - expected) * (got[i] - expected) / expected;
              ++bins;
            } else {
              rest_want += expected;
              rest_got += got[i];
            }
          }
          if (rest_want >= 10) {
            statistic += (rest_got - rest_want) * (rest_got - rest_want) / rest_want;
            ++bins;
          }
          const double freedom = std::max(bins - 1, 1);
          // Five standard deviations of the statistic.
          EXPECT_LT(statistic, freedom + 5 * std::sqrt(2 * freedom) + 5) << bins << " bins";
        }
      }
    }
  }
}

TEST(SamplerTest, TheChoiceDependsOnSeedChoiceAndPositionAlone) {
  const std::vector<float> row(1000, 0.0f);
  const auto draws = [&](uint64_t seed, uint32_t choice) {
    SamplingParams params{.seed = seed, .choice_index = choice};
    std::vector<TokenId> ids;
    for (size_t position = 0; position < 8; ++position) {
      // A fresh sampler and a rebuilt state each time: nothing else is remembered.
      ids.push_back(Choose(row, params, {0}, std::vector<TokenId>(position, 1)));
    }
    return ids;
  };
  EXPECT_EQ(draws(1, 0), draws(1, 0));
  EXPECT_NE(draws(1, 0), draws(2, 0));
  EXPECT_NE(draws(1, 0), draws(uint64_t{1} << 32 | 1, 0)) << "all 64 bits of the seed count";
  EXPECT_NE(draws(1, 0), draws(1, 1));
  const std::vector<TokenId> ids = draws(7, 0);
  EXPECT_NE(std::vector<TokenId>(8, ids[0]), ids) << "each position draws anew";
}

TEST(SamplerTest, LogprobsAreOfTheRawRowBestFirst) {
  SamplingParams params = Greedy();
  params.top_logprobs = 3;
  params.logit_bias = {{3, 100.0f}};
  params.temperature = 0;
  const std::vector<float> row = {1, 2, 2, -kInf};
  Sampler sampler(4);
  SampledToken token;
  ASSERT_THAT(sampler.Sample(row, params, StateOf(params, {0}, {}), token), IsOk());
  const double log_sum = std::log(std::exp(1.0) + 2 * std::exp(2.0));
  EXPECT_EQ(token.id, 1) << "-Inf plus a bias is still -Inf";
  ASSERT_TRUE(token.has_logprob);
  EXPECT_NEAR(token.logprob, 2 - log_sum, 1e-6);
  ASSERT_THAT(token.top, SizeIs(3));
  EXPECT_EQ(token.top[0].id, 1);
  EXPECT_EQ(token.top[1].id, 2);
  EXPECT_EQ(token.top[2].id, 0);
  EXPECT_EQ(token.top[0].logprob, token.logprob);
  EXPECT_NEAR(token.top[2].logprob, 1 - log_sum, 1e-6);

  // The chosen token is far from the best of the raw row; its own value is still there.
  params.logit_bias = {{0, 100.0f}};
  params.top_logprobs = 1;
  ASSERT_THAT(sampler.Sample(row, params, StateOf(params, {0}, {}), token), IsOk());
  EXPECT_EQ(token.id, 0);
  EXPECT_NEAR(token.logprob, 1 - log_sum, 1e-6);
  EXPECT_THAT(token.top, ElementsAre(TopLogprob{1, static_cast<float>(2 - log_sum)}));

  params.top_logprobs = kNoLogprobs;
  ASSERT_THAT(sampler.Sample(row, params, StateOf(params, {0}, {}), token), IsOk());
  EXPECT_FALSE(token.has_logprob);
  EXPECT_THAT(token.top, IsEmpty());
}

TEST(SamplerTest, LogprobsAreFiniteWhateverTheRow) {
  Sampler sampler(3);
  SampledToken token;
  ASSERT_THAT(sampler.Score(std::vector<float>{0, -kInf, -1e30f}, 1, 3, token), IsOk());
  EXPECT_EQ(token.logprob, kLogprobFloor);
  EXPECT_THAT(token.top, ElementsAre(TopLogprob{0, 0.0f}, TopLogprob{2, kLogprobFloor},
                                     TopLogprob{1, kLogprobFloor}));
}

TEST(SamplingParamsTest, ValidateNamesTheField) {
  EXPECT_THAT(Validate(SamplingParams{}, 10), IsOk());
  const std::pair<const char*, SamplingParams> kCases[] = {
      {"temperature", {.temperature = -1}},
      {"temperature", {.temperature = kNan}},
      {"temperature", {.temperature = kInf}},
      {"top_p", {.top_p = 0}},
      {"top_p", {.top_p = 1.5f}},
      {"top_k", {.top_k = -1}},
      {"min_p", {.min_p = kNan}},
      {"presence_penalty", {.presence_penalty = 3}},
      {"frequency_penalty", {.frequency_penalty = -3}},
      {"repetition_penalty", {.repetition_penalty = 0}},
      {"logit_bias", {.logit_bias = {{10, 1.0f}}}},
      {"logit_bias", {.logit_bias = {{-1, 1.0f}}}},
      {"logit_bias", {.logit_bias = {{1, kNan}}}},
      {"max_new_tokens", {.max_new_tokens = 0}},
      {"min_new_tokens", {.max_new_tokens = 1, .min_new_tokens = 2}},
      {"stop_token_ids", {.stop_token_ids = {10}}},
      {"stop_token_ids", {.stop_token_ids = {-1}}},
      {"top_logprobs", {.top_logprobs = 21}},
      {"top_logprobs", {.top_logprobs = -2}},
  };
  for (const auto& [field, params] : kCases) {
    EXPECT_THAT(Validate(params, 10),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(field)));
  }
}

}  // namespace
}  // namespace lynx::engine
