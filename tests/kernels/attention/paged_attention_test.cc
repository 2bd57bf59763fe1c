#include "kernels/attention/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/float_convert.h"
#include "tests/kernels/attention/attention_rows.h"
#include "tests/support/cuda_emulation/emulated_context.h"
#include "tests/support/cuda_emulation/emulator.h"
#include "tests/support/kernel_test.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::AllContextsAndCuda;
using ::lynx::testing::BitsOf;
using ::lynx::testing::ContextParamName;
using ::lynx::testing::Decode;
using ::lynx::testing::Encode;
using ::lynx::testing::KernelTest;
using ::lynx::testing::RandomNormal;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// An arena of random KV and the queries of some rows.
struct Problem {
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 64;
  DType dtype = DType::kBf16;
  DType compute = DType::kF32;
  std::vector<std::byte> arena = {};
  int64_t stride = 0;
  std::vector<float> sinks = {};

  int64_t width() const { return heads * head_dim; }
  size_t QuerySize() const { return static_cast<size_t>(width()); }
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
  // Spoils K and V of slots >= `first` of a block, or V alone.
  void Poison(int32_t block, int32_t first, bool keys = true) {
    for (int64_t i = keys ? 0 : ElementsPerBlock() / 2; i < ElementsPerBlock(); ++i) {
      if (i / head_dim % 16 >= first) Set(block, i, kNan);
    }
  }

  std::vector<float> Run(const std::vector<float>& q, const std::vector<AttentionRow>& rows,
                         const ExecContext& ctx, int64_t workspace_bytes = 0) const {
    AttentionWorkspace workspace(workspace_bytes);
    const size_t bytes = q.size() * SizeOf(compute);
    std::vector<std::byte> y(bytes);
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
                        .compute_dtype = compute,
                        .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim))),
                        .sinks = sinks.empty() ? nullptr : sinks.data()},
                       workspace, ctx);
    EXPECT_TRUE(status.ok()) << status;
    return Decode(y, compute);
  }
};

class PagedAttentionTest : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    SkipIfEmulatedInShort();
  }
};

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

// The same after a token that is out of sight, with a sink of score ln 4: weights 1/8, 3/8 and 1/2.
TEST_P(PagedAttentionTest, WindowsAndSinksMatchAHandComputedPair) {
  Problem p{.heads = 1, .kv_heads = 1, .head_dim = 1, .dtype = DType::kF32};
  p.FillArena(1);
  for (int64_t t = 0; t < 2; ++t) p.Set(0, t, 50.0f);
  p.Set(0, 2, 0.0f);
  p.Set(0, 3, std::log(3.0f));
  p.Set(0, 16 + 2, 10.0f);
  p.Set(0, 16 + 3, 20.0f);
  p.sinks = {std::log(4.0f)};
  const int32_t block = 0;
  const AttentionRow row{.blocks = &block, .position = 3, .first = 2};
  EXPECT_NEAR(p.Run({1}, {row}, GetParam())[0], 8.75, 1e-5);
}

// Of scores and of weights, whose errors the mean over V passes on: unit-variance inputs keep both
// sums within a few roundings of one another. See the header.
double Bound(const Problem& p) { return p.compute == DType::kBf16 ? 4e-2 : 5e-5; }

// Positions around the ends of blocks and splits; head_dims with and without whole vectors and
// matrix steps; one query to a tile, several, two tiles' worth and more.
TEST_P(PagedAttentionTest, AgreesWithReference) {
  const auto one = Blocks(1);
  const auto two = Blocks(2, 3);
  std::vector<AttentionRow> rows;
  for (int32_t position : {0, 1, 14, 15, 16, 17, 31, 32, 94, 255, 256, 257, 511, 512, 530, 767}) {
    rows.push_back({one.data(), position});
  }
  for (int32_t position : {40, 41, 42}) rows.push_back({two.data(), position});
  for (const Types& types : kTypes) {
    for (int64_t head_dim : IsEmulated() ? std::vector<int64_t>{20, 128, 256}
                                         : std::vector<int64_t>{1, 20, 32, 80, 96, 128, 256}) {
      for (int64_t group : {1, 3, 8}) {
        Problem p{.heads = 2 * group,
                  .kv_heads = 2,
                  .head_dim = head_dim,
                  .dtype = types.kv,
                  .compute = types.compute};
        p.FillArena(7);
        const auto q = RandomNormal(rows.size() * static_cast<size_t>(p.width()), 11);
        const auto want = p.Run(q, rows, Reference());
        const auto got = p.Run(q, rows, GetParam());
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], want[i], Bound(p))
              << i << ", head_dim " << head_dim << ", group " << group << ", KV " << Name(types.kv)
              << ", compute " << Name(types.compute);
        }
      }
    }
  }
}

