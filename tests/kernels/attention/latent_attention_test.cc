#include "kernels/attention/latent_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/float_convert.h"
#include "tests/kernels/attention/attention_rows.h"
#include "tests/support/cuda_emulation/emulated_context.h"
#include "tests/support/kernel_test.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::AllContextsAndCuda;
using ::lynx::testing::BitsOf;
using ::lynx::testing::ContextParamName;
using ::lynx::testing::Decode;
using ::lynx::testing::Encode;
using ::lynx::testing::kCanary;
using ::lynx::testing::KernelTest;
using ::lynx::testing::RandomNormal;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// An arena of random latents and the queries of some rows.
struct Problem {
  int64_t heads = 4;
  int64_t latent_dim = 64;
  int64_t rope_dim = 32;
  DType dtype = DType::kBf16;
  DType compute = DType::kF32;
  std::vector<std::byte> arena = {};
  int64_t stride = 0;

  int64_t width() const { return latent_dim + rope_dim; }
  size_t QuerySize() const { return static_cast<size_t>(heads * width()); }
  size_t ResultSize() const { return static_cast<size_t>(heads * latent_dim); }

  void FillArena(uint32_t seed) {
    stride = 16 * width() * static_cast<int64_t>(SizeOf(dtype)) + 64;
    arena.assign(static_cast<size_t>(stride) * kBlocks, std::byte{0xff});  // NaN between blocks.
    const auto values = RandomNormal(static_cast<size_t>(16 * width()) * kBlocks, seed);
    for (int64_t i = 0; i < 16 * width() * kBlocks; ++i) {
      Set(static_cast<int32_t>(i / (16 * width())), i % (16 * width()),
          values[static_cast<size_t>(i)]);
    }
  }
  void Set(int32_t block, int64_t element, float value) {
    std::byte* to = arena.data() + block * stride + element * static_cast<int64_t>(SizeOf(dtype));
    const auto bytes = Encode({value}, dtype);
    std::memcpy(to, bytes.data(), bytes.size());
  }
  // Spoils slots >= `first` of a block.
  void Poison(int32_t block, int32_t first) {
    for (int64_t i = first * width(); i < 16 * width(); ++i) Set(block, i, kNan);
  }

  // y without its gaps, [rows, heads, latent_dim], once it is seen that nobody wrote into them.
  std::vector<float> Run(const std::vector<float>& q, const std::vector<AttentionRow>& rows,
                         const ExecContext& ctx, int64_t workspace_bytes = 0) const {
    AttentionWorkspace workspace(workspace_bytes);
    const size_t head_stride = static_cast<size_t>(latent_dim) + 5;
    const size_t row_stride = static_cast<size_t>(heads) * head_stride + 3;
    auto y = Encode(std::vector<float>(rows.size() * row_stride, kCanary), compute);
    const float canary = Decode(y, compute)[0];
    const absl::Status status =
        LatentAttention({.q = q.data(),
                         .rows = rows.data(),
                         .kv = arena.data(),
                         .y = y.data(),
                         .row_count = static_cast<int64_t>(rows.size()),
                         .heads = heads,
                         .latent_dim = latent_dim,
                         .rope_dim = rope_dim,
                         .q_stride = heads * width(),
                         .y_head_stride = static_cast<int64_t>(head_stride),
                         .y_stride = static_cast<int64_t>(row_stride),
                         .block_stride_bytes = stride,
                         .kv_dtype = dtype,
                         .compute_dtype = compute,
                         .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width())))},
                        workspace, ctx);
    EXPECT_TRUE(status.ok()) << status;
    const auto all = Decode(y, compute);
    std::vector<float> results;
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t in_row = i % row_stride;
      if (in_row < static_cast<size_t>(heads) * head_stride &&
          in_row % head_stride < static_cast<size_t>(latent_dim)) {
        results.push_back(all[i]);
      } else {
        EXPECT_EQ(all[i], canary) << "between heads, at " << i;
      }
    }
    return results;
  }
};

class LatentAttentionTest : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    SkipIfEmulatedInShort();
  }
};

