#include "kernels/moe/expert_ffn.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/gemm/gemm.h"
#include "kernels/moe/order_free_sum.h"
#include "tests/support/cuda_emulation/emulated_context.h"
#include "tests/support/cuda_emulation/emulator.h"
#include "tests/support/kernel_test.h"
#include "tests/support/packed.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::ActivationRows;
using ::lynx::testing::AlignedBytes;
using ::lynx::testing::AllContextsAndCuda;
using ::lynx::testing::BitsOf;
using ::lynx::testing::ContextParamName;
using ::lynx::testing::Encode;
using ::lynx::testing::KernelTest;
using ::lynx::testing::PackedMatrix;
using ::lynx::testing::RandomNormal;

constexpr DType kXTypes[] = {DType::kF32, DType::kBf16};
constexpr DType kWeightTypes[] = {DType::kF32, DType::kBf16, DType::kF16};

// An expert given row-major, packed.
struct Expert {
  AlignedBytes gate_up;
  PackedMatrix down;
  int64_t hidden, intermediate;
  DType dtype;

  // gate, up: [intermediate, hidden]; down: [hidden, intermediate]
  Expert(const std::vector<float>& gate, const std::vector<float>& up,
         const std::vector<float>& down_values, int64_t hidden_size, int64_t intermediate_size,
         DType weight_dtype)
      : gate_up(static_cast<size_t>(
                    PackedBytes(GateUpOutputs(intermediate_size), hidden_size, weight_dtype)),
                std::byte{0xff}),
        down(Encode(down_values, weight_dtype), weight_dtype, hidden_size, intermediate_size),
        hidden(hidden_size),
        intermediate(intermediate_size),
        dtype(weight_dtype) {
    const auto gate_bytes = Encode(gate, dtype);
    const auto up_bytes = Encode(up, dtype);
    for (int64_t p = 0; p < GateUpOutputs(intermediate) / kPanelRows; ++p) {
      const void* gate_rows[kGateOutputsPerPanel] = {};
      const void* up_rows[kGateOutputsPerPanel] = {};
      for (int64_t i = 0; i < kGateOutputsPerPanel; ++i) {
        const int64_t row = p * kGateOutputsPerPanel + i;
        if (row >= intermediate) break;
        const int64_t at = row * hidden * static_cast<int64_t>(SizeOf(dtype));
        gate_rows[i] = gate_bytes.data() + at;
        up_rows[i] = up_bytes.data() + at;
      }
      PackGateUpPanel(gate_rows, up_rows, dtype, hidden,
                      gate_up.data() + p * PanelBytes(hidden, dtype));
    }
  }

  ExpertWeights weights() const {
    return {.gate_up = {.data = gate_up.data(),
                        .dtype = dtype,
                        .out = GateUpOutputs(intermediate),
                        .in = hidden},
            .down = down.matrix()};
  }
};

// Some experts with random weights.
struct Layer {
  int64_t hidden, intermediate, experts;
  DType dtype;
  std::vector<std::unique_ptr<Expert>> storage;
  std::vector<std::vector<float>> biases;
  std::vector<ExpertWeights> weights;
  float clamp = 0;
  bool scale_input = false;

  // Adds random biases.
  void AddBiases() {
    for (size_t e = 0; e < weights.size(); ++e) {
      const auto seed = static_cast<uint32_t>(2 * e);
      biases.push_back(RandomNormal(static_cast<size_t>(GateUpOutputs(intermediate)), 1000 + seed));
      weights[e].gate_up_bias = biases.back().data();
      biases.push_back(RandomNormal(static_cast<size_t>(hidden), 1001 + seed));
      weights[e].down_bias = biases.back().data();
    }
  }

  Layer(int64_t hidden_size, int64_t intermediate_size, int64_t expert_count, DType weight_dtype)
      : hidden(hidden_size),
        intermediate(intermediate_size),
        experts(expert_count),
        dtype(weight_dtype) {
    uint32_t seed = 1;
    auto values = [&](int64_t in) {
      auto random = RandomNormal(static_cast<size_t>(hidden * intermediate), ++seed);
      for (float& v : random) v /= std::sqrt(static_cast<float>(in));
      return random;
    };
    for (int64_t e = 0; e < experts; ++e) {
      const auto gate = values(hidden), up = values(hidden), down = values(intermediate);
      storage.push_back(std::make_unique<Expert>(gate, up, down, hidden, intermediate, dtype));
      weights.push_back(storage.back()->weights());
    }
  }
};