// Companions, chunks and threads, a prompt's row or a generated token's: none may move a bit.
TEST_P(PagedAttentionTest, ARowsBitsDependOnItsOwnSequenceAlone) {
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  const auto one = Blocks(3);
  const auto two = Blocks(4);
  std::vector<AttentionRow> rows;  // A prompt of 90 tokens, another from token 237 on, and others.
  for (int32_t i = 0; i < (IsEmulated() ? 20 : 90); ++i) rows.push_back({one.data(), i});
  for (int32_t i = IsEmulated() ? 280 : 237; i < 290; ++i) rows.push_back({two.data(), i});
  for (int32_t i : {767, 3, 511, 512}) rows.push_back({one.data(), i});
  for (const Types& types : kTypes) {
    for (int64_t head_dim : {40, 64}) {
      for (int64_t group : {1, 3}) {
        Problem p{.heads = 2 * group,
                  .kv_heads = 2,
                  .head_dim = head_dim,
                  .dtype = types.kv,
                  .compute = types.compute};
        p.FillArena(13);
        const auto q = RandomNormal(rows.size() * static_cast<size_t>(p.width()), 17);
        const auto all = p.Run(q, rows, threaded);
        for (size_t chunk :
             IsEmulated() ? std::vector<size_t>{7} : std::vector<size_t>{1, 2, 7, 20, 64}) {
          ASSERT_EQ(BitsOf(RunInChunks(p, q, rows, chunk, GetParam())), BitsOf(all))
              << "chunks of " << chunk << ", head_dim " << head_dim << ", group " << group
              << ", KV " << Name(types.kv) << ", compute " << Name(types.compute);
        }
      }
    }
  }
}

// A window of 100 tokens slides over blocks and splits, then chunks of 64 do, with sinks: as the
// reference has it, with the same bits alone and in chunks, and whatever lies in blocks before.
TEST_P(PagedAttentionTest, WindowsAreExactAndLeaveBlocksBeforeThemAlone) {
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  const auto blocks = Blocks(3);
  std::vector<AttentionRow> rows;
  for (int32_t i = 94; i < 104; ++i) rows.push_back({blocks.data(), i, std::max(0, i - 99)});
  for (int32_t i = 250; i < 262; ++i) rows.push_back({blocks.data(), i, i - 99});
  for (int32_t i = 350; i < 360; ++i) rows.push_back({blocks.data(), i, i - 99});
  for (int32_t i = 124; i < 132; ++i) rows.push_back({blocks.data(), i, i / 64 * 64});
  for (int32_t i : {703, 704}) rows.push_back({blocks.data(), i, i / 64 * 64});
  const auto late_begin = static_cast<std::ptrdiff_t>(rows.size());
  for (int32_t i : {512, 767}) rows.push_back({blocks.data(), i, i - 99});
  for (const Types& types : kTypes) {
    for (int64_t group : {1, 3}) {
      Problem p{.heads = 2 * group, .kv_heads = 2, .dtype = types.kv, .compute = types.compute};
      p.FillArena(13);
      p.sinks = RandomNormal(static_cast<size_t>(p.heads), 41);
      const auto q = RandomNormal(rows.size() * static_cast<size_t>(p.width()), 17);
      const auto want = p.Run(q, rows, Reference());
      const auto all = p.Run(q, rows, threaded);
      for (size_t i = 0; i < all.size(); ++i) ASSERT_NEAR(all[i], want[i], Bound(p)) << i;
      for (size_t chunk : {1u, 7u}) {
        ASSERT_EQ(BitsOf(RunInChunks(p, q, rows, chunk, GetParam())), BitsOf(all))
            << "chunks of " << chunk << ", group " << group << ", KV " << Name(types.kv);
      }
      const std::vector<AttentionRow> late(rows.begin() + late_begin, rows.end());
      const std::vector<float> late_q(q.begin() + late_begin * p.width(), q.end());
      const auto before = p.Run(late_q, late, GetParam());
      // Their first tokens are 413 and 668; what they do not see may be of anybody's.
      for (size_t b = 0; b < 413 / 16; ++b) p.Poison(blocks[b], 0);
      EXPECT_EQ(BitsOf(p.Run(late_q, late, GetParam())), BitsOf(before));
    }
  }
}