// A first token attends to itself alone: the answer is its latent.
TEST_P(LatentAttentionTest, TheFirstTokenGetsItsOwnLatent) {
  Problem p{.heads = 1, .latent_dim = 3, .rope_dim = 2, .dtype = DType::kF32};
  p.FillArena(1);
  for (int64_t d = 0; d < 3; ++d) p.Set(2, d, static_cast<float>(d + 1));
  const int32_t block = 2;
  EXPECT_EQ(p.Run({1, 2, 3, 4, 5}, {{&block, 0}}, GetParam()), (std::vector<float>{1, 2, 3}));
}

// Two tokens, scores 0 and ln 3 by latent and rotated key together: weights 1/4 and 3/4.
TEST_P(LatentAttentionTest, MatchesAHandComputedPair) {
  Problem p{.heads = 1, .latent_dim = 1, .rope_dim = 1, .dtype = DType::kF32};
  p.FillArena(1);
  p.Set(0, 0, 10.0f);
  p.Set(0, 1, -10.0f);
  p.Set(0, 2, 20.0f);
  p.Set(0, 3, -20.0f + std::sqrt(2.0f) * std::log(3.0f));
  const int32_t block = 0;
  EXPECT_NEAR(p.Run({1, 1}, {{&block, 1}}, GetParam())[0], 17.5, 1e-5);
}

// The model's own form: keys and values of every head are made from the latents, by matrices that
// the absorbed form has moved to the queries and behind the sums.
TEST_P(LatentAttentionTest, EqualsAttentionOverTheKeysAndValuesOfEachHead) {
  constexpr int64_t kHeads = 3, kNope = 6, kRope = 4, kLatent = 10, kValue = 5, kPosition = 300;
  constexpr int64_t kWidth = kLatent + kRope;
  const auto key_weights = RandomNormal(kHeads * kNope * kLatent, 3);
  const auto value_weights = RandomNormal(kHeads * kValue * kLatent, 5);
  const auto query = RandomNormal(kHeads * (kNope + kRope), 7);
  const auto tokens = RandomNormal((kPosition + 1) * kWidth, 11);
  auto at = [](const std::vector<float>& v, int64_t i) {
    return double{v[static_cast<size_t>(i)]};
  };

  Problem p{.heads = kHeads, .latent_dim = kLatent, .rope_dim = kRope, .dtype = DType::kF32};
  p.FillArena(1);
  const auto blocks = Blocks(2);
  for (int64_t t = 0; t <= kPosition; ++t) {
    for (int64_t d = 0; d < kWidth; ++d) {
      p.Set(blocks[static_cast<size_t>(t / 16)], t % 16 * kWidth + d,
            tokens[static_cast<size_t>(t * kWidth + d)]);
    }
  }
  std::vector<float> q;
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t d = 0; d < kLatent; ++d) {
      double sum = 0;
      for (int64_t n = 0; n < kNope; ++n) {
        sum += at(query, h * (kNope + kRope) + n) * at(key_weights, (h * kNope + n) * kLatent + d);
      }
      q.push_back(static_cast<float>(sum));
    }
    for (int64_t d = 0; d < kRope; ++d) {
      q.push_back(query[static_cast<size_t>(h * (kNope + kRope) + kNope + d)]);
    }
  }
  const auto y = p.Run(q, {{blocks.data(), kPosition}}, GetParam());

  for (int64_t h = 0; h < kHeads; ++h) {
    std::vector<double> weights, values(kValue);
    double total = 0;
    for (int64_t t = 0; t <= kPosition; ++t) {
      double score = 0;
      for (int64_t n = 0; n < kNope; ++n) {
        double key = 0;
        for (int64_t d = 0; d < kLatent; ++d) {
          key += at(key_weights, (h * kNope + n) * kLatent + d) * at(tokens, t * kWidth + d);
        }
        score += at(query, h * (kNope + kRope) + n) * key;
      }
      for (int64_t d = 0; d < kRope; ++d) {
        score += at(query, h * (kNope + kRope) + kNope + d) * at(tokens, t * kWidth + kLatent + d);
      }
      const double weight = std::exp(score / std::sqrt(double{kWidth}));
      total += weight;
      for (int64_t v = 0; v < kValue; ++v) {
        for (int64_t d = 0; d < kLatent; ++d) {
          values[static_cast<size_t>(v)] += weight *
                                            at(value_weights, (h * kValue + v) * kLatent + d) *
                                            at(tokens, t * kWidth + d);
        }
      }
    }
    for (int64_t v = 0; v < kValue; ++v) {
      double absorbed = 0;
      for (int64_t d = 0; d < kLatent; ++d) {
        absorbed += at(value_weights, (h * kValue + v) * kLatent + d) * at(y, h * kLatent + d);
      }
      EXPECT_NEAR(absorbed, values[static_cast<size_t>(v)] / total, 2e-4) << h << ", " << v;
    }
  }
}

