#include "common/moe/internal/row_ops.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "common/moe/gate_math.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::moe::internal {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Around every width at which a vector body changes its way.
const std::vector<size_t> kCounts = {1,  2,  7,  8,   9,   15,  16,  17,  31,  33,   60,   63,  64,
                                     65, 72, 96, 127, 128, 129, 160, 255, 256, 1023, 1024, 1025};

// Scores of few values, so that ties abound, some of them -Inf, or all different.
std::vector<float> Scores(std::mt19937& rng, size_t count) {
  std::vector<float> scores(count);
  const bool coarse = rng() % 2 == 0;
  std::normal_distribution<float> normal(0, 2);
  for (float& score : scores) {
    score = coarse ? std::round(normal(rng)) : normal(rng);
    if (rng() % 16 == 0) score = -kInf;
    if (rng() % 16 == 0) score = -0.0f;
  }
  return scores;
}

class RowOpsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Avx512RowOps() == nullptr) GTEST_SKIP() << "this processor has no AVX-512";
  }
  const RowOps& want_ = PortableRowOps();
  const RowOps& got_ = Avx512RowOps() != nullptr ? *Avx512RowOps() : PortableRowOps();
  std::mt19937 rng_{20261129};
};

TEST_F(RowOpsTest, CountsUsableScoresAlike) {
  for (size_t count : kCounts) {
    SCOPED_TRACE(count);
    std::vector<float> scores = Scores(rng_, count);
    ASSERT_EQ(got_.count_usable(scores.data(), count), want_.count_usable(scores.data(), count));
    for (float broken : {kNan, kInf}) {
      std::vector<float> bad = scores;
      bad[rng_() % count] = broken;
      ASSERT_EQ(got_.count_usable(bad.data(), count), -1);
      ASSERT_EQ(want_.count_usable(bad.data(), count), -1);
    }
  }
}

TEST_F(RowOpsTest, FindsTheSameBestOfAnyNumberOfRows) {
  for (size_t count : kCounts) {
    for (size_t rows = 1; rows <= 6; ++rows) {
      for (size_t k : {size_t{1}, size_t{2}, size_t{8}, std::min<size_t>(count, 20)}) {
        if (k > count) continue;
        SCOPED_TRACE(::testing::Message() << count << " experts, " << rows << " rows, k " << k);
        std::vector<std::vector<float>> scores;
        for (size_t r = 0; r < rows; ++r) scores.push_back(Scores(rng_, count));
        std::vector<uint8_t> allowed(count);
        for (uint8_t& flag : allowed) flag = rng_() % 3 != 0 ? 1 : 0;
        for (bool limited : {false, true}) {
          const uint8_t* limits = limited ? allowed.data() : nullptr;
          std::vector<std::vector<int32_t>> got_ids(rows, std::vector<int32_t>(k, -1));
          std::vector<std::vector<int32_t>> want_ids = got_ids;
          std::vector<TopRow> got;
          std::vector<TopRow> want;
          for (size_t r = 0; r < rows; ++r) {
            got.push_back({scores[r].data(), got_ids[r].data()});
            want.push_back({scores[r].data(), want_ids[r].data()});
          }
          got_.top(got.data(), rows, limits, count, k);
          want_.top(want.data(), rows, limits, count, k);
          for (size_t r = 0; r < rows; ++r) {
            ASSERT_EQ(got[r].held, want[r].held);
            got_ids[r].resize(got[r].held);
            want_ids[r].resize(want[r].held);
            ASSERT_EQ(got_ids[r], want_ids[r]) << "row " << r;
          }
        }
      }
    }
  }
}

