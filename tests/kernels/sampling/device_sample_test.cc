// Tokens drawn on a GPU against those of the sampler that serves on CPUs.
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "common/engine/sampler.h"
#include "gtest/gtest.h"
#include "kernels/sampling/logits.h"
#include "kernels/sampling/philox.h"
#include "kernels/sampling/sample.h"
#include "tests/support/cuda_emulation/emulated_context.h"
#include "tests/support/cuda_emulation/emulator.h"
#include "tests/support/test_size.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::ForTestSize;

constexpr float kInf = std::numeric_limits<float>::infinity();

class DeviceSampleTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "fibers do not go with ThreadSanitizer";
#endif
  }
  void TearDown() override { cuda_emulation::SetOptions({}); }
};

std::vector<TokenId> Sample(const std::vector<float>& logits, const std::vector<SampleRow>& rows,
                            const ExecContext& ctx = testing::EmulatedCuda()) {
  const auto vocab = static_cast<int64_t>(logits.size() / rows.size());
  std::vector<TokenId> tokens(rows.size(), -77);
  const absl::Status status = SampleOnDevice({.logits = logits.data(),
                                              .rows = rows.data(),
                                              .tokens = tokens.data(),
                                              .row_count = static_cast<int64_t>(rows.size()),
                                              .vocab = vocab,
                                              .stride = vocab},
                                             ctx);
  EXPECT_TRUE(status.ok()) << status;
  return tokens;
}

// What the sampler draws; kBrokenRow where it refuses.
TokenId OnCpu(std::span<const float> row, const SampleRow& how) {
  engine::SamplingParams params;
  params.temperature = how.temperature;
  params.top_k = how.top_k;
  params.top_p = how.top_p;
  params.min_p = how.min_p;
  params.seed = how.seed;
  params.choice_index = how.choice_index;
  engine::SamplerState state(params, {});
  for (uint64_t i = 0; i < how.position; ++i) state.Append(0);
  engine::Sampler sampler(static_cast<int32_t>(row.size()));
  engine::SampledToken token;
  return sampler.Sample(row, params, state, token).ok() ? token.id : kBrokenRow;
}

TEST_F(DeviceSampleTest, DrawsTheTokensOfTheSampler) {
  std::mt19937 rng(17);
  std::uniform_real_distribution<float> uniform;
  const auto chance = [&](float share) { return uniform(rng) < share; };
  for (int round = 0; round < ForTestSize(10, 60, 1000); ++round) {
    static constexpr size_t kVocabs[] = {1, 7, 16, 17, 1000, 1024, 1025, 3001};
    const size_t vocab = kVocabs[round % 8];
    const size_t count = 1 + rng() % 5;
    std::normal_distribution<float> normal(0, chance(0.5f) ? 1.0f : 8.0f);
    const bool ties = chance(0.3f);
    std::vector<float> logits(count * vocab);
    for (float& logit : logits) {
      logit = normal(rng);
      if (ties) logit = std::round(logit);
      if (chance(0.02f)) logit = -kInf;
    }
    std::vector<SampleRow> rows(count);
    for (SampleRow& row : rows) {
      row.seed = rng() * uint64_t{0x9E3779B97F4A7C15};
      row.position = rng() % 50;
      row.choice_index = static_cast<uint32_t>(rng() % 3);
      row.temperature = chance(0.2f) ? 0 : 0.1f + 2 * uniform(rng);
      if (chance(0.5f)) row.top_k = 1 + static_cast<int32_t>(rng() % (2 * vocab));
      if (row.top_k > kMaxSampleTopK) row.top_k = 40;
      if (row.top_k > 0 && row.top_k < static_cast<int32_t>(vocab) && chance(0.7f)) {
        row.top_p = uniform(rng) + 1e-3f;
        if (row.top_p > 1) row.top_p = 1;
      }
      if (chance(0.4f)) row.min_p = 0.3f * uniform(rng);
    }
    cuda_emulation::SetOptions({.order = static_cast<uint64_t>(round % 4)});
    const auto got = Sample(logits, rows);
    for (size_t r = 0; r < count; ++r) {
      ASSERT_EQ(got[r], OnCpu(std::span(logits).subspan(r * vocab, vocab), rows[r]))
          << "round " << round << ", row " << r << ", vocab " << vocab << ", temperature "
          << rows[r].temperature << ", top_k " << rows[r].top_k << ", top_p " << rows[r].top_p
          << ", min_p " << rows[r].min_p;
    }
  }
}

// Draws of one row of logits by many seeds, against the sampler's.
void ExpectTokensOfTheSampler(const std::vector<float>& logits, SampleRow how) {
  constexpr size_t kSeeds = 40;
  std::vector<float> all;
  std::vector<SampleRow> rows;
  for (how.seed = 0; how.seed < kSeeds; ++how.seed) {
    all.insert(all.end(), logits.begin(), logits.end());
    rows.push_back(how);
  }
  const auto got = Sample(all, rows);
  for (size_t r = 0; r < kSeeds; ++r) ASSERT_EQ(got[r], OnCpu(logits, rows[r])) << "seed " << r;
}

TEST_F(DeviceSampleTest, TheLargestIsTheFirstOfThemInAnyBlock) {
  std::vector<float> logits(3001, -1.0f);
  logits[1024] = logits[1500] = logits[2500] = 2.0f;
  EXPECT_EQ(Sample(logits, {{.temperature = 0}})[0], 1024);
}

