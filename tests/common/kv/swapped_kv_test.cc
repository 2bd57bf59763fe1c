#include "common/kv/swapped_kv.h"

#include <cstddef>
#include <memory>
#include <random>
#include <utility>
#include <vector>

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
      const SwappedKv copy(**arena, *table, position);
      EXPECT_EQ(copy.position(), position);
      EXPECT_EQ(copy.bytes(), static_cast<int64_t>(want.size()));
      EXPECT_EQ(copy.bytes(), SwappedKv::BytesOf(layout, position));
      table->Reset();
      scribble();
      auto other = BlockTable::Acquire(pool, 0, 5);  // So that others come next.
      ASSERT_THAT(other, IsOk());
      auto back = BlockTable::Acquire(pool, position, position + 40);
      ASSERT_THAT(back, IsOk());
      copy.Restore(**arena, *back);
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
  const SwappedKv copy(**arena, *table, 40);
  fill(*table, 3, 2);
  copy.Restore(**arena, *table, /*first_block=*/2);
  for (int32_t layer = 0; layer < layout.layers; ++layer) {
    const auto byte = [&](size_t block) {
      return (*arena)->BlockLayerSpan(layer, table->group(0)[block])[0];
    };
    EXPECT_EQ(byte(0), std::byte(2));
    EXPECT_EQ(byte(1), std::byte(2));
    EXPECT_EQ(byte(2), std::byte(1));
  }
}

TEST(SwappedKvTest, TakesTheHeadsOfAllRanks) {
  const KvLayout whole{.layers = 2, .kv_heads = 4, .head_dim = 8, .dtype = DType::kF32};
  KvLayout half = whole;
  half.kv_heads = 2;
  auto first = KvArena::Create(half, 8);
  auto second = KvArena::Create(half, 8);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  const auto kv = KvShards::Create(whole, {{first->get(), 0}, {second->get(), 2}});
  ASSERT_THAT(kv, IsOk());
  BlockPool pool(8, whole.groups);
  auto table = BlockTable::Acquire(pool, 20, 21);
  ASSERT_THAT(table, IsOk());
  std::vector<std::byte> want[2];
  for (size_t rank = 0; rank < 2; ++rank) {
    KvArena& arena = rank == 0 ? **first : **second;
    for (int32_t layer = 0; layer < whole.layers; ++layer) {
      for (BlockId block = 0; block < 8; ++block) {
        for (std::byte& byte : arena.BlockLayerSpan(layer, block)) {
          byte = std::byte(layer * 16 + block + static_cast<int32_t>(rank) * 128);
        }
      }
    }
    want[rank] = Read(arena, *table, 20);
  }
  const SwappedKv copy(*kv, *table, 20);
  EXPECT_EQ(copy.bytes(), static_cast<int64_t>(want[0].size() + want[1].size()));
  auto other = BlockTable::Acquire(pool, 20, 21);
  ASSERT_THAT(other, IsOk());
  ASSERT_NE(Read(**first, *other, 20), want[0]);
  copy.Restore(*kv, *other);
  EXPECT_EQ(Read(**first, *other, 20), want[0]);
  EXPECT_EQ(Read(**second, *other, 20), want[1]);
}

}  // namespace
}  // namespace lynx::kv