// Inputs of some rows, with distinct random experts each.
struct Rows {
  int64_t count, top_k;
  std::vector<float> x, y, weights;
  std::vector<int32_t> ids;

  Rows(const Layer& layer, int64_t rows, int64_t k) : count(rows), top_k(k) {
    x = RandomNormal(static_cast<size_t>(rows * layer.hidden), 101);
    y = RandomNormal(static_cast<size_t>(rows * layer.hidden), 103);
    std::mt19937 rng(105);
    std::uniform_real_distribution<float> uniform;
    std::vector<int32_t> all(static_cast<size_t>(layer.experts));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t r = 0; r < rows; ++r) {
      std::shuffle(all.begin(), all.end(), rng);
      ids.insert(ids.end(), all.begin(), all.begin() + k);
      for (int64_t j = 0; j < k; ++j) weights.push_back(uniform(rng));
    }
  }
};

ExpertFfnWorkspace WorkspaceFor(const Layer& layer, const Rows& rows) {
  return ExpertFfnWorkspace(rows.count, rows.top_k, layer.experts, layer.hidden, layer.intermediate,
                            DType::kF32);
}

// y after running rows [begin, end).
std::vector<float> Apply(const Layer& layer, const Rows& rows, int64_t begin, int64_t end,
                         DType x_dtype, const ExecContext& ctx, ExpertFfnWorkspace& workspace) {
  const auto at = [&](const std::vector<float>& v, int64_t row) {
    return v.begin() + row * layer.hidden;
  };
  std::vector<float> y(at(rows.y, begin), at(rows.y, end));
  const ActivationRows x(std::vector<float>(at(rows.x, begin), at(rows.x, end)), end - begin,
                         x_dtype);
  const absl::Status status = ExpertFfn({.x = x.data(),
                                         .experts = layer.weights.data(),
                                         .ids = rows.ids.data() + begin * rows.top_k,
                                         .weights = rows.weights.data() + begin * rows.top_k,
                                         .y = y.data(),
                                         .rows = end - begin,
                                         .hidden = layer.hidden,
                                         .intermediate = layer.intermediate,
                                         .expert_count = layer.experts,
                                         .top_k = rows.top_k,
                                         .x_stride = x.stride(),
                                         .y_stride = layer.hidden,
                                         .x_dtype = x_dtype,
                                         .device_weights = layer.dtype,
                                         .clamp = layer.clamp,
                                         .scale_input = layer.scale_input},
                                        workspace, ctx);
  EXPECT_TRUE(status.ok()) << status;
  return y;
}

std::vector<float> Apply(const Layer& layer, const Rows& rows, DType x_dtype,
                         const ExecContext& ctx) {
  ExpertFfnWorkspace workspace = WorkspaceFor(layer, rows);
  return Apply(layer, rows, 0, rows.count, x_dtype, ctx, workspace);
}

class ExpertFfnTest : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    SkipIfEmulatedInShort();
  }
  bool OnDevice() const { return GetParam().backend == Backend::kCuda; }
};