// Weights are rounded as the sampler's are: one of exactly min_p stays, of either kind of draw.
TEST_F(DeviceSampleTest, KeepsWeightsOfExactlyMinP) {
  constexpr size_t kRows = 200;
  constexpr float kTemperature = 0.7f;
  for (int32_t top_k : {0, 2}) {
    std::vector<float> logits;
    std::vector<SampleRow> rows;
    for (size_t r = 0; r < kRows; ++r) {
      const float second = -0.003f * static_cast<float>(r);
      logits.insert(logits.end(), {second, -50.0f, 0.0f});
      rows.push_back({.seed = r,
                      .temperature = kTemperature,
                      .top_k = top_k,
                      .min_p = ExpNonPositive(second / kTemperature)});
    }
    const auto got = Sample(logits, rows);
    size_t seconds = 0;
    for (size_t r = 0; r < kRows; ++r) {
      ASSERT_EQ(got[r], OnCpu(std::span(logits).subspan(r * 3, 3), rows[r])) << r;
      seconds += got[r] == 0 ? 1 : 0;
    }
    EXPECT_GT(seconds, kRows / 5);
  }
}

TEST_F(DeviceSampleTest, ANucleusEndsWhereItHasItsShare) {
  ExpectTokensOfTheSampler({1, 1, 0}, {.top_k = 2, .top_p = 0.5f});
  EXPECT_EQ(Sample({1, 1, 0}, {{.seed = 3, .top_k = 2, .top_p = 0.5f}})[0], 0);
}

TEST_F(DeviceSampleTest, TopKOfTheWholeVocabularyIsNone) {
  ExpectTokensOfTheSampler({1, 3, 2, 0, 2.5f}, {.top_k = 5});
}

// Its one logit is taken first; the others are in a block of their own.
TEST_F(DeviceSampleTest, ABlockMayRunOutOfCandidates) {
  std::vector<float> logits(1025, -1.0f);
  logits[1024] = 0.25f;
  logits[7] = -0.25f;
  ExpectTokensOfTheSampler(logits, {.top_k = 2});
}

TEST_F(DeviceSampleTest, DrawsByAllBitsOfSeedChoiceAndPosition) {
  const std::vector<float> logits(1000, 0.5f);
  for (const SampleRow& row : {SampleRow{.seed = 5, .position = uint64_t{3} << 32 | 9},
                               SampleRow{.seed = uint64_t{7} << 40, .choice_index = 1u << 31},
                               SampleRow{.seed = ~uint64_t{0}, .position = ~uint64_t{0}}}) {
    const auto random =
        Philox4x32({static_cast<uint32_t>(row.position), static_cast<uint32_t>(row.position >> 32),
                    row.choice_index, 0},
                   {static_cast<uint32_t>(row.seed), static_cast<uint32_t>(row.seed >> 32)});
    const double uniform = UniformDouble(random[0], random[1]);
    EXPECT_EQ(Sample(logits, {row})[0], static_cast<TokenId>(uniform * 1000));
  }
}

TEST_F(DeviceSampleTest, SaysWhichRowsAreBroken) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits = {1, 2, nan, 1, kInf, 0, -kInf, -kInf, -kInf, 1, 3, 3};
  for (float temperature : {0.0f, 1.0f}) {
    for (int32_t top_k : {0, 2}) {
      const std::vector<SampleRow> rows(4, {.temperature = temperature, .top_k = top_k});
      const auto tokens = Sample(logits, rows);
      EXPECT_EQ(tokens[0], kBrokenRow);
      EXPECT_EQ(tokens[1], kBrokenRow);
      EXPECT_EQ(tokens[2], kBrokenRow);
      EXPECT_GE(tokens[3], 0);
    }
  }
}

TEST_F(DeviceSampleTest, ANucleusOfTheWholeVocabularyIsTheHosts) {
  EXPECT_EQ(Sample({1, 2, 3}, {{.top_p = 0.5f}})[0], kNotOnThisDevice);
  EXPECT_EQ(Sample({1, 2, 3}, {{.temperature = 0, .top_p = 0.5f}})[0], 2);
  EXPECT_EQ(Sample({1, 2, 3}, {{.top_k = 1, .top_p = 0.5f}})[0], 2);
}

TEST_F(DeviceSampleTest, TakesAsManyRowsAtATimeAsScratchMemoryHolds) {
  std::vector<float> logits(3 * 1500);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  const std::vector<SampleRow> rows = {{.seed = 1}, {.seed = 2}, {.seed = 3, .top_k = 5}};
  ExecContext little = testing::EmulatedCuda();
  little.queue.scratch_bytes = 8 << 10;
  EXPECT_EQ(Sample(logits, rows, little), Sample(logits, rows));
  little.queue.scratch_bytes = 1 << 10;
  const SampleArgs args{.logits = logits.data(), .row_count = 1, .vocab = 1500, .stride = 1500};
  EXPECT_EQ(SampleOnDevice(args, little).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(SampleOnDevice(args, ExecContext{}).code(), absl::StatusCode::kUnavailable);
  SampleArgs wrong = args;
  wrong.stride = 1499;
  EXPECT_EQ(SampleOnDevice(wrong, testing::EmulatedCuda()).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lynx::kernels