// A row's best allowed: those of its own best that are, then the best of the others.
TEST_F(RowOpsTest, FillsUpBehindGivenOnesAsASearchFromScratchFinds) {
  for (const RowOps* ops : {&want_, &got_}) {
    for (size_t count : kCounts) {
      for (size_t rows = 1; rows <= 6; ++rows) {
        const size_t k = std::min<size_t>(count, 8);
        SCOPED_TRACE(::testing::Message() << count << " experts, " << rows << " rows");
        std::vector<uint8_t> allowed(count);
        for (uint8_t& flag : allowed) flag = rng_() % 3 != 0 ? 1 : 0;
        std::vector<std::vector<float>> scores;
        std::vector<std::vector<int32_t>> own(rows, std::vector<int32_t>(k));
        std::vector<std::vector<int32_t>> got_ids(rows, std::vector<int32_t>(k));
        std::vector<std::vector<int32_t>> want_ids(rows, std::vector<int32_t>(k));
        std::vector<TopRow> got;
        std::vector<TopRow> want;
        for (size_t r = 0; r < rows; ++r) {
          scores.push_back(Scores(rng_, count));
          TopRow best{scores[r].data(), own[r].data()};
          want_.top(&best, 1, nullptr, count, k);
          if (best.held < k) std::fill(scores[r].begin(), scores[r].end(), 0.0f);
          if (best.held < k) std::iota(own[r].begin(), own[r].end(), 0);
          size_t kept = 0;
          for (int32_t e : own[r]) {
            if (allowed[static_cast<size_t>(e)] != 0) got_ids[r][kept++] = e;
          }
          got.push_back({scores[r].data(), got_ids[r].data(), kept, own[r].data()});
          want.push_back({scores[r].data(), want_ids[r].data()});
        }
        ops->top(got.data(), rows, allowed.data(), count, k);
        want_.top(want.data(), rows, allowed.data(), count, k);
        for (size_t r = 0; r < rows; ++r) {
          ASSERT_EQ(got[r].held, want[r].held);
          got_ids[r].resize(got[r].held);
          want_ids[r].resize(want[r].held);
          ASSERT_EQ(got_ids[r], want_ids[r]) << "row " << r;
        }
      }
    }
  }
}

TEST_F(RowOpsTest, BinsAndLikesAlike) {
  uint64_t unit[8] = {};
  for (int32_t bin = 0; bin < kLastPackedBin; ++bin) unit[bin] = LikingUnit(bin);
  for (size_t count : kCounts) {
    for (double spread : {1.0, 0.0, 0.7}) {
      SCOPED_TRACE(::testing::Message() << count << " experts, unit " << spread);
      const std::vector<float> scores = Scores(rng_, count);
      float best = -kInf;
      for (float score : scores) best = std::max(best, score);
      if (best == -kInf) continue;
      const BinRule rule{.alpha = 3, .last = 4, .best = best, .unit = spread};
      std::vector<uint8_t> got(count);
      std::vector<uint8_t> want(count);
      std::vector<uint64_t> got_liking(count);
      for (size_t e = 0; e < count; ++e) got_liking[e] = NobodysLiking(e);
      std::vector<uint64_t> want_liking = got_liking;
      got_.bin(rule, unit, scores.data(), count, got.data(), got_liking.data());
      want_.bin(rule, unit, scores.data(), count, want.data(), want_liking.data());
      ASSERT_EQ(got, want);
      ASSERT_EQ(got_liking, want_liking);
    }
  }
}

TEST_F(RowOpsTest, OrdersAlike) {
  for (size_t count : kCounts) {
    SCOPED_TRACE(count);
    std::vector<uint64_t> liking(count);
    for (size_t e = 0; e < count; ++e) {
      liking[e] = ((rng_() % 4) << kLikingShift) + (uint64_t{rng_() % 2} << 63) + NobodysLiking(e);
    }
    std::vector<int32_t> got(count);
    std::vector<int32_t> want(count);
    got_.order(liking.data(), count, got.data());
    want_.order(liking.data(), count, want.data());
    ASSERT_EQ(got, want);
  }
}

// Whatever computes it, e^x has the bits of GateExp.
TEST(GateExpsTest, EveryBodyHasTheSameBits) {
  std::mt19937 rng(7);
  std::uniform_real_distribution<float> range(-100, 0);
  for (size_t count : kCounts) {
    std::vector<float> x(count);
    std::vector<int32_t> ids(count);
    for (size_t i = 0; i < count; ++i) {
      x[i] = rng() % 8 == 0 ? -0.0f : range(rng);
      if (rng() % 20 == 0) x[i] = -kInf;
      if (rng() % 20 == 0) x[i] = kNan;
      ids[i] = static_cast<int32_t>(rng() % count);
    }
    std::vector<float> all(count);
    std::vector<float> some(count);
    GateExps(x.data(), count, 0.25f, all.data());
    GateExpsOf(x.data(), ids.data(), count, 0.25f, some.data());
    for (size_t i = 0; i < count; ++i) {
      const float want = GateExp(x[i] - 0.25f);
      const float chosen = GateExp(x[static_cast<size_t>(ids[i])] - 0.25f);
      ASSERT_TRUE(std::isnan(want) ? std::isnan(all[i]) : all[i] == want) << x[i];
      ASSERT_TRUE(std::isnan(chosen) ? std::isnan(some[i]) : some[i] == chosen) << ids[i];
    }
  }
}

}  // namespace
}  // namespace lynx::moe::internal
