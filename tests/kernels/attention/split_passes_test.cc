#include "kernels/attention/split_passes.h"

#include <algorithm>
#include <map>
#include <random>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace lynx::kernels::internal {
namespace {

using Query = std::tuple<const AttentionTile*, int64_t, int32_t>;  // Tile, KV head, query.

// Places that remember whose they are and which splits they have, in order.
class Replay {
 public:
  Replay(int64_t capacity, uint32_t seed) : places_(static_cast<size_t>(capacity)), rng_(seed) {}

  // Items in any order, then merges in any order: what the threads of a team may do.
  void Run(std::span<const PassItem> items, std::span<const PassMerge> merges) {
    ++passes_;
    for (const PassItem* item : Shuffled(items)) {
      const int32_t queries = item->tile->queries;
      int64_t place = item->sums;
      for (int32_t split = item->part.split_begin; split < item->part.split_end; ++split) {
        for (int64_t head = item->part.head_begin; head < item->part.head_end; ++head) {
          for (int32_t i = 0; i < queries; ++i) {
            const Query query(item->tile, head, i);
            item->sums < 0 ? done_[query].push_back(split) : Put(place++, query, split);
          }
        }
      }
    }
    for (const PassMerge* merge : Shuffled(merges)) Merge(*merge);
  }

  // Splits of each query, as they were added.
  const std::map<Query, std::vector<int32_t>>& done() const { return done_; }
  int passes() const { return passes_; }

 private:
  using Place = std::pair<Query, std::vector<int32_t>>;

  template <typename T>
  std::vector<const T*> Shuffled(std::span<const T> all) {
    std::vector<const T*> order;
    for (const T& one : all) order.push_back(&one);
    std::shuffle(order.begin(), order.end(), rng_);
    return order;
  }
  void Put(int64_t place, const Query& query, int32_t split) {
    places_.at(static_cast<size_t>(place)) = {query, {split}};
  }
  void Merge(const PassMerge& merge) {
    const AttentionTile& tile = *merge.tile;
    const Query query(&tile, merge.part.head, merge.part.query);
    Place sums;
    if (merge.part.split_begin > tile.first_split) {
      sums = places_.at(static_cast<size_t>(merge.into));
      EXPECT_EQ(sums.first, query) << "another's sums were carried";
    }
    int64_t place = merge.sums;
    for (int32_t split = merge.part.split_begin; split < merge.part.split_end; ++split) {
      const Place& next = places_.at(static_cast<size_t>(place));
      EXPECT_EQ(next.first, query) << "another's sums were merged";
      sums.second.insert(sums.second.end(), next.second.begin(), next.second.end());
      place += merge.part.stride;
    }
    sums.first = query;
    places_.at(static_cast<size_t>(merge.into)) = sums;
    if (merge.part.split_end == tile.first_split + tile.splits) {
      EXPECT_TRUE(done_[query].empty()) << "finished twice";
      done_[query] = sums.second;
    }
  }

  std::vector<Place> places_;
  std::mt19937 rng_;
  std::map<Query, std::vector<int32_t>> done_;
  int passes_ = 0;
};

void ExpectAllInOrder(const Replay& replay, const std::vector<AttentionTile>& tiles,
                      int64_t heads) {
  size_t queries = 0;
  for (const AttentionTile& tile : tiles) {
    queries += static_cast<size_t>(tile.queries * heads);
  }
  EXPECT_EQ(replay.done().size(), queries);
  for (const auto& [query, splits] : replay.done()) {
    const AttentionTile& tile = *std::get<0>(query);
    ASSERT_EQ(static_cast<int32_t>(splits.size()), tile.splits);
    for (int32_t i = 0; i < tile.splits; ++i) {
      ASSERT_EQ(splits[static_cast<size_t>(i)], tile.first_split + i);
    }
  }
}

TEST(SplitPassesTest, EveryQueryGetsItsSplitsInOrder) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    const auto between = [&](int least, int most) {
      return std::uniform_int_distribution<int>(least, most)(rng);
    };
    const int64_t heads = between(1, 12);
    const int32_t together = between(1, 4);
    std::vector<AttentionTile> tiles(static_cast<size_t>(between(1, 12)));
    for (AttentionTile& tile : tiles) {
      tile = {.queries = between(1, kTileQueries / together),
              .first_split = between(0, 3),
              .splits = between(1, between(0, 1) == 0 ? 60 : 4)};
    }
    const int64_t capacity = SplitPasses::kLeastCapacity + between(0, 3000);
    const int64_t threads = between(1, 8);
    Replay replay(capacity, seed);
    const auto run = [&](std::span<const PassItem> items, std::span<const PassMerge> merges) {
      replay.Run(items, merges);
    };
    SplitPasses::Lists lists;
    SplitPasses passes(capacity, threads, run, lists);
    std::vector<SplitUnit> units;
    for (const AttentionTile& tile : tiles) {
      if (between(0, 4) == 0) {
        passes.AddWhole(tile, 0, heads);
        continue;
      }
      for (int64_t head = 0; head < heads; head += together) {
        units.push_back({&tile, head, std::min(head + together, heads)});
      }
      if (between(0, 1) == 0) continue;  // The next tile takes turns with this one.
      passes.AddCut(units, between(1, 9));
      units.clear();
    }
    passes.AddCut(units, 1);
    passes.Finish();
    ExpectAllInOrder(replay, tiles, heads);
  }
}

TEST(SplitPassesTest, WhatFitsIsOnePass) {
  const std::vector<AttentionTile> tiles(3, {.queries = 16, .splits = 10});
  Replay replay(1000, 1);
  const auto run = [&](std::span<const PassItem> items, std::span<const PassMerge> merges) {
    EXPECT_EQ(items.size(), 3u * 4);
    replay.Run(items, merges);
  };
  SplitPasses::Lists lists;
  SplitPasses passes(1000, 2, run, lists);
  for (const AttentionTile& tile : tiles) {
    const SplitUnit unit{&tile, 0, 1};
    passes.AddCut({&unit, 1}, 3);
  }
  passes.Finish();
  EXPECT_EQ(replay.passes(), 1);
  ExpectAllInOrder(replay, tiles, 1);
}

}  // namespace
}  // namespace lynx::kernels::internal
