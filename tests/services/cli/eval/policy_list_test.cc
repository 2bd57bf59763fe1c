#include "services/cli/eval/policy_list.h"

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::cli {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr moe::ModelFacts kTiny = {
    .model_type = "qwen3_moe", .experts = 64, .top_k = 8, .hidden_size = 192};

TEST(PolicyListTest, ParametersBelongToThePolicyBeforeThem) {
  const auto policies = ParsePolicies({"lynx:alpha=3", "beta=4", "oea:k0=2", "exact"}, kTiny);
  ASSERT_TRUE(policies.ok()) << policies.status();
  ASSERT_EQ(policies->size(), 3u);
  EXPECT_EQ((*policies)[0].policy.beta, 4);
  EXPECT_EQ((*policies)[0].family, "lynx alpha=3");
  EXPECT_EQ((*policies)[1].policy.k0, 2);
  EXPECT_EQ((*policies)[2].name, "exact");
}

TEST(PolicyListTest, PresetsFillWhatIsLeftOutAndRepeatsCountOnce) {
  const auto policies = ParsePolicies({"lynx", "oea:k0=4", "oea"}, kTiny);
  ASSERT_TRUE(policies.ok()) << policies.status();
  ASSERT_EQ(policies->size(), 2u) << "oea's preset is half of top-8";
  EXPECT_GT((*policies)[0].policy.alpha, 0);
}

TEST(PolicyListTest, BadPoliciesAreNamed) {
  struct Case {
    std::vector<std::string> pieces;
    std::string what;
  };
  for (const Case& c : {Case{{"lnyx"}, "lnyx"}, Case{{"oea:k0=9"}, "k0"}, Case{{"auto"}, "auto"},
                        Case{{"oea:k0=2", "k1=3"}, "k1"}, Case{{"k0=3"}, "k0=3"},
                        Case{{"vote:M=65"}, "M"}, Case{{}, "no policy"}}) {
    const absl::Status status = ParsePolicies(c.pieces, kTiny).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.what));
  }
}

// Every kind that a node may be given, several settings each, for models of any shape.
TEST(PolicyListTest, AllSpansEveryFamilyOfAnyModel) {
  for (const moe::ModelFacts& model :
       {kTiny, moe::ModelFacts{.experts = 128, .top_k = 8},
        moe::ModelFacts{.experts = 8, .top_k = 2}, moe::ModelFacts{.experts = 16, .top_k = 1},
        moe::ModelFacts{.experts = 160, .top_k = 6}}) {
    SCOPED_TRACE(model.experts);
    const auto policies = ParsePolicies({"all"}, model);
    ASSERT_TRUE(policies.ok()) << policies.status();
    std::set<moe::Policy::Kind> kinds;
    std::set<std::string> names;
    for (const EvalPolicy& policy : *policies) {
      kinds.insert(policy.policy.kind);
      EXPECT_TRUE(names.insert(policy.name).second) << policy.name;
    }
    if (model.top_k > 2) {
      EXPECT_EQ(kinds.size(), 8u) << "all kinds but auto";
    }
  }
  const auto tiny = ParsePolicies({"all"}, kTiny);
  std::vector<std::string> families;
  for (const EvalPolicy& policy : *tiny) families.push_back(policy.family);
  EXPECT_THAT(families, Contains("budget coverage floor=1").Times(::testing::Ge(4)));
  EXPECT_THAT(families, Contains("oea").Times(6));
  EXPECT_THAT(families, Contains(StartsWith("lynx_compat")).Times(::testing::Ge(4)));
  EXPECT_THAT(families, Contains(HasSubstr("self_scaled")).Times(::testing::Ge(2)));
}

}  // namespace
}  // namespace lynx::cli