// As PagedAttention: see the header.
double Bound(const Problem& p) { return p.compute == DType::kBf16 ? 4e-2 : 5e-5; }

struct Shape {
  int64_t heads;
  int64_t latent_dim;
  int64_t rope_dim;
};

// Positions around the ends of blocks and splits; widths with and without whole vectors and matrix
// steps; a row's heads in a part of a tile, in two, in more.
TEST_P(LatentAttentionTest, AgreesWithReference) {
  const auto one = Blocks(1);
  const auto two = Blocks(2, 3);
  std::vector<AttentionRow> rows;
  for (int32_t position : {0, 1, 15, 16, 17, 31, 32, 94, 255, 256, 257, 512, 767}) {
    rows.push_back({one.data(), position});
  }
  for (int32_t position : {40, 41, 42}) rows.push_back({two.data(), position});
  for (const Types& types : kTypes) {
    for (const Shape& shape : {Shape{1, 1, 0}, Shape{3, 20, 7}, Shape{1, 32, 32}, Shape{16, 96, 64},
                               Shape{40, 64, 32}, Shape{2, 512, 64}, Shape{1, 768, 128}}) {
      Problem p{.heads = shape.heads,
                .latent_dim = shape.latent_dim,
                .rope_dim = shape.rope_dim,
                .dtype = types.kv,
                .compute = types.compute};
      p.FillArena(7);
      const auto q = RandomNormal(rows.size() * p.QuerySize(), 11);
      const auto want = p.Run(q, rows, Reference());
      const auto got = p.Run(q, rows, GetParam());
      ASSERT_EQ(got.size(), rows.size() * p.ResultSize());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], Bound(p))
            << i << ", heads " << shape.heads << ", latent_dim " << shape.latent_dim << ", KV "
            << Name(types.kv) << ", compute " << Name(types.compute);
      }
    }
  }
}

// Companions, chunks and threads, a prompt's row or a generated token's: none may move a bit.
TEST_P(LatentAttentionTest, ARowsBitsDependOnItsOwnSequenceAlone) {
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  const auto one = Blocks(3);
  const auto two = Blocks(4);
  std::vector<AttentionRow> rows;  // A prompt of 40 tokens, another from token 237 on, and others.
  for (int32_t i = 0; i < (IsEmulated() ? 15 : 40); ++i) rows.push_back({one.data(), i});
  for (int32_t i = IsEmulated() ? 264 : 237; i < 270; ++i) rows.push_back({two.data(), i});
  for (int32_t i : {767, 3, 511, 512}) rows.push_back({one.data(), i});
  for (const Types& types : kTypes) {
    for (const Shape& shape : {Shape{1, 40, 8}, Shape{3, 64, 32}, Shape{20, 32, 32}}) {
      Problem p{.heads = shape.heads,
                .latent_dim = shape.latent_dim,
                .rope_dim = shape.rope_dim,
                .dtype = types.kv,
                .compute = types.compute};
      p.FillArena(13);
      const auto q = RandomNormal(rows.size() * p.QuerySize(), 17);
      const auto all = p.Run(q, rows, threaded);
      for (size_t chunk :
           IsEmulated() ? std::vector<size_t>{7} : std::vector<size_t>{1, 2, 7, 20, 64}) {
        ASSERT_EQ(BitsOf(RunInChunks(p, q, rows, chunk, GetParam())), BitsOf(all))
            << "chunks of " << chunk << ", heads " << shape.heads << ", latent_dim "
            << shape.latent_dim << ", KV " << Name(types.kv) << ", compute " << Name(types.compute);
      }
    }
  }
}

