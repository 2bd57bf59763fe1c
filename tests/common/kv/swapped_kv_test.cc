#include "common/kv/swapped_kv.h"

#include <cstddef>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "common/kv/block_table.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::kv {
namespace {

using ::lynx::testing::IsOk;

// What rows from `position` on read of earlier tokens.
std::vector<std::byte> Read(KvArena& arena, const BlockTable& table, int32_t position) {
  std::vector<std::byte> bytes;
  const KvGroups& groups = arena.layout().groups;
  for (int32_t layer = 0; layer < arena.layout().layers; ++layer) {
    const int32_t group = groups.group_of(layer);
    for (int64_t i = groups.FirstBlock(group, position); i < BlocksFor(position); ++i) {
      const auto part = arena.BlockLayerSpan(layer, table.group(group)[static_cast<size_t>(i)]);
      bytes.insert(bytes.end(), part.begin(), part.end());
    }
  }
  return bytes;
}

TEST(SwappedKvTest, ComesBackBitForBitInOtherBlocks) {
  const std::vector<Reach> kinds[] = {{}, {{.window = 20}, {}, {.window = 20}, {.chunk = 48}}};
  for (const std::vector<Reach>& reaches : kinds) {
    KvLayout layout{.layers = 4, .kv_heads = 2, .head_dim = 8, .dtype = DType::kF32};
    if (!reaches.empty()) layout.groups = KvGroups(reaches);
    auto arena = KvArena::Create(layout, 64);
    ASSERT_THAT(arena, IsOk());
    BlockPool pool(64, layout.groups);
    std::mt19937 rng(1);
    const auto scribble = [&] {
      for (int32_t layer = 0; layer < layout.layers; ++layer) {
        for (BlockId block = 0; block < 64; ++block) {
          for (std::byte& byte : (*arena)->BlockLayerSpan(layer, block)) byte = std::byte(rng());
        }
      }
    };
    for (const int32_t position : {1, 15, 16, 17, 60, 100}) {
      SCOPED_TRACE(::testing::Message() << position << " of " << reaches.size());
      scribble();
      auto table = BlockTable::Acquire(pool, position, position + 1);
      ASSERT_THAT(table, IsOk());
      const std::vector<std::byte> want = Read(**arena, *table, position);
      const SwappedKv copy(**arena, table->blocks(), position);
      EXPECT_EQ(copy.position(), position);
      EXPECT_EQ(copy.bytes(), static_cast<int64_t>(want.size()));
      EXPECT_EQ(copy.bytes(), SwappedKv::BytesOf(layout, position));
      table->Reset();
      scribble();
      auto other = BlockTable::Acquire(pool, 0, 5);  // So that others come next.
      ASSERT_THAT(other, IsOk());
      auto back = BlockTable::Acquire(pool, position, position + 40);
      ASSERT_THAT(back, IsOk());
      copy.Restore(**arena, back->blocks());
      EXPECT_EQ(Read(**arena, *back, position), want);
    }
    EXPECT_EQ(pool.free_blocks(), 64);
  }
}

TEST(SwappedKvTest, BlocksThatOthersReadAreNotWritten) {
  const KvLayout layout{.layers = 2, .kv_heads = 1, .head_dim = 8, .dtype = DType::kF32};
  auto arena = KvArena::Create(layout, 16);
  ASSERT_THAT(arena, IsOk());
  BlockPool pool(16, layout.groups);
  const auto fill = [&](const BlockTable& table, int32_t end, int value) {
    for (int32_t layer = 0; layer < layout.layers; ++layer) {
      for (const BlockId block : table.group(0).first(static_cast<size_t>(end))) {
        for (std::byte& byte : (*arena)->BlockLayerSpan(layer, block)) byte = std::byte(value);
      }
    }
  };
  auto table = BlockTable::Acquire(pool, 0, 40);
  ASSERT_THAT(table, IsOk());
  fill(*table, 3, 1);
  const SwappedKv copy(**arena, table->blocks(), 40);
  fill(*table, 3, 2);
  copy.Restore(**arena, table->blocks(), /*first_block=*/2);
  for (int32_t layer = 0; layer < layout.layers; ++layer) {
    const auto byte = [&](size_t block) {
      return (*arena)->BlockLayerSpan(layer, table->group(0)[block])[0];
    };
    EXPECT_EQ(byte(0), std::byte(2));
    EXPECT_EQ(byte(1), std::byte(2));
    EXPECT_EQ(byte(2), std::byte(1));
  }
}

}  // namespace
}  // namespace lynx::kv