// hidden = intermediate = 1: y + sum of w * down * silu(gate x) * up x.
TEST_P(ExpertFfnTest, MatchesAHandComputedRow) {
  const Expert experts[] = {Expert({1}, {2}, {5}, 1, 1, DType::kF32),
                            Expert({-1}, {3}, {7}, 1, 1, DType::kF32)};
  const ExpertWeights packed[] = {experts[0].weights(), experts[1].weights()};
  const float x = 2;
  const int32_t ids[] = {1, 0};
  const float weights[] = {0.25f, 0.75f};
  float y = 100;
  ExpertFfnWorkspace workspace(1, 2, 2, 1, 1, DType::kF32);
  ASSERT_TRUE(ExpertFfn({.x = &x,
                         .experts = packed,
                         .ids = ids,
                         .weights = weights,
                         .y = &y,
                         .rows = 1,
                         .hidden = 1,
                         .intermediate = 1,
                         .expert_count = 2,
                         .top_k = 2,
                         .x_stride = 1,
                         .y_stride = 1,
                         .device_weights = DType::kF32},
                        workspace, GetParam())
                  .ok());
  const double silu_2 = 2 / (1 + std::exp(-2.0));
  const double silu_minus_2 = -2 / (1 + std::exp(2.0));
  EXPECT_NEAR(y, 100 + 0.25 * 7 * silu_minus_2 * 6 + 0.75 * 5 * silu_2 * 4, 2e-5);
}

// gate 3 and up -9 with their biases, both beyond the clamp of 2.
TEST_P(ExpertFfnTest, ClampsAddsBiasesAndScalesInputsByHand) {
  const Expert expert({1}, {-4}, {5}, 1, 1, DType::kF32);
  std::vector<float> gate_up_bias(32, 100.0f);  // Of the padding: must not count.
  gate_up_bias[0] = 1;
  gate_up_bias[16] = -1;
  const float down_bias = 0.5f;
  ExpertWeights weights = expert.weights();
  weights.gate_up_bias = gate_up_bias.data();
  weights.down_bias = &down_bias;
  const float x = 2;
  const int32_t id = 0;
  float weight = 0.25f;
  float y = 100;
  ExpertFfnWorkspace workspace(1, 1, 1, 1, 1, DType::kF32);
  ExpertFfnArgs args{.x = &x,
                     .experts = &weights,
                     .ids = &id,
                     .weights = &weight,
                     .y = &y,
                     .rows = 1,
                     .hidden = 1,
                     .intermediate = 1,
                     .expert_count = 1,
                     .top_k = 1,
                     .x_stride = 1,
                     .y_stride = 1,
                     .device_weights = DType::kF32,
                     .clamp = 2};
  ASSERT_TRUE(ExpertFfn(args, workspace, GetParam()).ok());
  const double inner = 2 / (1 + std::exp(-1.702 * 2)) * (-2 + 1);
  EXPECT_NEAR(y, 100 + 0.25 * (5 * inner + 0.5), 2e-5);

  weights.gate_up_bias = weights.down_bias = nullptr;
  args.clamp = 0;
  args.scale_input = true;
  y = 100;
  ASSERT_TRUE(ExpertFfn(args, workspace, GetParam()).ok());
  EXPECT_NEAR(y, 100 + 5 * (0.5 / (1 + std::exp(-0.5)) * -2), 2e-5);
}

TEST_P(ExpertFfnTest, SumsHaveTheSameBitsWhoeverComputesWhichExpert) {
  const Layer layer(37, 50, /*expert_count=*/9, DType::kBf16);
  const Rows inputs(layer, 13, /*k=*/4);
  const ActivationRows x(inputs.x, inputs.count, DType::kF32);
  ExpertFfnWorkspace workspace = WorkspaceFor(layer, inputs);
  const auto run = [&](const std::vector<int32_t>& ids, std::vector<double>& sums) {
    return ExpertFfn({.x = x.data(),
                      .experts = layer.weights.data(),
                      .ids = ids.data(),
                      .weights = inputs.weights.data(),
                      .sums = sums.data(),
                      .rows = inputs.count,
                      .hidden = layer.hidden,
                      .intermediate = layer.intermediate,
                      .expert_count = layer.experts,
                      .top_k = inputs.top_k,
                      .x_stride = x.stride(),
                      .y_stride = layer.hidden},
                     workspace, GetParam());
  };
  if (GetParam().backend == Backend::kCuda) {
    std::vector<double> sums(static_cast<size_t>(inputs.count * layer.hidden));
    EXPECT_EQ(run(inputs.ids, sums).code(), absl::StatusCode::kUnimplemented);
    return;
  }
  // Added up over calls, each of which computes the experts that have its number.
  const auto sums_of = [&](const std::vector<int32_t>& who, int32_t calls) {
    std::vector<double> sums(static_cast<size_t>(inputs.count * layer.hidden));
    for (int32_t call = calls; call-- > 0;) {
      std::vector<int32_t> ids = inputs.ids;
      for (int32_t& id : ids) {
        if (who[static_cast<size_t>(id)] != call) id = kNoExpert;
      }
      std::vector<double> part(sums.size());
      EXPECT_TRUE(run(ids, part).ok());
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
    }
    return sums;
  };
  const std::vector<double> one = sums_of(std::vector<int32_t>(9, 0), 1);
  EXPECT_EQ(sums_of({0, 1, 2, 0, 1, 2, 0, 1, 2}, 3), one);
  EXPECT_EQ(sums_of({1, 1, 1, 1, 0, 0, 0, 0, 0}, 2), one);
  // And they are what is added to y otherwise.
  const auto y = Apply(layer, inputs, DType::kF32, GetParam());
  for (size_t i = 0; i < one.size(); ++i) {
    ASSERT_NEAR(inputs.y[i] + one[i], y[i], 1e-4) << i;
  }
}