// Rounding hides the order of well-behaved sums where y is bf16. Here large terms far apart cancel,
// so scores and sums are rounding errors and nothing else: any other order gives other numbers.
TEST_P(LatentAttentionTest, NoOrderOfAdditionsDependsOnCompanions) {
  const auto blocks = Blocks(9);
  for (const Types& types : kTypes) {
    // Steps of 32 dimensions, more than two: two may change places.
    Problem p{
        .heads = 1, .latent_dim = 96, .rope_dim = 32, .dtype = types.kv, .compute = types.compute};
    p.FillArena(53);
    const auto large = RandomNormal(768 * 128, 59);
    for (int64_t t = 0; t < 768; ++t) {
      for (int64_t d = 0; d < 128; ++d) {
        // Dimensions d and 127 - d cancel, and so do tokens t and 255 - t of a split.
        const int64_t in_split = t % 256;
        const int64_t token = in_split < 128 ? t : t - in_split + 255 - in_split;
        const int64_t from = d < 64 ? d : 127 - d;
        const float term = std::ldexp(large[static_cast<size_t>(token * 128 + from)], 12);
        p.Set(blocks[static_cast<size_t>(t / 16)], t % 16 * 128 + d,
              (in_split < 128) == (d < 64) ? term : -term);
      }
    }
    // Scores alone make weights of all sizes; those of zero queries leave the sums to cancel.
    for (float scale : {0.0f, 256.0f}) {
      std::vector<AttentionRow> rows;
      for (int32_t i = 0; i < 40; ++i) rows.push_back({blocks.data(), 255 + i % 3 * 256});
      auto q = RandomNormal(rows.size() * p.QuerySize(), 61);
      for (size_t i = 0; i < q.size(); ++i) {
        const size_t d = i % 128;
        q[i] = d < 64 ? scale * RoundToBf16(q[i]) : q[i - d + 127 - d];
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

// Few rows and many threads: the sequence is split between them, and nobody can tell. 40 heads: two
// tiles of a row take turns.
TEST_P(LatentAttentionTest, SplittingASequenceBetweenThreadsMovesNoBit) {
  if (IsEmulated()) GTEST_SKIP() << "has no threads of the host";
  ThreadTeam team(16);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  const auto one = Blocks(5);
  const auto two = Blocks(6);
  const std::vector<AttentionRow> rows = {
      {one.data(), 700}, {one.data(), 200}, {one.data(), 767}, {two.data(), 100}};
  for (const Types& types : kTypes) {
    for (int64_t heads : {2, 40}) {
      Problem p{.heads = heads, .dtype = types.kv, .compute = types.compute};
      p.FillArena(37);
      const auto q = RandomNormal(rows.size() * p.QuerySize(), 41);
      const auto alone = p.Run(q, rows, GetParam());
      EXPECT_EQ(BitsOf(p.Run(q, rows, threaded)), BitsOf(alone)) << heads << " heads";
    }
  }
}

// Sequences too long for their sums to fit, several that end in one pass, and heads too many to be
// carried together.
TEST_P(LatentAttentionTest, NoBitTellsTheSizeOfTheWorkspace) {
  if (IsReference() || IsEmulated()) GTEST_SKIP() << "has none";
  ThreadTeam team(16);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  const auto one = LongBlocks(5);
  const auto two = LongBlocks(6);
  const auto three = LongBlocks(8);
  const std::vector<AttentionRow> rows = {{one.data(), kLongPosition},
                                          {two.data(), 5 * 256 + 3},
                                          {three.data(), kLongPosition - 300},
                                          {three.data(), kLongPosition - 299}};
  for (const Types& types : kTypes) {
    for (int64_t heads : {3, 40}) {
      Problem p{.heads = heads,
                .latent_dim = 32,
                .rope_dim = 32,
                .dtype = types.kv,
                .compute = types.compute};
      p.FillArena(37);
      const auto q = RandomNormal(rows.size() * p.QuerySize(), 41);
      const auto alone = p.Run(q, rows, GetParam());
      for (const int64_t bytes : {int64_t{0}, int64_t{3} << 20, int64_t{1} << 30}) {
        EXPECT_EQ(BitsOf(p.Run(q, rows, threaded, bytes)), BitsOf(alone))
            << heads << " heads, " << bytes << " bytes, KV " << Name(types.kv) << ", compute "
            << Name(types.compute);
      }
    }
  }
}

// The same latents in other blocks.
TEST_P(LatentAttentionTest, BlockIdsDoNotMatter) {
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
    const auto q = RandomNormal(2 * p.QuerySize(), 47);
    const auto here = p.Run(q, {{blocks.data(), 400}, {blocks.data(), 401}}, GetParam());
    const auto there = moved.Run(q, {{other.data(), 400}, {other.data(), 401}}, GetParam());
    EXPECT_EQ(BitsOf(here), BitsOf(there));
  }
}

// What lies after a row's position belongs to others, or to nobody: stale NaN must not leak in, not
// from the row's own block and not through the rows it shares work with.
TEST_P(LatentAttentionTest, NothingBeyondItsPositionCounts) {
  for (const Types& types : kTypes) {
    for (int32_t base : {0, 240}) {  // Within a split, and across the end of one.
      Problem p{.dtype = types.kv, .compute = types.compute};
      p.FillArena(19);
      const auto blocks = Blocks(8);
      const auto block = [&](int32_t token) { return blocks[static_cast<size_t>(token / 16)]; };
      std::vector<AttentionRow> rows;
      for (int32_t i = 0; i < 20; ++i) rows.push_back({blocks.data(), base + i});
      const auto q = RandomNormal(rows.size() * p.QuerySize(), 23);
      const auto before = p.Run(q, rows, GetParam());
      p.Poison(block(base + 20), (base + 20) % 16);  // Tokens that no row sees.
      EXPECT_EQ(BitsOf(p.Run(q, rows, GetParam())), BitsOf(before));
      p.Poison(block(base + 18), (base + 18) % 16);  // Tokens that the last two rows see.
      const auto after = p.Run(q, rows, GetParam());
      for (size_t i = 0; i < after.size(); ++i) {
        if (i / p.ResultSize() >= 18) {
          ASSERT_TRUE(std::isnan(after[i])) << i;
        } else {
          ASSERT_EQ(after[i], before[i]) << i;
        }
      }
    }
  }
}

// With KV of f32 both products are those of f32 compute.
TEST_P(LatentAttentionTest, RoundsItsResultsForBf16) {
  Problem p{.dtype = DType::kF32};
  p.FillArena(29);
  const int32_t block = 0;
  const auto q = RandomNormal(p.QuerySize(), 31);
  const auto exact = p.Run(q, {{&block, 9}}, GetParam());
  p.compute = DType::kBf16;
  EXPECT_EQ(p.Run(q, {{&block, 9}}, GetParam()), testing::RoundedToBf16(exact));
}

TEST_P(LatentAttentionTest, RefusesWhatItCannotRun) {
  const LatentAttentionArgs good{.row_count = 0,
                                 .heads = 4,
                                 .latent_dim = 8,
                                 .rope_dim = 4,
                                 .q_stride = 48,
                                 .y_head_stride = 8,
                                 .y_stride = 32,
                                 .block_stride_bytes = 64};
  AttentionWorkspace workspace(0);
  EXPECT_TRUE(LatentAttention(good, workspace, GetParam()).ok());
  auto refused = [&](void (*change)(LatentAttentionArgs&)) {
    LatentAttentionArgs bad = good;
    change(bad);
    EXPECT_EQ(LatentAttention(bad, workspace, GetParam()).code(),
              absl::StatusCode::kInvalidArgument);
  };
  refused([](auto& args) { args.heads = 0; });
  refused([](auto& args) { args.latent_dim = 0; });
  refused([](auto& args) { args.rope_dim = -1; });
  refused([](auto& args) { args.q_stride = 47; });
  refused([](auto& args) { args.y_head_stride = 7; });
  refused([](auto& args) { args.y_stride = 31; });
  refused([](auto& args) { args.block_stride_bytes = 0; });
  if (SeesContents())
    refused([](auto& args) {
      static constexpr AttentionRow kWindow{.position = 3, .first = 2};
      args.rows = &kWindow;
      args.row_count = 1;
    });
  refused([](auto& args) { args.kv_dtype = DType::kF16; });
  refused([](auto& args) { args.compute_dtype = DType::kF16; });
  refused([](auto& args) {
    args.latent_dim = kMaxLatentDim + 1;
    args.q_stride = args.y_head_stride = args.y_stride = 8192;
  });
  refused([](auto& args) {
    args.rope_dim = kMaxLatentRopeDim + 1;
    args.q_stride = 8192;
  });
}

INSTANTIATE_TEST_SUITE_P(Contexts, LatentAttentionTest, ::testing::ValuesIn(AllContextsAndCuda()),
                         ContextParamName);

}  // namespace
}  // namespace lynx::kernels
