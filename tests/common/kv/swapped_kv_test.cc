#include "common/kv/swapped_kv.h"

#include <cstddef>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "common/kv/block_table.h"
#include "gtest/gtest.h"
#include "tests/support/fake_remote_memory.h"
#include "tests/support/status_matchers.h"

namespace lynx::kv {
namespace {

using ::lynx::testing::FakeRemoteMemory;
using ::lynx::testing::IsOk;
using ::lynx::testing::MakeRemoteArena;
using ::lynx::testing::ReadBlock;
using ::lynx::testing::StatusIs;
using ::lynx::testing::WriteBlock;

// What rows from `position` on read of earlier tokens.
std::vector<std::byte> Read(KvArena& arena, const BlockTable& table, int32_t position) {
  std::vector<std::byte> bytes;
  const KvGroups& groups = arena.layout().groups;
  for (int32_t layer = 0; layer < arena.layout().layers; ++layer) {
    const int32_t group = groups.group_of(layer);
    for (int64_t i = groups.FirstBlock(group, position); i < BlocksFor(position); ++i) {
      const auto part = ReadBlock(arena, layer, table.group(group)[static_cast<size_t>(i)]);
      bytes.insert(bytes.end(), part.begin(), part.end());
    }
  }
  return bytes;
}

TEST(SwappedKvTest, ComesBackBitForBitInOtherBlocks) {
  const std::vector<Reach> windows = {{.window = 20}, {}, {.window = 20}, {.chunk = 48}};
  for (const auto& [reaches, remote] :
       {std::pair(std::vector<Reach>(), false), {windows, false}, {windows, true}}) {
    KvLayout layout{.layers = 4, .kv_heads = 2, .head_dim = 8, .dtype = DType::kF32};
    if (!reaches.empty()) layout.groups = KvGroups(reaches);
    auto arena = remote ? MakeRemoteArena(layout, 64) : KvArena::Create(layout, 64);
    ASSERT_THAT(arena, IsOk());
    BlockPool pool(64, layout.groups);
    std::mt19937 rng(1);
    std::vector<std::byte> bytes(static_cast<size_t>(layout.BlockLayerBytes()));
    const auto scribble = [&] {
      for (int32_t layer = 0; layer < layout.layers; ++layer) {
        for (BlockId block = 0; block < 64; ++block) {
          for (std::byte& byte : bytes) byte = std::byte(rng());
          WriteBlock(**arena, layer, block, bytes);
        }
      }
    };
    for (const int32_t position : {1, 15, 16, 17, 60, 100}) {
      SCOPED_TRACE(::testing::Message() << position << " of " << reaches.size());
      scribble();
      auto table = BlockTable::Acquire(pool, position, position + 1);
      ASSERT_THAT(table, IsOk());
      const std::vector<std::byte> want = Read(**arena, *table, position);
      const auto copy = SwappedKv::Copy(**arena, table->blocks(), position);
      ASSERT_THAT(copy, IsOk());
      EXPECT_EQ(copy->position(), position);
      EXPECT_EQ(copy->bytes(), static_cast<int64_t>(want.size()));
      EXPECT_EQ(copy->bytes(), SwappedKv::BytesOf(layout, position));
      table->Reset();
      scribble();
      auto other = BlockTable::Acquire(pool, 0, 5);  // So that others come next.
      ASSERT_THAT(other, IsOk());
      auto back = BlockTable::Acquire(pool, position, position + 40);
      ASSERT_THAT(back, IsOk());
      EXPECT_THAT(copy->Restore(**arena, back->blocks()), IsOk());
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
  const auto copy = SwappedKv::Copy(**arena, table->blocks(), 40);
  ASSERT_THAT(copy, IsOk());
  fill(*table, 3, 2);
  EXPECT_THAT(copy->Restore(**arena, table->blocks(), /*first_block=*/2), IsOk());
  for (int32_t layer = 0; layer < layout.layers; ++layer) {
    const auto byte = [&](size_t block) {
      return (*arena)->BlockLayerSpan(layer, table->group(0)[block])[0];
    };
    EXPECT_EQ(byte(0), std::byte(2));
    EXPECT_EQ(byte(1), std::byte(2));
    EXPECT_EQ(byte(2), std::byte(1));
  }
}

TEST(SwappedKvTest, SaysThatItCouldNotCopy) {
  const KvLayout layout{.layers = 2, .kv_heads = 1, .head_dim = 8, .dtype = DType::kF32};
  FakeRemoteMemory* memory = nullptr;
  auto arena = MakeRemoteArena(layout, 16, &memory);
  ASSERT_THAT(arena, IsOk());
  const std::vector<BlockId> blocks = {0, 1, 2};
  const auto copy = SwappedKv::Copy(**arena, blocks, 40);
  ASSERT_THAT(copy, IsOk());
  memory->read_status = memory->write_status = absl::InternalError("lost");
  EXPECT_THAT(SwappedKv::Copy(**arena, blocks, 40).status(), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(copy->Restore(**arena, blocks), StatusIs(absl::StatusCode::kInternal));
}

}  // namespace
}  // namespace lynx::kv
