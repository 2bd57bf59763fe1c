#include "common/kv/kv_shards.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::kv {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int32_t kBlocks = 3;
const KvLayout kWhole = {.layers = 2, .kv_heads = 4, .head_dim = 8, .dtype = DType::kF32};

// A node of ranks whose arenas hold [first, first + heads) of the heads of `whole`.
struct Node {
  std::vector<std::unique_ptr<KvArena>> arenas;
  absl::StatusOr<KvShards> shards = absl::InternalError("not made");

  Node(const KvLayout& whole, const std::vector<std::pair<int32_t, int32_t>>& ranks) {
    std::vector<KvShards::Shard> parts;
    for (const auto& [first, heads] : ranks) {
      KvLayout own = whole;
      own.kv_heads = heads;
      arenas.push_back(KvArena::Create(own, kBlocks).value());
      parts.push_back({arenas.back().get(), first});
    }
    shards = KvShards::Create(whole, parts);
  }
};

std::vector<std::byte> Pattern(const KvLayout& layout) {
  std::vector<std::byte> bytes(static_cast<size_t>(layout.BlockLayerBytes()));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

std::vector<std::byte> ReadWhole(const KvShards& shards, int32_t layer, BlockId block) {
  std::vector<std::span<const std::byte>> parts;
  shards.Read(layer, block, parts);
  std::vector<std::byte> bytes;
  for (const auto& part : parts) bytes.insert(bytes.end(), part.begin(), part.end());
  return bytes;
}

const std::vector<std::vector<std::pair<int32_t, int32_t>>> kWidths = {
    {{0, 4}},
    {{0, 2}, {2, 2}},
    {{0, 1}, {1, 1}, {2, 1}, {3, 1}},
    {{0, 1}, {0, 1}, {1, 1}, {1, 1}, {2, 1}, {2, 1}, {3, 1}, {3, 1}}};

TEST(KvShardsTest, ABlockIsTheSameWhateverRanksShareIt) {
  const std::vector<std::byte> pattern = Pattern(kWhole);
  for (const auto& width : kWidths) {
    SCOPED_TRACE(width.size());
    const Node node(kWhole, width);
    ASSERT_THAT(node.shards, IsOk());
    EXPECT_EQ(node.shards->layout(), kWhole);
    node.shards->Write(/*layer=*/1, /*block=*/2, 0, pattern);
    EXPECT_EQ(ReadWhole(*node.shards, 1, 2), pattern);
    // Nothing else was touched.
    const std::vector<std::byte> zeros(pattern.size());
    EXPECT_EQ(ReadWhole(*node.shards, 0, 2), zeros);
    EXPECT_EQ(ReadWhole(*node.shards, 1, 1), zeros);
  }
}

TEST(KvShardsTest, EachRankHoldsItsOwnHeads) {
  const Node one(kWhole, kWidths[0]);
  const Node replicated(kWhole, kWidths[3]);
  const std::vector<std::byte> pattern = Pattern(kWhole);
  replicated.shards->Write(0, 1, 0, pattern);
  const size_t head = pattern.size() / 8;  // K and V of four heads.
  for (size_t rank = 0; rank < 8; ++rank) {
    const auto bytes = replicated.arenas[rank]->BlockLayerSpan(0, 1);
    for (size_t half = 0; half < 2; ++half) {
      EXPECT_TRUE(
          std::equal(bytes.begin() + static_cast<std::ptrdiff_t>(half * head),
                     bytes.begin() + static_cast<std::ptrdiff_t>((half + 1) * head),
                     pattern.begin() + static_cast<std::ptrdiff_t>((half * 4 + rank / 2) * head)))
          << "rank " << rank << " half " << half;
    }
  }
}

TEST(KvShardsTest, PiecesOfABlockAreStoredWhereTheyBelong) {
  const std::vector<std::byte> pattern = Pattern(kWhole);
  for (const auto& width : kWidths) {
    SCOPED_TRACE(width.size());
    const Node node(kWhole, width);
    const std::span<const std::byte> all = pattern;
    for (size_t begin = 0; begin < all.size(); begin += 700) {
      node.shards->Write(0, 0, static_cast<int64_t>(begin),
                         all.subspan(begin, std::min<size_t>(700, all.size() - begin)));
    }
    EXPECT_EQ(ReadWhole(*node.shards, 0, 0), pattern);
  }
}

TEST(KvShardsTest, EveryRankHoldsLatents) {
  const KvLayout latents = {
      .kind = KvKind::kLatent, .layers = 2, .kv_heads = 1, .head_dim = 24, .dtype = DType::kBf16};
  const Node node(latents, {{0, 1}, {0, 1}});
  ASSERT_THAT(node.shards, IsOk());
  const std::vector<std::byte> pattern = Pattern(latents);
  node.shards->Write(1, 0, 0, pattern);
  EXPECT_EQ(ReadWhole(*node.shards, 1, 0), pattern);
  for (const auto& arena : node.arenas) {
    const auto bytes = arena->BlockLayerSpan(1, 0);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), pattern.begin(), pattern.end()));
  }
}

TEST(KvShardsTest, ArenasThatDoNotMakeUpTheWholeAreRefused) {
  EXPECT_THAT(
      Node(kWhole, {{0, 2}, {3, 1}}).shards,
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no rank has KV head 2 of 4")));
  EXPECT_THAT(Node(kWhole, {{0, 2}, {3, 2}}).shards,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the KV of rank 1 begins")));
  Node node(kWhole, {{0, 2}, {2, 2}});
  KvLayout other = kWhole;
  other.head_dim = 16;
  EXPECT_THAT(KvShards::Create(other, {{node.arenas[0].get(), 0}, {node.arenas[1].get(), 2}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("another layout")));
}

TEST(KvShardsTest, AnotherProcessMayHoldAPart) {
  KvLayout half = kWhole;
  half.kv_heads = 2;
  auto own = KvArena::Create(half, kBlocks);
  auto theirs = KvArena::CreateShared(half, kBlocks);
  ASSERT_THAT(own, IsOk());
  ASSERT_THAT(theirs, IsOk());
  auto attached = KvArena::Attach((*theirs)->handle(), half, kBlocks);
  ASSERT_THAT(attached, IsOk());
  EXPECT_THAT(KvArena::Attach((*theirs)->handle(), kWhole, 1 << 20),
              StatusIs(absl::StatusCode::kNotFound));
  const auto shards = KvShards::Create(kWhole, {{own->get(), 0}, {attached->get(), 2}});
  ASSERT_THAT(shards, IsOk());
  const std::vector<std::byte> pattern = Pattern(kWhole);
  shards->Write(1, 2, 0, pattern);
  EXPECT_EQ(ReadWhole(*shards, 1, 2), pattern);
  EXPECT_EQ((*theirs)->BlockLayerSpan(1, 2)[0], pattern[pattern.size() / 4]);
}

}  // namespace
}  // namespace lynx::kv