TEST(ToSummandTest, IsTheNearestMultipleAndNothingBeyondTheLimit) {
  EXPECT_EQ(ToSummand(0), 0);
  EXPECT_EQ(ToSummand(3.25), 3.25);
  EXPECT_EQ(ToSummand(0x1.8p-30), 0x1p-29);  // Ties to even.
  EXPECT_EQ(ToSummand(-0x1.8p-31), -0x1p-30);
  EXPECT_EQ(ToSummand(0x0.8p-30), 0);
  const double largest = std::nextafter(kSummandLimit, 0.0);
  EXPECT_NEAR(ToSummand(-largest), -largest, kSummandQuantum);
  EXPECT_TRUE(std::isnan(ToSummand(kSummandLimit)));
  EXPECT_TRUE(std::isnan(ToSummand(-std::numeric_limits<double>::infinity())));
  EXPECT_TRUE(std::isnan(ToSummand(std::numeric_limits<double>::quiet_NaN())));
  // Nearly as many of the largest as there may be: one more of any size is still exact.
  double sum = 0;
  for (int64_t i = 1; i < kMostSummands; ++i) sum += ToSummand(largest);
  EXPECT_EQ(sum + kSummandQuantum - sum, kSummandQuantum);
}

TEST_P(ExpertFfnTest, EveryKindOfExpertAgreesWithReference) {
  for (DType x_dtype : kXTypes) {
    for (bool scale_input : {false, true}) {
      for (float clamp : {0.0f, 0.7f}) {
        // With and without a clamp, a type that tensor cores multiply and one that they do not.
        Layer layer(37, 50, /*expert_count=*/9, clamp == 0 ? DType::kF16 : DType::kBf16);
        layer.AddBiases();
        layer.clamp = clamp;
        layer.scale_input = scale_input;
        const Rows inputs(layer, 13, /*k=*/4);
        const auto want = Apply(layer, inputs, x_dtype, Reference());
        const auto got = Apply(layer, inputs, x_dtype, GetParam());
        const double bound = x_dtype == DType::kF32 ? 1e-4 : 4e-2;
        for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << i;
        // Row by row: the same bits.
        ExpertFfnWorkspace workspace = WorkspaceFor(layer, inputs);
        std::vector<float> pieces;
        for (int64_t r = 0; r < inputs.count; ++r) {
          const auto one = Apply(layer, inputs, r, r + 1, x_dtype, GetParam(), workspace);
          pieces.insert(pieces.end(), one.begin(), one.end());
        }
        ASSERT_EQ(BitsOf(pieces), BitsOf(got));
      }
    }
  }
}