// Rounding hides the order of well-behaved sums where y is bf16. Here large terms far apart cancel,
// so scores and sums are rounding errors and nothing else: any other order gives other numbers.
TEST_P(PagedAttentionTest, NoOrderOfAdditionsDependsOnCompanions) {
  const auto blocks = Blocks(9);
  for (const Types& types : kTypes) {
    Problem p{.heads = 2, .kv_heads = 2, .dtype = types.kv, .compute = types.compute};
    p.FillArena(53);
    const auto large = RandomNormal(static_cast<size_t>(p.ElementsPerBlock()) * kBlocks, 59);
    for (int32_t t = 0; t < 768; ++t) {
      for (int64_t i = 0; i < 2 * p.kv_heads * p.head_dim; ++i) {
        const int64_t head = i / p.head_dim;
        const int64_t d = i % p.head_dim;
        // K: dimensions d and 63 - d cancel. V: tokens t and 255 - t of a split do.
        const bool value = head >= p.kv_heads;
        const bool mirror = value ? t % 256 >= 128 : d >= 32;
        const int64_t token = value && mirror ? t / 256 * 256 + 255 - t % 256 : t;
        const int64_t from = !value && mirror ? 63 - d : d;
        const float term = std::ldexp(
            large[static_cast<size_t>((token * 2 * p.kv_heads + head) * p.head_dim + from)], 12);
        p.Set(blocks[static_cast<size_t>(t / 16)], (head * 16 + t % 16) * p.head_dim + d,
              mirror ? -term : term);
      }
    }
    // Scores of K alone make weights of all sizes; those of zero queries leave V to cancel.
    for (float scale : {0.0f, 256.0f}) {
      std::vector<AttentionRow> rows;
      for (int32_t i = 0; i < 40; ++i) rows.push_back({blocks.data(), 255 + i % 3 * 256});
      auto q = RandomNormal(rows.size() * static_cast<size_t>(p.width()), 61);
      for (size_t i = 0; i < q.size(); ++i) {
        const size_t d = i % 64;
        q[i] = d < 32 ? scale * RoundToBf16(q[i]) : q[i - d + 63 - d];
      }
      const auto together = p.Run(q, rows, GetParam());
      for (size_t chunk : IsEmulated() ? std::vector<size_t>{3} : std::vector<size_t>{1, 2, 3, 5}) {
        ASSERT_EQ(BitsOf(RunInChunks(p, q, rows, chunk, GetParam())), BitsOf(together))
            << "chunks of " << chunk << ", scale " << scale << ", KV " << Name(types.kv)
            << ", compute " << Name(types.compute);
      }
    }
  }
}

