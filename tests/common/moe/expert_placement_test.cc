#include "common/moe/expert_placement.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::moe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> HeldBy(const ExpertPlacement& placement) {
  std::vector<int32_t> held(static_cast<size_t>(placement.ranks));
  for (const std::vector<int32_t>& ranks : placement.ranks_of) {
    for (const int32_t rank : ranks) ++held[static_cast<size_t>(rank)];
  }
  return held;
}

// The cost of the fullest rank, copies of an expert sharing its cost.
double Most(const ExpertPlacement& placement, const std::vector<double>& cost) {
  std::vector<double> sum(static_cast<size_t>(placement.ranks));
  for (size_t e = 0; e < cost.size(); ++e) {
    for (const int32_t rank : placement.ranks_of[e]) {
      sum[static_cast<size_t>(rank)] += cost[e] / static_cast<double>(placement.ranks_of[e].size());
    }
  }
  return *std::max_element(sum.begin(), sum.end());
}

TEST(CheckPlacementShapeTest, NamesTheSizesThatDoNotFit) {
  EXPECT_TRUE(CheckPlacementShape({.experts = 64, .ranks = 8, .slots = 8}).ok());
  EXPECT_TRUE(CheckPlacementShape({.experts = 10, .ranks = 4, .slots = 3, .hosts = 2}).ok());
  const auto message = [](const PlacementShape& shape) {
    const absl::Status status = CheckPlacementShape(shape);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message({.experts = 0, .ranks = 1, .slots = 1}), HasSubstr("0 experts"));
  EXPECT_THAT(message({.experts = 64, .ranks = 8, .slots = 7}), HasSubstr("7 slots"));
  EXPECT_THAT(message({.experts = 64, .ranks = 8, .slots = 8, .hosts = 3}), HasSubstr("3 hosts"));
  EXPECT_THAT(message({.experts = 64, .ranks = 8, .slots = 8, .groups = 7}), HasSubstr("7 equal"));
  // Three groups on two hosts: one host gets two.
  EXPECT_THAT(message({.experts = 12, .ranks = 4, .slots = 3, .hosts = 2, .groups = 3}),
              HasSubstr("up to 8 of 12"));
  EXPECT_TRUE(
      CheckPlacementShape({.experts = 12, .ranks = 4, .slots = 4, .hosts = 2, .groups = 3}).ok());
}

TEST(PlaceEvenlyTest, EachRankHasNeighboursWithinOneOfEqual) {
  const ExpertPlacement placement = PlaceEvenly(7, 3);
  EXPECT_THAT(HeldBy(placement), ElementsAre(2, 2, 3));
  EXPECT_TRUE(std::is_sorted(placement.ranks_of.begin(), placement.ranks_of.end()));
}

TEST(PlaceByCostTest, HeavyExpertsAreApartAndTheHeaviestHaveCopies) {
  // 8 and 7 apart, and each with light company.
  const std::vector<double> cost = {8, 7, 3, 2};
  const ExpertPlacement plain = PlaceByCost(cost, {.experts = 4, .ranks = 2, .slots = 2});
  EXPECT_THAT(plain.ranks_of,
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(1), ElementsAre(0)));
  const ExpertPlacement spare = PlaceByCost(cost, {.experts = 4, .ranks = 2, .slots = 3});
  EXPECT_THAT(spare.ranks_of[0], ElementsAre(0, 1));
  EXPECT_THAT(spare.ranks_of[1], ElementsAre(0, 1));
  EXPECT_THAT(HeldBy(spare), ElementsAre(3, 3));
}

TEST(PlaceByCostTest, NoRankHoldsAnExpertTwice) {
  const ExpertPlacement placement =
      PlaceByCost(std::vector<double>{9, 1}, {.experts = 2, .ranks = 2, .slots = 5});
  EXPECT_THAT(placement.ranks_of, ElementsAre(ElementsAre(0, 1), ElementsAre(0, 1)));
}

TEST(PlaceByCostTest, GroupsStayWholeOnAHost) {
  // By cost alone groups 0 and 1 are apart.
  const std::vector<double> cost = {9, 9, 8, 8, 1, 1, 1, 1};
  const ExpertPlacement placement =
      PlaceByCost(cost, {.experts = 8, .ranks = 4, .slots = 3, .hosts = 2, .groups = 4});
  const auto host_of = [&](size_t e) { return placement.ranks_of[e].front() / 2; };
  for (size_t e = 0; e < 8; ++e) {
    for (const int32_t rank : placement.ranks_of[e]) EXPECT_EQ(rank / 2, host_of(e)) << e;
    EXPECT_EQ(host_of(e), host_of(e / 2 * 2)) << e;
  }
  EXPECT_NE(host_of(0), host_of(2));
  EXPECT_THAT(HeldBy(placement), ElementsAre(3, 3, 3, 3));
}

