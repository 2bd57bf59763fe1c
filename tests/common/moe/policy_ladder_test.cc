#include "common/moe/policy_ladder.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::moe {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Ladder(const char* from, const char* to, int32_t rungs) {
  const auto ladder = MakePolicyLadder(*ParsePolicy(from), *ParsePolicy(to), rungs);
  EXPECT_THAT(ladder, IsOk());
  std::vector<std::string> texts;
  if (ladder.ok()) {
    for (const Policy& policy : *ladder) texts.push_back(ToString(policy));
  }
  return texts;
}

TEST(PolicyLadderTest, GoesFromExactThroughTheGentlestToTheHarshest) {
  EXPECT_THAT(Ladder("budget:coverage=0.75,floor=1", "budget:coverage=0.25,floor=1", 3),
              ElementsAre("exact", "budget:coverage=0.75,floor=1", "budget:coverage=0.5,floor=1",
                          "budget:coverage=0.25,floor=1"));
}

TEST(PolicyLadderTest, StepsWhatDiffersAndKeepsTheRest) {
  EXPECT_THAT(Ladder("lynx:alpha=3,beta=3,floor=1,self_scaled=true",
                     "lynx:alpha=6,beta=3,floor=1,self_scaled=true", 3),
              ElementsAre("exact", "lynx:alpha=3,beta=3,floor=1,self_scaled=true",
                          "lynx:alpha=4.5,beta=3,floor=1,self_scaled=true",
                          "lynx:alpha=6,beta=3,floor=1,self_scaled=true"));
}

TEST(PolicyLadderTest, RoundsCountsAndDropsEqualRungs) {
  EXPECT_THAT(Ladder("oea:k0=6", "oea:k0=4", 5),
              ElementsAre("exact", "oea:k0=6", "oea:k0=5", "oea:k0=4"));
  EXPECT_THAT(Ladder("lynx:alpha=3,beta=8,floor=1", "lynx:alpha=3,beta=2,floor=1", 3),
              ElementsAre("exact", "lynx:alpha=3,beta=8,floor=1", "lynx:alpha=3,beta=5,floor=1",
                          "lynx:alpha=3,beta=2,floor=1"));
  EXPECT_THAT(Ladder("oea:k0=4", "oea:k0=4", 8), ElementsAre("exact", "oea:k0=4"));
  EXPECT_THAT(Ladder("oea:k0=6", "oea:k0=4", 1), ElementsAre("exact", "oea:k0=4"));
}

TEST(PolicyLadderTest, RefusesPoliciesWithNothingBetweenThem) {
  const auto refused = [](const char* from, const char* to, const char* why) {
    EXPECT_THAT(MakePolicyLadder(*ParsePolicy(from), *ParsePolicy(to), 4),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refused("oea:k0=4", "budget:coverage=0.5", "one kind");
  refused("exact", "exact", "lossy");
  refused("auto", "auto", "lossy");
  refused("budget:coverage=0.5", "budget:fraction=0.5", "between their fraction");
  refused("lynx:alpha=3,beta=none", "lynx:alpha=3,beta=2", "between their beta");
}

}  // namespace
}  // namespace lynx::moe