// The same of the sums over V with weights of all sizes: a token of the first half of a split and
// its mirror image in the second have one K, so one weight, and V of opposite signs.
TEST_P(PagedAttentionTest, NoOrderOfWeightedValuesDependsOnCompanions) {
  const auto blocks = Blocks(10);
  for (const Types& types : kTypes) {
    for (int64_t head_dim : {32, 64, 128, 160}) {
      Problem p{.heads = 2,
                .kv_heads = 2,
                .head_dim = head_dim,
                .dtype = types.kv,
                .compute = types.compute};
      p.FillArena(67);
      const auto values = RandomNormal(static_cast<size_t>(p.ElementsPerBlock()) * kBlocks, 71);
      for (int32_t t = 0; t < 768; ++t) {
        const bool mirror = t % 256 >= 128;
        const int64_t token = mirror ? t / 256 * 256 + 255 - t % 256 : t;
        for (int64_t i = 0; i < 2 * p.kv_heads * head_dim; ++i) {
          const bool value = i >= p.kv_heads * head_dim;
          const auto from = static_cast<size_t>(token * 2 * p.kv_heads * head_dim + i);
          const float x =
              value ? std::ldexp(values[from], static_cast<int>(token % 13)) : values[from];
          p.Set(blocks[static_cast<size_t>(t / 16)],
                (i / head_dim * 16 + t % 16) * head_dim + i % head_dim, value && mirror ? -x : x);
        }
      }
      std::vector<AttentionRow> rows;
      for (int32_t i = 0; i < 20; ++i) rows.push_back({blocks.data(), 255 + i % 3 * 256});
      const auto q = RandomNormal(rows.size() * static_cast<size_t>(p.width()), 73);
      const auto together = p.Run(q, rows, GetParam());
      for (size_t chunk : IsEmulated() ? std::vector<size_t>{3} : std::vector<size_t>{1, 2, 3, 5}) {
        ASSERT_EQ(BitsOf(RunInChunks(p, q, rows, chunk, GetParam())), BitsOf(together))
            << "chunks of " << chunk << ", head_dim " << head_dim << ", KV " << Name(types.kv)
            << ", compute " << Name(types.compute);
      }
    }
  }
}

// Weights times these V are denormal numbers, which some instructions take for zeros: then so must
// those that stand in for them where a tile has one query.
TEST_P(PagedAttentionTest, WhatDenormalNumbersCountDoesNotDependOnCompanions) {
  const auto blocks = Blocks(10);
  for (const Types& types : kTypes) {
    Problem p{.heads = 2, .kv_heads = 2, .dtype = types.kv, .compute = types.compute};
    p.FillArena(67);
    const auto values = RandomNormal(static_cast<size_t>(768 * p.width()), 71);
    for (int32_t t = 0; t < 768; ++t) {
      for (int64_t i = 0; i < p.width(); ++i) {
        const float v = values[static_cast<size_t>(t * p.width() + i)];
        p.Set(blocks[static_cast<size_t>(t / 16)],
              ((p.kv_heads + i / p.head_dim) * 16 + t % 16) * p.head_dim + i % p.head_dim,
              std::ldexp(v, -125));
      }
    }
    std::vector<AttentionRow> rows;
    for (int32_t i = 0; i < 20; ++i) rows.push_back({blocks.data(), 20 + i * 37});
    const auto q = RandomNormal(rows.size() * p.QuerySize(), 73);
    const auto together = p.Run(q, rows, GetParam());
    for (size_t chunk : {1u, 2u, 5u}) {
      ASSERT_EQ(BitsOf(RunInChunks(p, q, rows, chunk, GetParam())), BitsOf(together))
          << "chunks of " << chunk << ", KV " << Name(types.kv) << ", compute "
          << Name(types.compute);
    }
  }
}

// Few rows and many threads: the sequence is split between them, and nobody can tell.
TEST_P(PagedAttentionTest, SplittingASequenceBetweenThreadsMovesNoBit) {
  if (IsEmulated()) GTEST_SKIP() << "has no threads of the host";
  ThreadTeam team(16);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  const auto blocks = Blocks(5);
  const std::vector<AttentionRow> rows = {
      {blocks.data(), 700}, {blocks.data(), 200}, {blocks.data(), 767}};
  for (const Types& types : kTypes) {
    // Items of one KV head, of some, of all that fit, and of fewer than that.
    for (int64_t kv_heads : {1, 3, 16, 40}) {
      for (int64_t group : {1, 2}) {
        Problem p{.heads = group * kv_heads,
                  .kv_heads = kv_heads,
                  .head_dim = kv_heads == 1 ? 256 : 32,
                  .dtype = types.kv,
                  .compute = types.compute};
        p.FillArena(37);
        const auto q = RandomNormal(rows.size() * static_cast<size_t>(p.width()), 41);
        const auto alone = p.Run(q, rows, GetParam());
        EXPECT_EQ(BitsOf(p.Run(q, rows, threaded)), BitsOf(alone))
            << kv_heads << " KV heads, group " << group;
      }
    }
  }
}

