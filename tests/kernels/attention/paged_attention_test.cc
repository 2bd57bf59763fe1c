#include "kernels/attention/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/float_convert.h"
#include "tests/support/kernel_test.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::AllContexts;
using ::lynx::testing::BitsOf;
using ::lynx::testing::ContextParamName;
using ::lynx::testing::kCanary;
using ::lynx::testing::KernelTest;
using ::lynx::testing::RandomNormal;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kBlocks = 16;  // Of every arena here.

// An arena of random KV and the queries of some rows.
struct Problem {
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 64;
  DType dtype = DType::kBf16;
  bool round = false;
  std::vector<std::byte> arena = {};
  int64_t stride = 0;

  int64_t width() const { return heads * head_dim; }
  int64_t ElementsPerBlock() const { return 2 * kv_heads * 16 * head_dim; }

  void FillArena(uint32_t seed) {
    stride = ElementsPerBlock() * static_cast<int64_t>(SizeOf(dtype)) + 64;
    arena.assign(static_cast<size_t>(stride) * kBlocks, std::byte{0xff});  // NaN between blocks.
    const auto values = RandomNormal(static_cast<size_t>(ElementsPerBlock()) * kBlocks, seed);
    for (int64_t i = 0; i < ElementsPerBlock() * kBlocks; ++i) {
      Set(static_cast<int32_t>(i / ElementsPerBlock()), i % ElementsPerBlock(),
          values[static_cast<size_t>(i)]);
    }
  }
  void Set(int32_t block, int64_t element, float value) {
    std::byte* to = arena.data() + block * stride + element * static_cast<int64_t>(SizeOf(dtype));
    const uint16_t half = F32ToBf16(value);
    if (dtype == DType::kF32) {
      std::memcpy(to, &value, 4);
    } else {
      std::memcpy(to, &half, 2);
    }
  }
  // Spoils K and V of slots >= `first` of a block.
  void Poison(int32_t block, int32_t first) {
    for (int64_t i = 0; i < ElementsPerBlock(); ++i) {
      if (i / head_dim % 16 >= first) Set(block, i, kNan);
    }
  }

  std::vector<float> Run(const std::vector<float>& q, const std::vector<AttentionRow>& rows,
                         const ExecContext& ctx) const {
    std::vector<float> y(q.size(), kCanary);
    const absl::Status status =
        PagedAttention({.q = q.data(),
                        .rows = rows.data(),
                        .kv = arena.data(),
                        .y = y.data(),
                        .row_count = static_cast<int64_t>(rows.size()),
                        .heads = heads,
                        .kv_heads = kv_heads,
                        .head_dim = head_dim,
                        .q_stride = width(),
                        .y_stride = width(),
                        .block_stride_bytes = stride,
                        .kv_dtype = dtype,
                        .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim))),
                        .round_bf16 = round},
                       ctx);
    EXPECT_TRUE(status.ok()) << status;
    return y;
  }
};

class PagedAttentionTest : public KernelTest {};

// A first token attends to itself alone: the answer is its V.
TEST_P(PagedAttentionTest, TheFirstTokenGetsItsOwnValue) {
  Problem p{.heads = 1, .kv_heads = 1, .head_dim = 3, .dtype = DType::kF32};
  p.FillArena(1);
  for (int64_t d = 0; d < 3; ++d) p.Set(2, 16 * 3 + d, static_cast<float>(d + 1));
  const int32_t block = 2;
  EXPECT_EQ(p.Run({1, 2, 3}, {{&block, 0}}, GetParam()), (std::vector<float>{1, 2, 3}));
}

// Two tokens, scores 0 and ln 3: weights 1/4 and 3/4.
TEST_P(PagedAttentionTest, MatchesAHandComputedPair) {
  Problem p{.heads = 1, .kv_heads = 1, .head_dim = 1, .dtype = DType::kF32};
  p.FillArena(1);
  p.Set(0, 0, 0.0f);
  p.Set(0, 1, std::log(3.0f));
  p.Set(0, 16, 10.0f);
  p.Set(0, 17, 20.0f);
  const int32_t block = 0;
  EXPECT_NEAR(p.Run({1}, {{&block, 1}}, GetParam())[0], 17.5, 1e-5);
}

