#include "kernels/moe/expert_ffn.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/kernel_test.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::AllContexts;
using ::lynx::testing::BitsOf;
using ::lynx::testing::ContextParamName;
using ::lynx::testing::Encode;
using ::lynx::testing::KernelTest;
using ::lynx::testing::RandomNormal;

// Some experts with random weights.
struct Layer {
  size_t hidden, intermediate, experts;
  DType dtype;
  std::vector<std::vector<std::byte>> storage;
  std::vector<ExpertWeights> weights;

  Layer(size_t hidden_size, size_t intermediate_size, size_t expert_count, DType weight_dtype)
      : hidden(hidden_size),
        intermediate(intermediate_size),
        experts(expert_count),
        dtype(weight_dtype) {
    uint32_t seed = 1;
    auto matrix = [&](size_t in) {
      auto values = RandomNormal(hidden * intermediate, ++seed);
      for (float& v : values) v /= std::sqrt(static_cast<float>(in));
      storage.push_back(Encode(values, dtype));
      return Matrix{.data = storage.back().data(), .dtype = dtype};
    };
    for (size_t e = 0; e < experts; ++e) {
      weights.push_back(
          {.gate = matrix(hidden), .up = matrix(hidden), .down = matrix(intermediate)});
    }
  }
};

// Inputs of some rows, with distinct random experts each.
struct Rows {
  size_t count, top_k;
  std::vector<float> x, y, weights;
  std::vector<int32_t> ids;

  Rows(const Layer& layer, size_t rows, size_t k) : count(rows), top_k(k) {
    x = RandomNormal(rows * layer.hidden, 101);
    y = RandomNormal(rows * layer.hidden, 103);
    std::mt19937 rng(105);
    std::uniform_real_distribution<float> uniform;
    std::vector<int32_t> all(layer.experts);
    std::iota(all.begin(), all.end(), 0);
    for (size_t r = 0; r < rows; ++r) {
      std::shuffle(all.begin(), all.end(), rng);
      ids.insert(ids.end(), all.begin(), all.begin() + static_cast<std::ptrdiff_t>(k));
      for (size_t j = 0; j < k; ++j) weights.push_back(uniform(rng));
    }
  }
};

// y after running rows [begin, end).
std::vector<float> Apply(const Layer& layer, const Rows& rows, size_t begin, size_t end,
                         const ExecContext& ctx, bool round = false) {
  const auto at = [](size_t i) { return static_cast<std::ptrdiff_t>(i); };
  std::vector<float> y(rows.y.begin() + at(begin * layer.hidden),
                       rows.y.begin() + at(end * layer.hidden));
  ExpertFfnWorkspace workspace(static_cast<int64_t>(end - begin), static_cast<int64_t>(rows.top_k),
                               static_cast<int64_t>(layer.experts),
                               static_cast<int64_t>(layer.hidden),
                               static_cast<int64_t>(layer.intermediate));
  const absl::Status status = ExpertFfn({.x = rows.x.data() + begin * layer.hidden,
                                         .experts = layer.weights.data(),
                                         .ids = rows.ids.data() + begin * rows.top_k,
                                         .weights = rows.weights.data() + begin * rows.top_k,
                                         .y = y.data(),
                                         .rows = static_cast<int64_t>(end - begin),
                                         .hidden = static_cast<int64_t>(layer.hidden),
                                         .intermediate = static_cast<int64_t>(layer.intermediate),
                                         .expert_count = static_cast<int64_t>(layer.experts),
                                         .top_k = static_cast<int64_t>(rows.top_k),
                                         .x_stride = static_cast<int64_t>(layer.hidden),
                                         .y_stride = static_cast<int64_t>(layer.hidden),
                                         .round_bf16 = round},
                                        workspace, ctx);
  EXPECT_TRUE(status.ok()) << status;
  return y;
}

class ExpertFfnTest : public KernelTest {};