// Sequences too long for their sums to fit, one with a window, and several that end in one pass.
TEST_P(PagedAttentionTest, NoBitTellsTheSizeOfTheWorkspace) {
  if (IsReference() || IsEmulated()) GTEST_SKIP() << "has none";
  ThreadTeam team(16);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  const auto one = LongBlocks(5);
  const auto two = LongBlocks(6);
  const auto three = LongBlocks(8);
  const std::vector<AttentionRow> rows = {{one.data(), kLongPosition},
                                          {two.data(), 5 * 256 + 3},
                                          {three.data(), kLongPosition - 300, 700},
                                          {three.data(), kLongPosition - 299, 701}};
  for (const Types& types : kTypes) {
    for (int64_t kv_heads : {1, 12}) {
      Problem p{.heads = 4 * kv_heads,
                .kv_heads = kv_heads,
                .head_dim = 64,
                .dtype = types.kv,
                .compute = types.compute};
      p.FillArena(37);
      p.sinks = RandomNormal(static_cast<size_t>(p.heads), 3);
      const auto q = RandomNormal(rows.size() * static_cast<size_t>(p.width()), 41);
      const auto alone = p.Run(q, rows, GetParam());
      for (const int64_t bytes : {int64_t{0}, int64_t{3} << 20, int64_t{1} << 30}) {
        EXPECT_EQ(BitsOf(p.Run(q, rows, threaded, bytes)), BitsOf(alone))
            << kv_heads << " KV heads, " << bytes << " bytes, KV " << Name(types.kv) << ", compute "
            << Name(types.compute);
      }
    }
  }
}

// The same KV in other blocks.
TEST_P(PagedAttentionTest, BlockIdsDoNotMatter) {
  for (const Types& types : kTypes) {
    Problem p{.dtype = types.kv, .compute = types.compute};
    p.FillArena(43);
    const auto blocks = Blocks(6);
    Problem moved = p;
    const auto other = Blocks(7);
    for (size_t i = 0; i < blocks.size(); ++i) {
      std::memcpy(moved.arena.data() + other[i] * p.stride, p.arena.data() + blocks[i] * p.stride,
                  static_cast<size_t>(p.stride));
    }
    const auto q = RandomNormal(2 * static_cast<size_t>(p.width()), 47);
    const auto here = p.Run(q, {{blocks.data(), 400}, {blocks.data(), 401}}, GetParam());
    const auto there = moved.Run(q, {{other.data(), 400}, {other.data(), 401}}, GetParam());
    EXPECT_EQ(BitsOf(here), BitsOf(there));
  }
}

// What lies after a row's position belongs to others, or to nobody: stale NaN must not leak in, not
// from the row's own block and not through the rows it shares work with.
TEST_P(PagedAttentionTest, NothingBeyondItsPositionCounts) {
  for (const Types& types : kTypes) {
    // Within a split, up to its end and across it; all tokens, and a window.
    for (const auto& [base, window] :
         {std::pair{0, 1000}, {237, 1000}, {240, 1000}, {5, 8}, {240, 8}}) {
      Problem p{.dtype = types.kv, .compute = types.compute};
      p.FillArena(19);
      const auto blocks = Blocks(8);
      const auto block = [&](int32_t token) { return blocks[static_cast<size_t>(token / 16)]; };
      std::vector<AttentionRow> rows;
      for (int32_t i = base; i < base + 20; ++i) {
        rows.push_back({blocks.data(), i, std::max(0, i + 1 - window)});
      }
      const auto q = RandomNormal(rows.size() * static_cast<size_t>(p.width()), 23);
      const auto before = p.Run(q, rows, GetParam());
      p.Poison(block(base + 20), (base + 20) % 16);  // Tokens that no row sees.
      EXPECT_EQ(BitsOf(p.Run(q, rows, GetParam())), BitsOf(before));
      EXPECT_EQ(BitsOf(RunInChunks(p, q, rows, 1, GetParam())), BitsOf(before));
      p.Poison(block(base + 18), (base + 18) % 16);  // Tokens that the last two rows see.
      const auto after = p.Run(q, rows, GetParam());
      // The same with the last row first.
      std::vector<AttentionRow> turned_rows(rows.rbegin(), rows.rend());
      std::vector<float> turned_q;
      const auto width = static_cast<size_t>(p.width());
      for (size_t r = rows.size(); r-- > 0;) {
        const auto at = q.begin() + static_cast<std::ptrdiff_t>(r * width);
        turned_q.insert(turned_q.end(), at, at + p.width());
      }
      const auto turned = p.Run(turned_q, turned_rows, GetParam());
      for (size_t i = 0; i < after.size(); ++i) {
        const size_t there = (rows.size() - 1 - i / width) * width + i % width;
        if (i / width >= 18) {
          ASSERT_TRUE(std::isnan(after[i])) << i;
          ASSERT_TRUE(std::isnan(turned[there])) << i;
        } else {
          ASSERT_EQ(after[i], before[i]) << i;
          ASSERT_EQ(turned[there], before[i]) << i;
        }
      }
    }
  }
}

