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

StepPolicy Own(const std::string& policy) {
  return *StepPolicy::Create(policy, Spec(), "m", false);
}

TEST(StepPolicyTest, ThePresetFillsWhatIsLeftOut) {
  const moe::Policy own = Own("lynx").own();
  EXPECT_GT(own.alpha, 0);
  EXPECT_NE(own.beta, moe::Policy::kUnset);
  EXPECT_EQ(own.floor, 1);
  EXPECT_EQ(*Own("exact").Asked("lynx"), own) << "a request's policy, too";
}

TEST(StepPolicyTest, WhatDoesNotFitTheModelIsRefusedByName) {
  EXPECT_THAT(StepPolicy::Create("linx", Spec(), "m", false).status(),
              StatusIs(kInvalid, HasSubstr("linx")));
  EXPECT_THAT(StepPolicy::Create("lynx:floor=9", Spec(), "m", false).status(),
              StatusIs(kInvalid, HasSubstr("floor")));
  EXPECT_THAT(StepPolicy::Create("vote:M=65", Spec(), "m", false).status(),
              StatusIs(kInvalid, HasSubstr("M")));
  EXPECT_THAT(StepPolicy::Create("", Spec(), "m", false).status(),
              StatusIs(kInvalid, HasSubstr("''")));
  const StepPolicy policy = Own("exact");
  EXPECT_THAT(policy.Asked("lynx:floor=9").status(), StatusIs(kInvalid, HasSubstr("floor")));
  EXPECT_THAT(policy.Asked("lynx:").status(), IsOk());
  EXPECT_THAT(policy.Asked("auto").status(), StatusIs(kInvalid, HasSubstr("auto")));
}

TEST(StepPolicyTest, AModelWithoutExpertsIsExact) {
  EXPECT_THAT(StepPolicy::Create("lynx", Spec(0, 0), "m", false).status(),
              StatusIs(kInvalid, HasSubstr("no experts")));
  EXPECT_THAT(StepPolicy::Create("exact", Spec(0, 0), "m", false).status(), IsOk());
}

TEST(StepPolicyTest, ARequestsWishComesBeforeTheNodesOwn) {
  const StepPolicy exact = Own("exact");
  const StepPolicy lynx = Own("lynx:alpha=3,beta=4");
  const auto nothing = *lynx.Asked("");
  const auto asked_exact = *lynx.Asked("exact");
  const auto asked_vote = *lynx.Asked("vote:M=20");
  ASSERT_EQ(nothing, std::nullopt);

  EXPECT_EQ(exact.Choose(nothing, nullptr), nullptr);
  EXPECT_EQ(exact.Choose(asked_exact, nullptr), nullptr) << "it gets what it would have got";
  EXPECT_EQ(exact.Choose(asked_vote, nullptr), &*asked_vote);

  EXPECT_EQ(lynx.Choose(nothing, nullptr), &lynx.own());
  EXPECT_EQ(lynx.Choose(asked_vote, nullptr), &*asked_vote);
  ASSERT_NE(lynx.Choose(asked_exact, nullptr), nullptr)
      << "an opt-out is told from no policy at all";
  EXPECT_FALSE(lynx.Choose(asked_exact, nullptr)->lossy());
}

TEST(StepPolicyTest, AutoIsWhatItStandsForNow) {
  const auto own = StepPolicy::Create("auto", Spec(), "m", true);
  ASSERT_THAT(own, IsOk());
  const moe::Policy automatic{.kind = moe::Policy::Kind::kOea, .k0 = 4};
  EXPECT_EQ(own->Choose(*own->Asked(""), &automatic), &automatic);
  EXPECT_EQ(own->Choose(*own->Asked("auto"), &automatic), &automatic);
  const auto asked_exact = *own->Asked("exact");
  EXPECT_EQ(own->Choose(asked_exact, &automatic), &*asked_exact);
  const auto exact = StepPolicy::Create("exact", Spec(), "m", true);
  EXPECT_EQ(exact->Choose(*exact->Asked("auto"), &automatic), &automatic);
  EXPECT_THAT(StepPolicy::Create("auto", Spec(), "m", false),
              StatusIs(kInvalid, HasSubstr("quality guard")));
  EXPECT_THAT(StepPolicy::Create("auto", Spec(0, 0), "m", true),
              StatusIs(kInvalid, HasSubstr("no experts")));
}

TEST(StepPolicyTest, TheLadderOfAutoFitsTheModel) {
  const StepPolicy policy = Own("exact");
  const auto ladder = policy.Ladder("oea:k0=6", "oea:k0=4", 3);
  ASSERT_THAT(ladder, IsOk());
  ASSERT_EQ(ladder->size(), 4u);
  EXPECT_FALSE((*ladder)[0].lossy());
  EXPECT_EQ((*ladder)[3].k0, 4);
  EXPECT_THAT(policy.Ladder("oea:k0=9", "oea:k0=4", 3), StatusIs(kInvalid, HasSubstr("k0")));
  EXPECT_THAT(policy.Ladder("oea:k0=6", "budget:coverage=0.9", 3),
              StatusIs(kInvalid, HasSubstr("one kind")));
}

}  // namespace
}  // namespace lynx::decode
