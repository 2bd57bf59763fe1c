#include "services/decode/policy/step_policy.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::decode {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

model::ModelSpec Spec(int32_t experts = 64, int32_t top_k = 8) {
  model::ModelSpec spec;
  spec.model_type = "made_up";
  spec.experts = experts;
  spec.experts_per_token = top_k;
  spec.feed_forward = {experts > 0 ? model::FeedForwardKind::kMoe : model::FeedForwardKind::kDense};
  return spec;
}

StepPolicy Own(const std::string& policy) { return *StepPolicy::Create(policy, Spec(), "m"); }

TEST(StepPolicyTest, ThePresetFillsWhatIsLeftOut) {
  const moe::Policy own = Own("lynx").own();
  EXPECT_GT(own.alpha, 0);
  EXPECT_NE(own.beta, moe::Policy::kUnset);
  EXPECT_EQ(own.floor, 1);
  EXPECT_EQ(*Own("exact").Asked("lynx"), own) << "a request's policy, too";
}

TEST(StepPolicyTest, WhatDoesNotFitTheModelIsRefusedByName) {
  EXPECT_THAT(StepPolicy::Create("linx", Spec(), "m").status(),
              StatusIs(kInvalid, HasSubstr("linx")));
  EXPECT_THAT(StepPolicy::Create("lynx:floor=9", Spec(), "m").status(),
              StatusIs(kInvalid, HasSubstr("floor")));
  EXPECT_THAT(StepPolicy::Create("vote:M=65", Spec(), "m").status(),
              StatusIs(kInvalid, HasSubstr("M")));
  EXPECT_THAT(StepPolicy::Create("", Spec(), "m").status(), StatusIs(kInvalid, HasSubstr("''")));
  const StepPolicy policy = Own("exact");
  EXPECT_THAT(policy.Asked("lynx:floor=9").status(), StatusIs(kInvalid, HasSubstr("floor")));
  EXPECT_THAT(policy.Asked("lynx:").status(), IsOk());
  EXPECT_THAT(policy.Asked("auto").status(), StatusIs(kInvalid, HasSubstr("auto")));
}

TEST(StepPolicyTest, AModelWithoutExpertsIsExact) {
  EXPECT_THAT(StepPolicy::Create("lynx", Spec(0, 0), "m").status(),
              StatusIs(kInvalid, HasSubstr("no experts")));
  EXPECT_THAT(StepPolicy::Create("exact", Spec(0, 0), "m").status(), IsOk());
}

TEST(StepPolicyTest, ARequestsWishComesBeforeTheNodesOwn) {
  const StepPolicy exact = Own("exact");
  const StepPolicy lynx = Own("lynx:alpha=3,beta=4");
  const auto nothing = *lynx.Asked("");
  const auto asked_exact = *lynx.Asked("exact");
  const auto asked_vote = *lynx.Asked("vote:M=20");
  ASSERT_EQ(nothing, std::nullopt);

  EXPECT_EQ(exact.Choose(nothing), nullptr);
  EXPECT_EQ(exact.Choose(asked_exact), nullptr) << "it gets what it would have got";
  EXPECT_EQ(exact.Choose(asked_vote), &*asked_vote);

  EXPECT_EQ(lynx.Choose(nothing), &lynx.own());
  EXPECT_EQ(lynx.Choose(asked_vote), &*asked_vote);
  ASSERT_NE(lynx.Choose(asked_exact), nullptr) << "an opt-out is told from no policy at all";
  EXPECT_FALSE(lynx.Choose(asked_exact)->lossy());
}

}  // namespace
}  // namespace lynx::decode