TEST_P(PagedAttentionTest, AgreesWithReference) {
  const std::vector<int32_t> one = {3, 0, 7, 15, 1, 9};
  const std::vector<int32_t> two = {2, 12, 5};
  std::vector<AttentionRow> rows;
  for (int32_t position : {0, 1, 14, 15, 16, 17, 31, 32, 94, 95}) {
    rows.push_back({one.data(), position});
  }
  for (int32_t position : {40, 41, 42}) rows.push_back({two.data(), position});
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    for (int64_t head_dim : {1, 8, 16, 20, 64, 256}) {
      for (int64_t group : {1, 2, 7}) {
        Problem p{.heads = 2 * group, .kv_heads = 2, .head_dim = head_dim, .dtype = dtype};
        p.FillArena(7);
        const auto q = RandomNormal(rows.size() * static_cast<size_t>(p.width()), 11);
        const auto want = p.Run(q, rows, Reference());
        const auto got = p.Run(q, rows, GetParam());
        // Values stay below 5; see the header for the bound.
        for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 5e-5) << i;
      }
    }
  }
}

// Block tables, companions, chunks and threads: none of them may move a bit.
TEST_P(PagedAttentionTest, ARowsBitsDependOnItsOwnSequenceAlone) {
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    Problem p{.heads = 6, .kv_heads = 2, .head_dim = 40, .dtype = dtype};
    p.FillArena(13);
    const std::vector<int32_t> one = {3, 0, 7, 15, 1, 9};
    const std::vector<int32_t> two = {2, 12, 5, 8};
    std::vector<AttentionRow> rows;  // A prompt of 90 tokens, another from token 37 on.
    for (int32_t i = 0; i < 90; ++i) rows.push_back({one.data(), i});
    for (int32_t i = 37; i < 60; ++i) rows.push_back({two.data(), i});
    const auto width = static_cast<size_t>(p.width());
    const auto q = RandomNormal(rows.size() * width, 17);
    const auto all = p.Run(q, rows, threaded);
    for (size_t chunk : {1u, 3u, 7u, 64u}) {
      std::vector<float> pieces;
      for (size_t r = 0; r < rows.size(); r += chunk) {
        const size_t end = std::min(rows.size(), r + chunk);
        const auto at = [](size_t i) { return static_cast<std::ptrdiff_t>(i); };
        const auto part = p.Run({q.begin() + at(r * width), q.begin() + at(end * width)},
                                {rows.begin() + at(r), rows.begin() + at(end)}, GetParam());
        pieces.insert(pieces.end(), part.begin(), part.end());
      }
      ASSERT_EQ(BitsOf(pieces), BitsOf(all)) << "chunks of " << chunk;
    }
  }
}

// What lies after a row's position belongs to others, or to nobody: stale NaN must not leak in.
TEST_P(PagedAttentionTest, NeverReadsBeyondItsPosition) {
  Problem p;
  p.FillArena(19);
  const std::vector<int32_t> blocks = {4, 2, 6};
  const std::vector<AttentionRow> rows = {
      {blocks.data(), 28}, {blocks.data(), 29}, {blocks.data(), 30}, {blocks.data(), 31}};
  const auto q = RandomNormal(4 * static_cast<size_t>(p.width()), 23);
  const auto before = p.Run(q, rows, GetParam());
  p.Poison(6, 0);  // Tokens 32 and later.
  EXPECT_EQ(BitsOf(p.Run(q, rows, GetParam())), BitsOf(before));
  p.Poison(2, 15);  // Token 31: only the last row sees it.
  const auto after = p.Run(q, rows, GetParam());
  const auto width = static_cast<size_t>(p.width());
  for (size_t i = 0; i < after.size(); ++i) {
    if (i / width == 3) {
      EXPECT_TRUE(std::isnan(after[i]));
    } else {
      EXPECT_EQ(after[i], before[i]);
    }
  }
}

TEST_P(PagedAttentionTest, RoundsWhenAsked) {
  Problem p;
  p.FillArena(29);
  const int32_t block = 0;
  const auto q = RandomNormal(static_cast<size_t>(p.width()), 31);
  const auto exact = p.Run(q, {{&block, 9}}, GetParam());
  p.round = true;
  EXPECT_EQ(p.Run(q, {{&block, 9}}, GetParam()), testing::RoundedToBf16(exact));
}

TEST_P(PagedAttentionTest, RefusesWhatItCannotRun) {
  const PagedAttentionArgs good{.row_count = 0,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 8,
                                .q_stride = 32,
                                .y_stride = 32,
                                .block_stride_bytes = 64};
  EXPECT_TRUE(PagedAttention(good, GetParam()).ok());
  auto code = [](const PagedAttentionArgs& args) {
    return PagedAttention(args, GetParam()).code();
  };
  PagedAttentionArgs bad = good;
  bad.kv_heads = 3;
  EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.head_dim = kMaxHeadDim + 1;
  bad.q_stride = bad.y_stride = 4096;
  EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.kv_dtype = DType::kF16;
  EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Contexts, PagedAttentionTest, ::testing::ValuesIn(AllContexts()),
                         ContextParamName);

}  // namespace
}  // namespace lynx::kernels