TEST_P(ExpertFfnTest, AgreesWithReference) {
  for (DType x_dtype : kXTypes) {
    for (DType dtype : kWeightTypes) {
      for (int64_t hidden : {1, 16, 37}) {
        for (int64_t intermediate : {3, 16, 50}) {
          const Layer layer(hidden, intermediate, /*expert_count=*/9, dtype);
          for (int64_t rows : {1, 2, 5, 70}) {
            const Rows inputs(layer, rows, /*k=*/4);
            const auto want = Apply(layer, inputs, x_dtype, Reference());
            const auto got = Apply(layer, inputs, x_dtype, GetParam());
            for (size_t i = 0; i < got.size(); ++i) {
              // Three chained sums of at most 50 unit-variance terms: 1e-6 each of values below 30.
              // Where silu(gate) * up is rounded to bf16, two nearly equal values may round to
              // neighbours, 2^-8 apart, times a weight of one of those terms.
              const double bound = x_dtype == DType::kF32 ? 1e-4 : 2e-2;
              ASSERT_NEAR(got[i], want[i], bound) << hidden << " " << intermediate << " at " << i;
            }
          }
        }
      }
    }
  }
}

// Alone, in parts of a batch (so with experts shared by other numbers of rows), and in all of it on
// several threads.
TEST_P(ExpertFfnTest, ARowsBitsDependOnThatRowAlone) {
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  for (DType x_dtype : kXTypes) {
    for (DType dtype : kWeightTypes) {
      const Layer layer(75, 50, /*expert_count=*/4, dtype);
      // Half of the rows meet in an expert: more than one block of rows of a product.
      const Rows inputs(layer, IsReference() ? 20 : OnDevice() ? 72 : 300, /*k=*/2);
      const auto all = Apply(layer, inputs, x_dtype, threaded);
      ExpertFfnWorkspace workspace = WorkspaceFor(layer, inputs);
      for (int64_t chunk : {1, 2, 7, 13, 40, 67}) {
        std::vector<float> pieces;
        for (int64_t r = 0; r < inputs.count; r += chunk) {
          const auto part = Apply(layer, inputs, r, std::min(inputs.count, r + chunk), x_dtype,
                                  GetParam(), workspace);
          pieces.insert(pieces.end(), part.begin(), part.end());
        }
        ASSERT_EQ(BitsOf(pieces), BitsOf(all)) << "chunks of " << chunk;
      }
    }
  }
}

// A dense layer's rows lie together and are not gathered.
TEST_P(ExpertFfnTest, RowsInOneExpertHaveTheSameBitsAsScatteredOnes) {
  const Layer layer(40, 24, /*expert_count=*/2, DType::kBf16);
  Rows dense(layer, 19, /*k=*/1);
  std::fill(dense.ids.begin(), dense.ids.end(), 1);
  Rows scattered = dense;
  for (size_t r = 1; r < scattered.ids.size(); r += 2) scattered.ids[r] = 0;
  for (DType x_dtype : kXTypes) {
    const auto together = Apply(layer, dense, x_dtype, GetParam());
    const auto apart = Apply(layer, scattered, x_dtype, GetParam());
    for (int64_t r = 0; r < dense.count; r += 2) {
      const auto row = [&](const std::vector<float>& y) {
        const auto at = y.begin() + r * layer.hidden;
        return BitsOf(std::vector<float>(at, at + layer.hidden));
      };
      ASSERT_EQ(row(together), row(apart)) << r;
    }
  }
}

TEST_P(ExpertFfnTest, ABadRowDoesNotSpoilItsNeighbours) {
  const Layer layer(20, 20, /*expert_count=*/2, DType::kBf16);
  for (DType x_dtype : kXTypes) {
    for (int64_t bad : {0, 2, 17, 36}) {
      Rows inputs(layer, 37, /*k=*/2);
      inputs.x[static_cast<size_t>(bad * layer.hidden + 3)] =
          std::numeric_limits<float>::quiet_NaN();
      const auto y = Apply(layer, inputs, x_dtype, GetParam());
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_EQ(std::isnan(y[i]), static_cast<int64_t>(i) / layer.hidden == bad) << i;
      }
    }
  }
}

