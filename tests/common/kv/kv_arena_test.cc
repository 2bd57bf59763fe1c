#include "common/kv/kv_arena.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
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