TEST(PlaceByCostTest, WhateverTheCostsEveryExpertIsHeldAndNoRankHasTooMany) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto draw = [&](int low, int high) {
      return low + static_cast<int32_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    PlacementShape shape = {.ranks = 1, .slots = 1, .hosts = draw(1, 3), .groups = draw(1, 4)};
    shape.experts = shape.groups * draw(1, 12);
    shape.ranks = shape.hosts * draw(1, 4);
    while (!CheckPlacementShape(shape).ok()) ++shape.slots;
    shape.slots += draw(0, 3);
    std::vector<double> cost(static_cast<size_t>(shape.experts));
    for (double& c : cost) c = draw(0, 3) == 0 ? 0 : std::exp(draw(0, 60) / 10.0);
    const ExpertPlacement placement = PlaceByCost(cost, shape);
    ASSERT_EQ(placement.experts(), shape.experts);
    for (const std::vector<int32_t>& ranks : placement.ranks_of) {
      ASSERT_FALSE(ranks.empty());
      EXPECT_TRUE(std::ranges::is_sorted(ranks));
      EXPECT_EQ(std::ranges::adjacent_find(ranks), ranks.end());
      EXPECT_EQ(ranks.front() / (shape.ranks / shape.hosts),
                ranks.back() / (shape.ranks / shape.hosts));
    }
    for (const int32_t held : HeldBy(placement)) EXPECT_LE(held, shape.slots);
  }
}

TEST(PlaceByCostTest, SkewedCostsEndMoreEvenThanByNumber) {
  std::mt19937_64 random(5);
  std::vector<double> cost(64);
  for (double& c : cost) c = std::exp(static_cast<double>(random() % 300) / 100);
  const double mean = std::accumulate(cost.begin(), cost.end(), 0.0) / 8;
  const auto most = [&](int32_t slots) {
    return Most(PlaceByCost(cost, {.experts = 64, .ranks = 8, .slots = slots}), cost) / mean;
  };
  EXPECT_GT(Most(PlaceEvenly(64, 8), cost) / mean, 1.2);
  EXPECT_LT(most(8), 1.05);
  EXPECT_LT(most(10), 1.02);
}

TEST(ActivityCostTest, IsTheChanceThatAStepNeedsTheExpert) {
  const std::vector<int64_t> counts = {0, 10, 100};
  const std::vector<double> cost = ActivityCost(counts, 100, 2);
  EXPECT_DOUBLE_EQ(cost[0], 0);
  EXPECT_DOUBLE_EQ(cost[1], 0.19);
  EXPECT_DOUBLE_EQ(cost[2], 1);
  EXPECT_THAT(ActivityCost(counts, 0, 2), ElementsAre(0, 0, 0));
}

// The least that the fullest rank can have, by trying every choice.
int32_t LeastMost(const ExpertPlacement& placement, const std::vector<int32_t>& active, size_t from,
                  std::vector<int32_t>& load) {
  if (from == active.size()) return *std::ranges::max_element(load);
  int32_t least = static_cast<int32_t>(active.size());
  for (const int32_t rank : placement.ranks_of[static_cast<size_t>(active[from])]) {
    ++load[static_cast<size_t>(rank)];
    least = std::min(least, LeastMost(placement, active, from + 1, load));
    --load[static_cast<size_t>(rank)];
  }
  return least;
}

TEST(ReplicaChooserTest, NoChoiceHasAFullestRankWithFewer) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    ExpertPlacement placement{.ranks = 1 + static_cast<int32_t>(random() % 5)};
    std::vector<int32_t> active;
    for (int32_t e = 0; e < 9; ++e) {
      std::vector<int32_t>& ranks = placement.ranks_of.emplace_back();
      for (int32_t r = 0; r < placement.ranks; ++r) {
        if (random() % 3 == 0) ranks.push_back(r);
      }
      if (ranks.empty()) ranks = {0};
      if (random() % 4 != 0) active.push_back(e);
    }
    ReplicaChooser chooser(9, 5);
    const std::span<const int32_t> chosen = chooser.Choose(placement, active);
    ASSERT_EQ(chosen.size(), active.size());
    std::vector<int32_t> load(static_cast<size_t>(placement.ranks));
    for (size_t i = 0; i < active.size(); ++i) {
      const std::vector<int32_t>& ranks = placement.ranks_of[static_cast<size_t>(active[i])];
      EXPECT_NE(std::ranges::find(ranks, chosen[i]), ranks.end());
      ++load[static_cast<size_t>(chosen[i])];
    }
    EXPECT_EQ(chooser.most(), *std::ranges::max_element(load));
    std::vector<int32_t> zero(load.size());
    EXPECT_EQ(chooser.most(), LeastMost(placement, active, 0, zero));
    // One by one they fit exactly where a choice for all of them does.
    const int32_t least = chooser.most();
    for (const int32_t limit : {least - 1, least}) {
      chooser.Start(placement);
      std::vector<int32_t> fit;
      for (const int32_t expert : active) {
        std::vector<int32_t> with = fit;
        with.push_back(expert);
        const bool fits = LeastMost(placement, with, 0, zero) <= limit;
        ASSERT_EQ(chooser.Add(expert, limit), fits) << "expert " << expert << ", limit " << limit;
        if (fits) fit = std::move(with);
        EXPECT_LE(chooser.most(), std::max(0, limit));
      }
    }
  }
}

TEST(ReplicaChooserTest, HandsOnThroughRanksThatAreFullThemselves) {
  // Greedy, the last two experts of rank 0 have no better place; expert 0 could go to rank 1, and
  // for that expert 1 from there to rank 2.
  const ExpertPlacement placement{.ranks = 3,
                                  .ranks_of = {{0, 1}, {1, 2}, {0, 1}, {0}, {0}, {1}, {1}}};
  ReplicaChooser chooser(7, 3);
  chooser.Choose(placement, std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6});
  EXPECT_EQ(chooser.most(), 3);
  chooser.Choose(placement, {});
  EXPECT_EQ(chooser.most(), 0);
}

}  // namespace
}  // namespace lynx::moe