// What one layer leaves in the workspace must not reach another of other widths.
TEST_P(ExpertFfnTest, AWorkspaceServesLayersOfSeveralWidths) {
  const Layer wide(40, 64, /*expert_count=*/2, DType::kBf16);
  const Layer narrow(40, 10, /*expert_count=*/2, DType::kBf16);
  Rows bad(wide, 3, /*k=*/2);
  std::fill(bad.x.begin(), bad.x.end(), std::numeric_limits<float>::quiet_NaN());
  const Rows inputs(narrow, 3, /*k=*/2);
  for (DType x_dtype : kXTypes) {
    ExpertFfnWorkspace workspace = WorkspaceFor(wide, bad);
    Apply(wide, bad, 0, bad.count, x_dtype, GetParam(), workspace);
    EXPECT_EQ(BitsOf(Apply(narrow, inputs, 0, inputs.count, x_dtype, GetParam(), workspace)),
              BitsOf(Apply(narrow, inputs, x_dtype, GetParam())));
  }
}

TEST_P(ExpertFfnTest, CountsEachActiveExpertOnce) {
  if (IsReference() || OnDevice()) GTEST_SKIP() << "counts nothing";
  const Layer layer(40, 24, /*expert_count=*/5, DType::kBf16);
  Rows inputs(layer, 30, /*k=*/1);
  for (size_t r = 0; r < inputs.ids.size(); ++r) inputs.ids[r] = r % 2 == 0 ? 1 : 3;
  std::atomic<int64_t> bytes = 0;
  ExecContext ctx = GetParam();
  ctx.streamed_bytes = &bytes;
  Apply(layer, inputs, DType::kBf16, ctx);
  EXPECT_EQ(bytes.load(),
            2 * (PackedBytes(2 * 32, 40, DType::kBf16) + PackedBytes(40, 24, DType::kBf16)));
}

TEST_P(ExpertFfnTest, ExpertsThatOthersComputeAddNothing) {
  const Layer layer(40, 24, /*expert_count=*/5, DType::kBf16);
  Rows zero(layer, 30, /*k=*/3);
  Rows none = zero;
  for (size_t i = 0; i < none.ids.size(); ++i) {
    // All of row 0, and none of row 1.
    if (i >= 3 && (i < 6 || i % 4 != 0)) continue;
    zero.weights[i] = 0;
    none.ids[i] = kNoExpert;
  }
  for (DType x_dtype : kXTypes) {
    const auto got = Apply(layer, none, x_dtype, GetParam());
    EXPECT_EQ(got, Apply(layer, zero, x_dtype, GetParam()));
    EXPECT_TRUE(std::equal(got.begin(), got.begin() + layer.hidden, none.y.begin()));
  }
  std::fill(none.ids.begin(), none.ids.end(), kNoExpert);
  std::atomic<int64_t> bytes = 0;
  ExecContext ctx = GetParam();
  ctx.streamed_bytes = &bytes;
  EXPECT_EQ(Apply(layer, none, DType::kBf16, ctx), none.y);
  EXPECT_EQ(bytes.load(), 0);
}

