#include "common/kv/kv_arena.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_remote_memory.h"
#include "tests/support/status_matchers.h"

namespace lynx::kv {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;

TEST(KvLayoutTest, ABlockHoldsWhatItsKindSays) {
  const KvLayout heads = {.layers = 3, .kv_heads = 4, .head_dim = 128, .dtype = DType::kBf16};
  EXPECT_EQ(heads.BlockLayerBytes(), 2 * 4 * 16 * 128 * 2);
  EXPECT_EQ(heads.BlockBytes(), 3 * heads.BlockLayerBytes());
  const KvLayout latents = {.kind = KvKind::kLatent, .layers = 27, .kv_heads = 1, .head_dim = 576};
  EXPECT_EQ(latents.BlockLayerBytes(), 16 * 576 * 2);
  EXPECT_EQ(latents.BlockBytes() / kBlockTokens, 27 * 1152);
  KvLayout other = latents;
  other.kind = KvKind::kGroupedHeads;
  EXPECT_FALSE(other == latents);
}

// Blocks of odd sizes begin at multiples of 64 bytes as others do, and none overlaps its neighbour.
TEST(KvArenaTest, BlocksAreAlignedApartAndZero) {
  const KvLayout layouts[] = {
      {.layers = 2, .kv_heads = 1, .head_dim = 3, .dtype = DType::kBf16},
      {.layers = 2, .kv_heads = 3, .head_dim = 64, .dtype = DType::kF32},
      {.kind = KvKind::kLatent, .layers = 2, .kv_heads = 1, .head_dim = 13, .dtype = DType::kBf16},
      {.kind = KvKind::kLatent, .layers = 2, .kv_heads = 1, .head_dim = 576, .dtype = DType::kF32},
  };
  for (const KvLayout& layout : layouts) {
    SCOPED_TRACE(layout.head_dim);
    auto arena = KvArena::Create(layout, /*blocks=*/5);
    ASSERT_THAT(arena, IsOk());
    EXPECT_EQ((*arena)->block_stride_bytes() % 64, 0);
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (BlockId block = 0; block < 5; ++block) {
        const std::span<std::byte> bytes = (*arena)->BlockLayerSpan(layer, block);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % 64, 0u);
        EXPECT_EQ(static_cast<int64_t>(bytes.size()), layout.BlockLayerBytes());
        EXPECT_TRUE(
            std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
        std::fill(bytes.begin(), bytes.end(), std::byte{1});  // Its neighbours must stay zero.
      }
    }
  }
}

// Parts of blocks go to where BlockLayer() has them, and to the same place where nobody can look.
TEST(KvArenaTest, CopiesPartsOfBlocksWhereverTheyAre) {
  const KvLayout layout = {.layers = 3, .kv_heads = 1, .head_dim = 3, .dtype = DType::kBf16};
  const int64_t bytes = layout.BlockLayerBytes();
  for (const bool remote : {false, true}) {
    auto arena = remote ? testing::MakeRemoteArena(layout, 5) : KvArena::Create(layout, 5);
    ASSERT_THAT(arena, IsOk());
    EXPECT_EQ((*arena)->remote(), remote);
    std::vector<std::byte> from(static_cast<size_t>(bytes));
    for (size_t i = 0; i < from.size(); ++i) from[i] = std::byte(i + 1);
    const KvArena::Part parts[] = {
        {.layer = 2, .block = 4, .offset = bytes - 10, .bytes = 10},
        {.layer = 0, .block = 1, .offset = 7, .bytes = bytes - 10},
    };
    ASSERT_THAT((*arena)->Write(from.data(), parts), IsOk());
    std::vector<std::byte> back(from.size());
    ASSERT_THAT((*arena)->Read(parts, back.data()), IsOk());
    EXPECT_EQ(back, from);
    std::vector<std::byte> last(from.size());
    std::copy_n(from.begin(), 10, last.end() - 10);
    EXPECT_EQ(testing::ReadBlock(**arena, 2, 4), last);
    EXPECT_THAT(testing::ReadBlock(**arena, 1, 1), ::testing::Each(std::byte{0}));
    if (!remote) {
      EXPECT_TRUE(std::ranges::equal((*arena)->BlockLayerSpan(2, 4), last));
    }
  }
}

TEST(KvArenaTest, RefusesShapesThatDoNotExist) {
  const KvLayout good = {.kind = KvKind::kLatent, .layers = 1, .kv_heads = 1, .head_dim = 8};
  EXPECT_THAT(KvArena::Create(good, 1), IsOk());
  KvLayout bad = good;
  bad.kv_heads = 2;
  EXPECT_THAT(KvArena::Create(bad, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  bad = good;
  bad.head_dim = 0;
  EXPECT_THAT(KvArena::Create(bad, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(KvArena::Create(good, 0), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace lynx::kv