// hidden = intermediate = 1: y + sum of w * down * silu(gate x) * up x.
TEST_P(ExpertFfnTest, MatchesAHandComputedRow) {
  const float gate[] = {1, -1}, up[] = {2, 3}, down[] = {5, 7};
  std::vector<ExpertWeights> experts;
  for (int e = 0; e < 2; ++e) {
    experts.push_back({.gate = {&gate[e], DType::kF32},
                       .up = {&up[e], DType::kF32},
                       .down = {&down[e], DType::kF32}});
  }
  const float x = 2;
  const int32_t ids[] = {1, 0};
  const float weights[] = {0.25f, 0.75f};
  float y = 100;
  ExpertFfnWorkspace workspace(1, 2, 2, 1, 1);
  ASSERT_TRUE(ExpertFfn({.x = &x,
                         .experts = experts.data(),
                         .ids = ids,
                         .weights = weights,
                         .y = &y,
                         .rows = 1,
                         .hidden = 1,
                         .intermediate = 1,
                         .expert_count = 2,
                         .top_k = 2,
                         .x_stride = 1,
                         .y_stride = 1},
                        workspace, GetParam())
                  .ok());
  const double silu_2 = 2 / (1 + std::exp(-2.0));
  const double silu_minus_2 = -2 / (1 + std::exp(2.0));
  EXPECT_NEAR(y, 100 + 0.25 * 7 * silu_minus_2 * 6 + 0.75 * 5 * silu_2 * 4, 2e-5);
}

TEST_P(ExpertFfnTest, AgreesWithReference) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (size_t hidden : {1u, 16u, 37u}) {
      for (size_t intermediate : {3u, 16u, 50u}) {
        const Layer layer(hidden, intermediate, /*experts=*/9, dtype);
        for (size_t rows : {1u, 2u, 5u, 70u}) {
          const Rows inputs(layer, rows, /*k=*/4);
          const auto want = Apply(layer, inputs, 0, rows, Reference());
          const auto got = Apply(layer, inputs, 0, rows, GetParam());
          for (size_t i = 0; i < got.size(); ++i) {
            // Three chained sums of at most 50 unit-variance terms: 1e-6 each of values below 30.
            ASSERT_NEAR(got[i], want[i], 1e-4) << hidden << " " << intermediate << " at " << i;
          }
        }
      }
    }
  }
}

TEST_P(ExpertFfnTest, ARowsBitsDependOnThatRowAlone) {
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  for (bool round : {false, true}) {
    const Layer layer(75, 50, /*experts=*/6, DType::kBf16);
    const size_t count = 90;
    const Rows inputs(layer, count, /*k=*/3);
    const auto all = Apply(layer, inputs, 0, count, threaded, round);
    for (size_t chunk : {1u, 2u, 13u}) {
      std::vector<float> pieces;
      for (size_t r = 0; r < count; r += chunk) {
        const auto part = Apply(layer, inputs, r, std::min(count, r + chunk), GetParam(), round);
        pieces.insert(pieces.end(), part.begin(), part.end());
      }
      ASSERT_EQ(BitsOf(pieces), BitsOf(all)) << "chunks of " << chunk;
    }
  }
}

TEST_P(ExpertFfnTest, ABadRowDoesNotSpoilItsNeighbours) {
  const Layer layer(20, 20, /*experts=*/2, DType::kBf16);
  Rows inputs(layer, 5, /*k=*/2);
  inputs.x[2 * layer.hidden + 3] = std::numeric_limits<float>::quiet_NaN();
  const auto y = Apply(layer, inputs, 0, 5, GetParam());
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / layer.hidden == 2) << i;
}

TEST_P(ExpertFfnTest, RefusesWhatItCannotRun) {
  const Layer layer(4, 4, 2, DType::kF32);
  const std::vector<float> x(8), weights(2, 1.0f);
  std::vector<float> y(8);
  std::vector<int32_t> ids = {0, 2};
  ExpertFfnWorkspace workspace(2, 1, 2, 4, 4);
  ExpertFfnArgs args{.x = x.data(),
                     .experts = layer.weights.data(),
                     .ids = ids.data(),
                     .weights = weights.data(),
                     .y = y.data(),
                     .rows = 2,
                     .hidden = 4,
                     .intermediate = 4,
                     .expert_count = 2,
                     .top_k = 1,
                     .x_stride = 4,
                     .y_stride = 4};
  EXPECT_EQ(ExpertFfn(args, workspace, GetParam()).code(), absl::StatusCode::kInvalidArgument);
  ids[1] = 1;
  EXPECT_TRUE(ExpertFfn(args, workspace, GetParam()).ok());
  ExpertFfnWorkspace small(1, 1, 2, 4, 4);
  EXPECT_EQ(ExpertFfn(args, small, GetParam()).code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Contexts, ExpertFfnTest, ::testing::ValuesIn(AllContexts()),
                         ContextParamName);

}  // namespace
}  // namespace lynx::kernels