TEST_P(ExpertFfnTest, RefusesWhatItCannotRun) {
  const Layer layer(4, 4, 2, DType::kF32);
  const std::vector<float> x(64), weights(2, 1.0f);
  std::vector<float> y(8);
  std::vector<int32_t> ids = {0, 1};
  ExpertFfnWorkspace workspace(2, 1, 2, 4, 4, DType::kF32);
  const ExpertFfnArgs good{.x = x.data(),
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
  auto code = [&](const ExpertFfnArgs& args) {
    return ExpertFfn(args, workspace, GetParam()).code();
  };
  EXPECT_EQ(code(good), absl::StatusCode::kOk);
  ExpertFfnArgs bad = good;
  if (SeesContents()) {
    for (const int32_t id : {2, -2}) {
      ids[1] = id;
      EXPECT_EQ(code(good), absl::StatusCode::kInvalidArgument);
    }
    ids[1] = 1;
    bad.intermediate = 3;  // Not that of the experts.
    EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
    bad = good;
  }
  bad.x_dtype = DType::kBf16;
  EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
  bad.x_stride = 32;
  EXPECT_EQ(code(bad), absl::StatusCode::kOk);
  ExpertFfnWorkspace small(1, 1, 2, 4, 4, DType::kF32);
  EXPECT_EQ(ExpertFfn(good, small, GetParam()).code(), absl::StatusCode::kInvalidArgument);
  ExpertFfnWorkspace narrow(2, 1, 2, 4, 4, DType::kBf16);
  EXPECT_EQ(ExpertFfn(good, narrow, GetParam()).code(), absl::StatusCode::kInvalidArgument);
}

#if !defined(__SANITIZE_THREAD__)
class ExpertFfnOnDeviceTest : public ::testing::Test {
 protected:
  void TearDown() override { cuda_emulation::SetOptions({}); }
};

// With 1 to 64 rows, of which some experts have all and some none.
TEST_F(ExpertFfnOnDeviceTest, ReadsTheWeightsOfEachActiveExpertOnce) {
  const Layer layer(72, 40, /*expert_count=*/6, DType::kBf16);
  const int64_t bytes =
      PackedBytes(GateUpOutputs(40), 72, DType::kBf16) + PackedBytes(72, 40, DType::kBf16);
  for (int64_t rows : {1, 8, 9, 33, 64}) {
    Rows inputs(layer, rows, /*k=*/2);
    for (int64_t r = 0; r < rows; ++r) {
      inputs.ids[static_cast<size_t>(2 * r)] = 4;
      inputs.ids[static_cast<size_t>(2 * r + 1)] = r % 2 == 0 ? 1 : 2;
    }
    for (DType x_dtype : kXTypes) {
      if (x_dtype == DType::kF32 && rows > 8) continue;  // Several passes, by eight rows.
      const int64_t before = cuda_emulation::CopiedBytes();
      Apply(layer, inputs, x_dtype, testing::EmulatedCuda());
      EXPECT_EQ(cuda_emulation::CopiedBytes() - before, (rows == 1 ? 2 : 3) * bytes) << rows;
    }
  }
}

// Blocks that run together wait for each other; those that run one after the other never do. The
// less there is to do, the sooner a block comes to what another has not written yet.
TEST_F(ExpertFfnOnDeviceTest, HasTheSameBitsInAnyOrderOfThreadsAndBlocks) {
  for (int64_t experts : {1, 5}) {
    const Layer layer(70, 50, experts, DType::kBf16);
    const Rows inputs(layer, 21, /*k=*/experts == 1 ? 1 : 3);
    for (DType x_dtype : kXTypes) {
      const ExecContext ctx = testing::EmulatedCuda();
      const auto run = [&] {
        std::memset(ctx.queue.scratch, 0xff, 1 << 20);  // NaN, where a former run left the same.
        return BitsOf(Apply(layer, inputs, x_dtype, ctx));
      };
      cuda_emulation::SetOptions({});
      const auto want = run();
      for (uint64_t order = 0; order < 4; ++order) {
        for (int resident : {1, 3}) {
          cuda_emulation::SetOptions({.order = order, .resident_blocks = resident});
          ASSERT_EQ(run(), want) << experts << " experts, order " << order << ", " << resident
                                 << " blocks at once";
        }
      }
    }
  }
}

// More rows of one expert than a pass over its weights serves.
TEST_F(ExpertFfnOnDeviceTest, ManyRowsOfOneExpertTakeSeveralPasses) {
  const Layer layer(75, 50, /*expert_count=*/1, DType::kBf16);
  const Rows inputs(layer, 131, /*k=*/1);
  for (DType x_dtype : kXTypes) {
    const auto want = Apply(layer, inputs, x_dtype, testing::AllContexts().front());
    const auto got = Apply(layer, inputs, x_dtype, testing::EmulatedCuda());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], x_dtype == DType::kF32 ? 1e-4 : 2e-2) << i;
    }
    ExpertFfnWorkspace workspace = WorkspaceFor(layer, inputs);
    for (int64_t r : {0, 8, 63, 64, 127, 128, 130}) {
      const auto one = Apply(layer, inputs, r, r + 1, x_dtype, testing::EmulatedCuda(), workspace);
      const auto at = got.begin() + r * layer.hidden;
      ASSERT_EQ(BitsOf(one), BitsOf(std::vector<float>(at, at + layer.hidden))) << r;
    }
  }
}

