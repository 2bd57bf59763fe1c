#include "common/moe/policy.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::moe {
namespace {

using ::testing::HasSubstr;

TEST(PolicyTest, TextReadsBackAsTheSamePolicy) {
  for (const char* text : {
           "exact",
           "auto",
           "prune:k0=4",
           "vote:M=12,floor=1",
           "lynx_compat:alpha=3,beta=4",
           "lynx:alpha=0.7,beta=1,floor=0",
           "lynx:alpha=3,beta=none,floor=1",
           "lynx:alpha=1e-06,beta=0,floor=2,self_scaled=true",
           "lynx",
           "lynx:floor=2",
           "lynx:self_scaled=true",
           "lynx_compat",
           "oea",
           "oea:k0=3",
           "budget:M=20,floor=1",
           "budget:fraction=0.5,floor=0",
           "budget:coverage=0.9,floor=1",
           "budget:M=20,row_coverage=0.85,floor=1",
           "marginal:lambda=0.25,floor=1",
           "lynx:ep_balance=0.005",
           "oea:k0=4,ep_balance=0",
           "marginal:lambda=0,floor=0",
       }) {
    const absl::StatusOr<Policy> policy = ParsePolicy(text);
    ASSERT_TRUE(policy.ok()) << text << ": " << policy.status();
    EXPECT_EQ(ToString(*policy), text);
    EXPECT_EQ(*ParsePolicy(ToString(*policy)), *policy) << text;
  }
  const Policy lynx = *ParsePolicy("lynx:floor=1,beta=none,alpha=2.5");
  EXPECT_EQ(lynx.kind, Policy::Kind::kLynx);
  EXPECT_EQ(lynx.alpha, 2.5);
  EXPECT_EQ(lynx.beta, Policy::kUnbounded);
  EXPECT_EQ(lynx.floor, 1);
}

// The paper has no floor; presets state theirs.
TEST(PolicyTest, FloorIsZeroUnlessThePresetIsAskedFor) {
  EXPECT_EQ(ParsePolicy("lynx:alpha=3")->floor, 0);
  EXPECT_EQ(ParsePolicy("lynx:beta=3")->floor, 0);
  EXPECT_EQ(ParsePolicy("lynx")->floor, Policy::kUnset);
  EXPECT_EQ(ParsePolicy("vote:M=8")->floor, 0);
  EXPECT_EQ(ParsePolicy("marginal:lambda=1")->floor, 0);
}

TEST(PolicyTest, ErrorsNameWhatIsWrongAndWhatIsAllowed) {
  const struct {
    std::string text;
    const char* error;
  } cases[] = {
      {"", "no policy ''"},
      {"lnyx", "no policy 'lnyx'; there are exact, prune, vote, lynx_compat, lynx, oea, budget"},
      {"Lynx", "no policy 'Lynx'"},
      {std::string(100, 'x'), "xxxx...'"},
      {"exact:k0=3", "exact takes no 'k0'; it takes nothing"},
      {"lynx:k0=3", "lynx takes no 'k0'; it takes alpha beta floor self_scaled ep_balance"},
      {"lynx:alpha", "must be name:key=value"},
      {"lynx:=3", "must be name:key=value"},
      {"lynx:,", "must be name:key=value"},
      {"lynx:alpha=0", "alpha is '0': must be a number above 0"},
      {"lynx:alpha=-1", "alpha is '-1'"},
      {"lynx:alpha=nan", "alpha is 'nan'"},
      {"lynx:alpha=inf", "alpha is 'inf'"},
      {"lynx:alpha=1e99999", "alpha is '1e99999'"},
      {"lynx:alpha=3x", "alpha is '3x'"},
      {"lynx:alpha=", "alpha is ''"},
      {"lynx:beta=-1",
       "beta is '-1': must be an integer of at least 0 and at most 1000000, or none"},
      {"lynx:beta=1000001", "must be an integer of at least 0 and at most 1000000, or none"},
      {"lynx:alpha=1e10", "alpha is '1e10': must be a number above 0 and at most 1e9"},
      {"lynx:beta=-2", "beta is '-2'"},
      {"lynx:beta=1.5", "beta is '1.5'"},
      {"lynx:beta=99999999999", "beta is '99999999999'"},
      {"lynx:floor=-2", "floor is '-2'"},
      {"lynx:self_scaled=1", "self_scaled is '1': must be true or false"},
      {"lynx:alpha=1,alpha=2", "alpha is given twice"},
      {"oea:k0=0", "k0 is '0': must be an integer of at least 1 and at most 1000000"},
      {"prune", "prune needs k0"},
      {"vote", "vote needs M"},
      {"budget", "budget needs M, fraction, coverage or row_coverage"},
      {"budget:M=8,fraction=0.5", "takes M or fraction, not both"},
      {"budget:coverage=0.5,row_coverage=0.5", "takes coverage or row_coverage, not both"},
      {"budget:fraction=0", "fraction is '0': must be above 0 and at most 1"},
      {"budget:coverage=1.01", "coverage is '1.01'"},
      {"marginal", "marginal needs lambda"},
      {"vote:M=8,ep_balance=1", "ep_balance is '1': must be a number from 0 to below 1"},
      {"oea:k0=4,ep_balance=-0.1", "ep_balance is '-0.1'"},
      {"prune:k0=4,ep_balance=0", "prune takes no 'ep_balance'"},
      {"marginal:lambda=-0.1", "lambda is '-0.1'"},
  };
  for (const auto& test : cases) {
    const absl::StatusOr<Policy> policy = ParsePolicy(test.text);
    EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument) << test.text;
    EXPECT_THAT(policy.status().message(), HasSubstr(test.error)) << test.text;
  }
}

TEST(PolicyTest, RangesThatNeedTheModelAreCheckedAgainstIt) {
  const struct {
    const char* text;
    const char* error;  // Null: fine for N = 64, k = 8.
  } cases[] = {
      {"exact", nullptr},
      {"prune:k0=8", nullptr},
      {"prune:k0=9", "k0 is '9': must be in [1, 8]"},
      {"oea", "k0 is 'not given'"},
      {"lynx", "alpha is 'not given'"},
      {"lynx:alpha=2", "beta is 'not given'"},
      {"lynx:alpha=2,beta=3,floor=8", nullptr},
      {"lynx:alpha=2,beta=3,floor=9", "floor is '9': must be in [0, 8]"},
      {"vote:M=8", nullptr},
      {"vote:M=64", nullptr},
      {"vote:M=7", "M is '7': must be in [8, 64]"},
      {"budget:M=65", "M is '65': must be in [8, 64]"},
      {"budget:fraction=0.1,floor=9", "floor is '9'"},
      {"budget:coverage=1", nullptr},
      {"marginal:lambda=0", nullptr},
  };
  for (const auto& test : cases) {
    const absl::Status status = CheckPolicy(*ParsePolicy(test.text), 64, 8);
    EXPECT_EQ(status.ok(), test.error == nullptr) << test.text << ": " << status;
    if (test.error != nullptr) {
      EXPECT_THAT(status.message(), HasSubstr(test.error)) << test.text;
    }
  }
  EXPECT_FALSE(CheckPolicy(Policy{.kind = Policy::Kind::kVote}, 64, 8).ok());
}

}  // namespace
}  // namespace lynx::moe