// The same of what lies before a row's window and in that of a companion.
TEST_P(PagedAttentionTest, NothingBeforeItsWindowCounts) {
  for (const Types& types : kTypes) {
    Problem p{.dtype = types.kv, .compute = types.compute};
    p.FillArena(19);
    const auto blocks = Blocks(8);
    std::vector<AttentionRow> rows;
    // All positions are behind the spoilt tokens.
    for (int32_t i = 32; i < 62; ++i) rows.push_back({blocks.data(), i, i - 7});
    const auto q = RandomNormal(rows.size() * p.QuerySize(), 23);
    const auto before = p.Run(q, rows, GetParam());
    p.Poison(blocks[1], 0);  // Tokens 16 to 31.
    const auto after = p.Run(q, rows, GetParam());
    for (size_t i = 0; i < after.size(); ++i) {
      if (rows[i / p.QuerySize()].first < 32) {
        ASSERT_TRUE(std::isnan(after[i])) << i;
      } else {
        ASSERT_EQ(after[i], before[i]) << i;
      }
    }
  }
}

// Nor that of a companion which begins before a split that the row begins in; with K, and without,
// whose scores then say nothing of it.
TEST_P(PagedAttentionTest, WhatACompanionSeesAtTheStartOfASplitDoesNotCount) {
  for (const Types& types : kTypes) {
    for (bool keys : {false, true}) {
      Problem p{.dtype = types.kv, .compute = types.compute};
      p.FillArena(19);
      const auto blocks = Blocks(8);
      const std::vector<AttentionRow> rows = {{blocks.data(), 530, 250}, {blocks.data(), 531, 272}};
      const auto q = RandomNormal(rows.size() * p.QuerySize(), 23);
      const auto before = p.Run(q, rows, GetParam());
      p.Poison(blocks[16], 0, keys);  // Tokens 256 to 271.
      const auto after = p.Run(q, rows, GetParam());
      for (size_t i = 0; i < after.size(); ++i) {
        if (i < p.QuerySize()) {
          ASSERT_TRUE(std::isnan(after[i])) << i;
        } else {
          ASSERT_EQ(after[i], before[i]) << i;
        }
      }
    }
  }
}

// With KV of f32 both products are those of f32 compute.
TEST_P(PagedAttentionTest, RoundsItsResultsForBf16) {
  Problem p{.dtype = DType::kF32};
  p.FillArena(29);
  const int32_t block = 0;
  const auto q = RandomNormal(static_cast<size_t>(p.width()), 31);
  const auto exact = p.Run(q, {{&block, 9}}, GetParam());
  p.compute = DType::kBf16;
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
  AttentionWorkspace workspace(0);
  EXPECT_TRUE(PagedAttention(good, workspace, GetParam()).ok());
  auto code = [&](const PagedAttentionArgs& args) {
    return PagedAttention(args, workspace, GetParam()).code();
  };
  PagedAttentionArgs bad = good;
  bad.kv_heads = 3;
  EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.head_dim = kMaxHeadDim + 1;
  bad.q_stride = bad.y_stride = 4096;
  EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
  const AttentionRow backwards{.position = 3, .first = 4};
  bad = good;
  bad.row_count = 1;
  bad.rows = &backwards;
  if (SeesContents()) {
    EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
  }
  bad = good;
  bad.kv_dtype = DType::kF16;
  EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
}

