#include "kernels/gemm/embed.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/cuda_emulation/emulated_context.h"
#include "tests/support/kernel_test.h"
#include "tests/support/packed.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::AllContextsAndCuda;
using ::lynx::testing::BitsOf;
using ::lynx::testing::ContextParamName;
using ::lynx::testing::Decode;
using ::lynx::testing::Encode;
using ::lynx::testing::kCanary;
using ::lynx::testing::KernelTest;
using ::lynx::testing::PackedMatrix;
using ::lynx::testing::RandomNormal;

class EmbedTest : public KernelTest {};

TEST_P(EmbedTest, MatchesHandComputedRows) {
  const PackedMatrix w(Encode({1, 2, 3, 4, 5, 6}, DType::kF32), DType::kF32, /*out=*/2, /*in=*/3);
  const std::vector<int32_t> tokens = {11, 9, 10, 12};
  std::vector<float> y(16, kCanary);
  ASSERT_TRUE(Embed({.tokens = tokens.data(),
                     .w = w.matrix(),
                     .y = y.data(),
                     .rows = 4,
                     .y_stride = 4,
                     .first = 10,
                     .scale = 0.5f},
                    GetParam())
                  .ok());
  EXPECT_EQ(y, (std::vector<float>{2, 2.5f, 3, kCanary, 0, 0, 0, kCanary, 0.5f, 1, 1.5f, kCanary, 0,
                                   0, 0, kCanary}));
}

// Every row, at sizes around the pair, the block of depth and the panel.
TEST_P(EmbedTest, GivesEachRowAsItWasPacked) {
  ThreadTeam team(3);
  ExecContext ctx = GetParam();
  ctx.team = &team;
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (int64_t in : {1, 2, 31, 33, 300}) {
      for (int64_t out : {1, 33, 70}) {
        const auto file = Encode(RandomNormal(static_cast<size_t>(in * out), 5), dtype);
        const std::vector<float> values = Decode(file, dtype);
        const PackedMatrix w(file, dtype, out, in);
        std::vector<int32_t> tokens;
        std::vector<float> want;
        for (int64_t i = 0; i < out; ++i) {
          const int64_t row = i * 7 % out;
          tokens.push_back(static_cast<int32_t>(row));
          want.insert(want.end(), values.begin() + row * in, values.begin() + (row + 1) * in);
        }
        std::vector<float> y(want.size());
        ASSERT_TRUE(Embed({.tokens = tokens.data(),
                           .w = w.matrix(),
                           .y = y.data(),
                           .rows = out,
                           .y_stride = in},
                          ctx)
                        .ok());
        ASSERT_EQ(BitsOf(y), BitsOf(want)) << Name(dtype) << " " << out << " x " << in;
      }
    }
  }
}

// The smallest numbers of each type, infinity and its neighbours.
TEST_P(EmbedTest, KeepsNumbersAtTheEdgesOfATypesRange) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    const float inf = std::numeric_limits<float>::infinity();
    const auto file = Encode({-inf, inf, 0x1p-24f, -0x1.8p-23f, 0x1p-14f, -0.0f, 65504, 0}, dtype);
    const std::vector<float> values = Decode(file, dtype);
    const PackedMatrix w(file, dtype, 1, 8);
    const int32_t token = 0;
    std::vector<float> y(8);
    ASSERT_TRUE(Embed({.tokens = &token, .w = w.matrix(), .y = y.data(), .rows = 1, .y_stride = 8},
                      GetParam())
                    .ok());
    EXPECT_EQ(BitsOf(y), BitsOf(values)) << Name(dtype);
  }
}

TEST_P(EmbedTest, RefusesWhatItCannotRun) {
  const EmbedArgs good{.w = {.out = 4, .in = 4}, .y_stride = 4};
  EXPECT_TRUE(Embed(good, GetParam()).ok());
  const auto refused = [&](void (*change)(EmbedArgs&)) {
    EmbedArgs bad = good;
    change(bad);
    EXPECT_EQ(Embed(bad, GetParam()).code(), absl::StatusCode::kInvalidArgument);
  };
  refused([](auto& args) { args.rows = -1; });
  refused([](auto& args) { args.w.in = 0; });
  refused([](auto& args) { args.w.out = 0; });
  refused([](auto& args) { args.y_stride = 3; });
  refused([](auto& args) { args.first = -1; });
}

INSTANTIATE_TEST_SUITE_P(Contexts, EmbedTest, ::testing::ValuesIn(AllContextsAndCuda()),
                         ContextParamName);

}  // namespace
}  // namespace lynx::kernels