// Experts with more rows than a tile has, with fewer, and with none; panels that fill no tile.
TEST_F(ExpertFfnOnDeviceTest, PromptsHaveTheBitsOfDecodeSteps) {
  Layer layer(150, 70, /*expert_count=*/5, DType::kBf16);
  layer.AddBiases();
  layer.clamp = 0.7f;
  Rows inputs(layer, 200, /*k=*/2);
  for (size_t r = 0; r < 200; ++r) {
    inputs.ids[2 * r] = r % 4 == 0 ? 4 : 1;
    inputs.ids[2 * r + 1] = r % 10 == 0 ? 3 : kNoExpert;
  }
  const ExecContext ctx = testing::EmulatedCuda();
  ExpertFfnWorkspace workspace = WorkspaceFor(layer, inputs);
  std::vector<float> pieces;
  for (int64_t r = 0; r < inputs.count; r += 40) {
    const auto part = Apply(layer, inputs, r, r + 40, DType::kBf16, ctx, workspace);
    pieces.insert(pieces.end(), part.begin(), part.end());
  }
  for (uint64_t order = 0; order < 3; ++order) {
    cuda_emulation::SetOptions({.order = order});
    std::memset(ctx.queue.scratch, 0xff, 1 << 20);
    ASSERT_EQ(BitsOf(Apply(layer, inputs, DType::kBf16, ctx)), BitsOf(pieces)) << order;
  }
}

TEST_F(ExpertFfnOnDeviceTest, WeightsOfAnotherTypeDoNotGoUnseen) {
  for (auto matrix : {&ExpertWeights::gate_up, &ExpertWeights::down}) {
    Layer layer(4, 4, /*expert_count=*/2, DType::kBf16);
    (layer.weights[0].*matrix).dtype = DType::kF16;
    for (int64_t rows : {2, 65}) {
      const Rows inputs(layer, rows, /*k=*/1);
      for (float y : Apply(layer, inputs, DType::kBf16, testing::EmulatedCuda())) {
        ASSERT_TRUE(std::isnan(y));
      }
    }
  }
}

TEST_F(ExpertFfnOnDeviceTest, RefusesTooLittleScratchMemoryAndRowsThatAreNotAligned) {
  const Layer layer(40, 24, /*expert_count=*/2, DType::kBf16);
  const Rows inputs(layer, 3, /*k=*/2);
  ExpertFfnWorkspace workspace = WorkspaceFor(layer, inputs);
  std::vector<float> y = inputs.y;
  ExecContext ctx = testing::EmulatedCuda();
  const ActivationRows x(inputs.x, 3, DType::kBf16);
  ExpertFfnArgs args{.x = x.data(),
                     .experts = layer.weights.data(),
                     .ids = inputs.ids.data(),
                     .weights = inputs.weights.data(),
                     .y = y.data(),
                     .rows = 3,
                     .hidden = 40,
                     .intermediate = 24,
                     .expert_count = 2,
                     .top_k = 2,
                     .x_stride = x.stride(),
                     .y_stride = 40,
                     .x_dtype = DType::kBf16};
  ASSERT_TRUE(ExpertFfn(args, workspace, ctx).ok());
  ctx.queue.scratch_bytes = 1000;
  EXPECT_EQ(ExpertFfn(args, workspace, ctx).code(), absl::StatusCode::kResourceExhausted);
  args.x = static_cast<const uint16_t*>(x.data()) + 1;
  EXPECT_EQ(ExpertFfn(args, workspace, testing::EmulatedCuda()).code(),
            absl::StatusCode::kInvalidArgument);
  args.x = x.data();
  args.x_stride += 1;
  EXPECT_EQ(ExpertFfn(args, workspace, testing::EmulatedCuda()).code(),
            absl::StatusCode::kInvalidArgument);
}
#endif

INSTANTIATE_TEST_SUITE_P(Contexts, ExpertFfnTest, ::testing::ValuesIn(AllContextsAndCuda()),
                         ContextParamName);

}  // namespace
}  // namespace lynx::kernels
