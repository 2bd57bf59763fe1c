#include "common/kv/kv_groups.h"

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "common/kv/kv_layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::kv {
namespace {

constexpr Reach kAll;
constexpr Reach kWindow = {.window = 128};
constexpr Reach kChunk = {.chunk = 40};

TEST(KvGroupsTest, LayersThatKeepAllAreOneGroupWhicheverWayItIsSaid) {
  const std::vector<Reach> layers(7, kAll);
  EXPECT_EQ(KvGroups(layers), KvGroups());
  EXPECT_EQ(KvGroups().count(), 1);
  EXPECT_EQ(KvGroups().group_of(5), 0);
  EXPECT_EQ(KvGroups().slot_of(5), 5);
  EXPECT_EQ(KvGroups().BlocksHeld(1000, 80), 80);
  EXPECT_EQ(KvGroups().MostBlocks(1000, 16), 63);
  EXPECT_EQ(KvGroups().MostTokens(63), 1008);
}

TEST(KvGroupsTest, GroupsAreOfOneReachAndOfOneSizeAndHaveEveryLayerOnce) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    std::vector<Reach> layers(1 + rng() % 40);
    for (Reach& layer : layers) layer = std::array{kAll, kWindow, kChunk}[rng() % 3];
    const KvGroups groups(layers);
    std::map<int32_t, std::set<int32_t>> slots;
    for (int32_t layer = 0; layer < static_cast<int32_t>(layers.size()); ++layer) {
      const int32_t group = groups.group_of(layer);
      EXPECT_EQ(groups.reach(group), layers[static_cast<size_t>(layer)]);
      EXPECT_TRUE(slots[group].insert(groups.slot_of(layer)).second);
    }
    ASSERT_EQ(static_cast<int32_t>(slots.size()), groups.count());
    const auto size = static_cast<int32_t>(layers.size()) / groups.count();
    for (const auto& [group, of_group] : slots) {
      EXPECT_EQ(static_cast<int32_t>(of_group.size()), size);
      EXPECT_EQ(*of_group.rbegin(), size - 1);
    }
  }
}

TEST(KvGroupsTest, TheFewestGroupsAreMade) {
  std::vector<Reach> layers;
  for (int i = 0; i < 48; ++i) layers.push_back(i % 4 == 3 ? kAll : kChunk);
  EXPECT_EQ(KvGroups(layers).count(), 4);
  layers.assign(24, kWindow);
  EXPECT_EQ(KvGroups(layers).count(), 1);
  for (size_t i = 0; i < 24; i += 2) layers[i] = kAll;
  EXPECT_EQ(KvGroups(layers).count(), 2);
}

// What a row at `position` reads and writes in one group, block by block.
int64_t BlocksTouched(const Reach& reach, int32_t begin, int32_t end) {
  std::set<int32_t> blocks;
  for (int32_t position = begin; position < end; ++position) {
    for (int32_t t = reach.FirstFor(position); t <= position; ++t) blocks.insert(t / kBlockTokens);
  }
  return static_cast<int64_t>(blocks.size());
}

TEST(KvGroupsTest, AtEveryPositionTheBlocksHeldAreThoseThatRowsTouch) {
  for (const Reach& reach :
       {Reach{.window = 1}, Reach{.window = 16}, Reach{.window = 33}, Reach{.chunk = 16},
        Reach{.chunk = 24}, Reach{.window = 20, .chunk = 50}}) {
    SCOPED_TRACE(::testing::Message() << "window " << reach.window << " chunk " << reach.chunk);
    const KvGroups groups(std::vector<Reach>{kAll, reach});
    int64_t most[3] = {};
    constexpr int32_t kSteps[3] = {1, 7, 40};
    for (int32_t begin = 0; begin < 150; ++begin) {
      for (int i = 0; i < 3; ++i) {
        const int32_t end = begin + kSteps[i];
        const int64_t touched = BlocksTouched(reach, begin, end);
        EXPECT_EQ(groups.BlocksHeld(begin, BlocksFor(end)), BlocksFor(end) + touched)
            << begin << " to " << end;
        most[i] = std::max(most[i], touched);
      }
    }
    for (int i = 0; i < 3; ++i) {
      const int64_t bound = groups.MostBlocksOf(1, kSteps[i]);
      EXPECT_GE(bound, most[i]) << kSteps[i];
      EXPECT_LE(bound, most[i] + (reach.chunk > 0 ? 1 : 0)) << kSteps[i];
      EXPECT_EQ(groups.MostBlocks(10000, kSteps[i]), 625 + bound);
      EXPECT_EQ(groups.MostBlocks(5, kSteps[i]), 2) << "no more than there are tokens";
    }
  }
}

TEST(KvGroupsTest, AModelOfHalfWindowsKeepsHalf) {
  KvLayout layout{
      .layers = 24, .kv_heads = 8, .head_dim = 64, .dtype = DType::kBf16};  // gpt-oss-20b.
  const auto bytes_per_token = [&](int32_t tokens) {
    return layout.groups.BlocksHeld(tokens - 1, BlocksFor(tokens)) * layout.BlockBytes() / tokens;
  };
  EXPECT_EQ(bytes_per_token(8192), 49152);
  EXPECT_EQ(bytes_per_token(131072), 49152);
  std::vector<Reach> layers(24);
  for (size_t i = 0; i < layers.size(); i += 2) layers[i] = kWindow;
  layout.groups = KvGroups(layers);
  EXPECT_EQ(bytes_per_token(8192), 24960);
  EXPECT_EQ(bytes_per_token(131072), 24600);
}

TEST(KvGroupsTest, WindowsAloneHoldAnyNumberOfTokens) {
  EXPECT_EQ(KvGroups(std::vector<Reach>{kWindow, kAll}).MostTokens(100), 1600);
  EXPECT_GT(KvGroups(std::vector<Reach>{kWindow}).MostTokens(10), int64_t{1} << 40);
}

}  // namespace
}  // namespace lynx::kv
