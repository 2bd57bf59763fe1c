#include "common/model/shard_plan.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::model {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;

ModelSpec Moe(int32_t experts = 60) {
  ModelSpec spec;
  spec.vocab_size = 1001;
  spec.hidden_size = 64;
  spec.layers = 2;
  spec.query_heads = 16;
  spec.kv_heads = 4;
  spec.head_dim = 8;
  spec.feed_forward.assign(2, FeedForwardKind::kMoe);
  spec.experts = experts;
  spec.experts_per_token = 4;
  spec.expert_intermediate_size = 96;
  spec.shared_intermediate_size = 128;
  return spec;
}

std::string Name(const ParallelLayout& layout) {
  return absl::StrCat("tp ", layout.tp, " dp ", layout.dp, " ep ", layout.ep);
}

std::vector<ParallelLayout> AllLayouts(int32_t most) {
  std::vector<ParallelLayout> layouts;
  for (int32_t tp = 1; tp <= most; ++tp) {
    for (int32_t dp = 1; dp <= most; ++dp) {
      for (int32_t ep = 1; ep <= tp * dp; ++ep) layouts.push_back({tp, dp, ep});
    }
  }
  return layouts;
}

// Everything of the model is held by as many ranks as the layout says.
TEST(ShardPlanTest, RanksHoldAllOfTheModel) {
  int held = 0;
  for (const int32_t experts : {40, 60, 128}) {
    const ModelSpec spec = Moe(experts);
    for (const ParallelLayout& layout : AllLayouts(8)) {
      if (!CheckLayout(spec, layout).ok()) continue;
      SCOPED_TRACE(Name(layout));
      ++held;
      std::vector<int> query_heads(static_cast<size_t>(spec.query_heads));
      std::vector<int> kv_heads(static_cast<size_t>(spec.kv_heads));
      std::vector<int> vocabulary(static_cast<size_t>(spec.vocab_size));
      std::vector<int> shared(static_cast<size_t>(spec.shared_intermediate_size));
      std::vector<int> columns(static_cast<size_t>(spec.experts * spec.expert_intermediate_size));
      int32_t most = 0;
      int32_t fewest = spec.experts;
      const auto count = [](const ShardRange& range, std::vector<int>& holders) {
        for (int32_t i = range.begin; i < range.end; ++i) ++holders[static_cast<size_t>(i)];
      };
      for (int32_t rank = 0; rank < layout.world(); ++rank) {
        const RankShard shard = ShardOf(spec, layout, rank);
        count(shard.query_heads, query_heads);
        count(shard.kv_heads, kv_heads);
        count(shard.vocabulary, vocabulary);
        count(shard.shared_columns, shared);
        for (const int32_t e : shard.experts) {
          const int32_t first = e * spec.expert_intermediate_size;
          count({first + shard.expert_columns.begin, first + shard.expert_columns.end}, columns);
        }
        most = std::max(most, static_cast<int32_t>(shard.experts.size()));
        fewest = std::min(fewest, static_cast<int32_t>(shard.experts.size()));
        // Attention needs the KV heads of its queries, and nothing else.
        const int32_t group = spec.query_heads / spec.kv_heads;
        for (int32_t q = shard.query_heads.begin; q < shard.query_heads.end; ++q) {
          EXPECT_TRUE(q / group >= shard.kv_heads.begin && q / group < shard.kv_heads.end);
        }
        EXPECT_EQ(shard.query_heads.size() % shard.kv_heads.size(), 0);
      }
      EXPECT_THAT(query_heads, ::testing::Each(layout.dp));
      EXPECT_THAT(vocabulary, ::testing::Each(layout.dp));
      EXPECT_THAT(shared, ::testing::Each(layout.dp));
      EXPECT_THAT(columns, ::testing::Each(1));
      EXPECT_THAT(kv_heads, ::testing::Each(layout.dp * std::max(1, layout.tp / spec.kv_heads)));
      EXPECT_LE(most - fewest, 1);
    }
  }
  EXPECT_GT(held, 50);
}

TEST(ShardPlanTest, UnevenExperts) {
  const auto sizes = [](int32_t experts, int32_t ep) {
    std::vector<int32_t> held;
    const ParallelLayout layout{.tp = 1, .dp = ep, .ep = ep};
    const ModelSpec spec = Moe(experts);
    EXPECT_THAT(CheckLayout(spec, layout), IsOk());
    for (int32_t rank = 0; rank < ep; ++rank) {
      held.push_back(static_cast<int32_t>(ShardOf(spec, layout, rank).experts.size()));
    }
    return held;
  };
  EXPECT_THAT(sizes(60, 8), ::testing::ElementsAre(7, 8, 7, 8, 7, 8, 7, 8));
  EXPECT_THAT(sizes(40, 3), ::testing::ElementsAre(13, 13, 14));
}

TEST(ShardPlanTest, NamesWhatCannotBeSplit) {
  ModelSpec dense = Moe();
  dense.feed_forward.assign(2, FeedForwardKind::kDense);
  dense.experts = 0;
  dense.dense_intermediate_size = 100;
  ModelSpec odd_heads = Moe();
  odd_heads.query_heads = 18;
  odd_heads.kv_heads = 6;
  for (const auto& [spec, layout, words] :
       std::vector<std::tuple<ModelSpec, ParallelLayout, std::string>>{
           {Moe(), {0, 1, 1}, "tp 0 is not in [1, 1024]"},
           {Moe(), {1, -1, 1}, "dp -1"},
           {Moe(), {1, 1, 2000}, "ep 2000"},
           {Moe(), {512, 4, 1}, "more than 1024 ranks"},
           {Moe(), {2, 2, 3}, "ep 3 does not divide the 4 ranks of tp 2 times dp 2"},
           {Moe(), {3, 1, 1}, "16 query heads cannot be split over tp 3"},
           {odd_heads, {9, 1, 1}, "6 KV heads can neither be split over tp 9"},
           {Moe(2), {1, 4, 4}, "2 experts cannot be split over ep 4"},
           {dense, {1, 2, 2}, "ep 2, but the model has no experts"},
           {dense, {8, 1, 1}, "the dense feed-forward's width 100 cannot be split over tp 8"},
           {Moe(), {1, 7, 1}, "an expert's width 96 cannot be split over ranks 7"}}) {
    EXPECT_THAT(CheckLayout(spec, layout),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)))
        << Name(layout);
  }
}

TEST(ShardPlanTest, LatentsAreHeldByAll) {
  ModelSpec spec = Moe();
  spec.kv_heads = 1;
  spec.kv_lora_rank = 32;
  const ParallelLayout layout{.tp = 8, .dp = 1, .ep = 8};
  ASSERT_THAT(CheckLayout(spec, layout), IsOk());
  for (int32_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(ShardOf(spec, layout, rank).kv_heads, (ShardRange{0, 1}));
  }
}

}  // namespace
}  // namespace lynx::model