#if !defined(__SANITIZE_THREAD__)
// More splits than workers, in any order of threads and blocks, with and without a window, beside
// another sequence; of f32, and of bf16, which tensor cores multiply.
void MergeTheSplitsOfALongSequence(DType type, int64_t head_dim, double bound) {
  constexpr int64_t kHeads = 2;
  constexpr int32_t kPosition = 16 * 256 + 700;
  constexpr size_t kKvBlocks = kPosition / 16 + 1;
  const int64_t block_bytes = 2 * 16 * head_dim * static_cast<int64_t>(SizeOf(type));
  const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
  const auto size = [&](int64_t rows) { return static_cast<size_t>(rows * head_dim); };
  const auto q = RandomNormal(size(5 * kHeads), 3);
  auto values = RandomNormal(size(kKvBlocks * 2 * 16), 5);
  auto kv = Encode(values, type);
  std::vector<int32_t> blocks(kKvBlocks);
  for (size_t i = 0; i < kKvBlocks; ++i) blocks[i] = static_cast<int32_t>(kKvBlocks - 1 - i);
  const AttentionRow rows[] = {{blocks.data(), kPosition, 0},
                               {blocks.data(), kPosition - 3, 517},
                               {blocks.data(), 4096, 4095},
                               {blocks.data(), 100, 0},
                               {blocks.data() + 7, 300, 0}};
  const auto run = [&](const ExecContext& ctx) {
    std::vector<std::byte> y(q.size() * SizeOf(type));
    AttentionWorkspace workspace(0);
    const absl::Status status = PagedAttention({.q = q.data(),
                                                .rows = rows,
                                                .kv = kv.data(),
                                                .y = y.data(),
                                                .row_count = 5,
                                                .heads = kHeads,
                                                .kv_heads = 1,
                                                .head_dim = head_dim,
                                                .q_stride = kHeads * head_dim,
                                                .y_stride = kHeads * head_dim,
                                                .block_stride_bytes = block_bytes,
                                                .kv_dtype = type,
                                                .compute_dtype = type,
                                                .scale = scale},
                                               workspace, ctx);
    EXPECT_TRUE(status.ok()) << status;
    return Decode(y, type);
  };
  const auto want = run(testing::AllContexts().front());
  const auto got = run(testing::EmulatedCuda());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << i;
  for (uint64_t order = 1; order < 4; ++order) {
    cuda_emulation::SetOptions({.order = order, .resident_blocks = 4});
    EXPECT_EQ(BitsOf(run(testing::EmulatedCuda())), BitsOf(got)) << order;
  }
  cuda_emulation::SetOptions({});
  // With scratch memory for one row at a time.
  ExecContext little = testing::EmulatedCuda();
  little.queue.scratch_bytes = static_cast<size_t>(kHeads * 16 * (head_dim + 2) * 4);
  EXPECT_EQ(BitsOf(run(little)), BitsOf(got));
  // Weights sum to 1, over the splits of one worker and over workers.
  const size_t half = size(16);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % (2 * half) >= half) values[i] = 1;
  }
  kv = Encode(values, type);
  for (float y : run(testing::EmulatedCuda())) ASSERT_NEAR(y, 1, bound / 4);
  // And for none.
  little.queue.scratch_bytes -= 4;
  AttentionWorkspace workspace(0);
  EXPECT_EQ(PagedAttention({.rows = rows,
                            .row_count = 1,
                            .heads = kHeads,
                            .kv_heads = 1,
                            .head_dim = head_dim,
                            .q_stride = kHeads * head_dim,
                            .y_stride = kHeads * head_dim,
                            .block_stride_bytes = 64},
                           workspace, little)
                .code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(PagedAttentionOnDeviceTest, WorkersMergeTheSplitsOfALongSequence) {
  MergeTheSplitsOfALongSequence(DType::kF32, 8, 1e-5);
  MergeTheSplitsOfALongSequence(DType::kBf16, 64, 4e-2);
}
#endif

INSTANTIATE_TEST_SUITE_P(Contexts, PagedAttentionTest, ::testing::ValuesIn(AllContextsAndCuda()),
                         ContextParamName);

}  // namespace
}  // namespace lynx::kernels
