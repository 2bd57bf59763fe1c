#include "common/node/rank_processes.h"

#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::node {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int32_t> FirstCpus(int32_t count) {
  std::vector<int32_t> cpus(static_cast<size_t>(count));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

TEST(DealCpusTest, PinnedCpusAreSharedOutNoneTwice) {
  const std::vector<int32_t> pinned = {2, 3, 5, 7, 11, 13, 17};
  auto ranks = DealCpus(3, 0, pinned, FirstCpus(32), 32);
  ASSERT_THAT(ranks, IsOk());
  EXPECT_THAT((*ranks)[0].cpus, ElementsAre(2, 3));
  EXPECT_THAT((*ranks)[1].cpus, ElementsAre(5, 7));
  EXPECT_THAT((*ranks)[2].cpus, ElementsAre(11, 13));
  EXPECT_EQ((*ranks)[2].threads, 0);
  EXPECT_THAT(
      DealCpus(4, 2, pinned, FirstCpus(32), 32),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("7 CPUs for 4 ranks of 2 threads")));
}

TEST(DealCpusTest, RanksGetCoresOfTheirOwnWhereThereAreEnough) {
  auto ranks = DealCpus(2, 0, {}, FirstCpus(8), 8);
  ASSERT_THAT(ranks, IsOk());
  EXPECT_THAT((*ranks)[0].cpus, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT((*ranks)[1].cpus, ElementsAre(4, 5, 6, 7));
  ranks = DealCpus(2, 3, {}, FirstCpus(8), 8);
  EXPECT_THAT((*ranks)[1].cpus, ElementsAre(3, 4, 5));
  EXPECT_EQ((*ranks)[1].threads, 3);
}

TEST(DealCpusTest, OtherwiseTheyShareTheThreads) {
  for (const auto& [cpus, usable] : {std::pair{2, 2}, std::pair{64, 3}}) {
    auto ranks = DealCpus(2, 0, {}, FirstCpus(cpus), usable);
    ASSERT_THAT(ranks, IsOk());
    for (const RankCpus& rank : *ranks) {
      EXPECT_EQ(rank.threads, 1);
      EXPECT_THAT(rank.cpus, IsEmpty());
    }
  }
  EXPECT_EQ((*DealCpus(4, 0, {}, FirstCpus(2), 2))[3].threads, 1);
  EXPECT_EQ((*DealCpus(2, 5, {}, FirstCpus(8), 8))[1].threads, 5);
}

}  // namespace
}  // namespace lynx::node
