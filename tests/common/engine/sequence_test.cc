#include "common/engine/sequence.h"

#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::engine {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;

constexpr Sequence::Limits kLimits{.vocab_size = 10, .max_context_tokens = 8};

FinishReason FinishOf(std::vector<TokenId> prompt, SamplingParams params,
                      std::vector<TokenId> output) {
  auto sequence = Sequence::Create(std::move(prompt), std::move(params), kLimits, output);
  EXPECT_THAT(sequence, IsOk());
  return (*sequence)->finish_reason();
}

TEST(SequenceTest, BadInputIsNamed) {
  const SamplingParams params{.max_new_tokens = 100};
  EXPECT_THAT(Sequence::Create({}, params, kLimits), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Sequence::Create({1, 10}, params, kLimits),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("prompt token 1 is 10")));
  EXPECT_THAT(Sequence::Create({-1}, params, kLimits),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("prompt token 0 is -1")));
  EXPECT_THAT(Sequence::Create({1}, {.top_p = 2}, kLimits),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("top_p")));
  EXPECT_THAT(Sequence::Create(std::vector<TokenId>(8, 1), params, kLimits),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("8 tokens")));
  EXPECT_THAT(Sequence::Create({1}, params, kLimits, std::vector<TokenId>{1, 11}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("output token 1")));
  EXPECT_THAT(Sequence::Create({1}, {.max_new_tokens = 2}, kLimits, std::vector<TokenId>{1, 2, 3}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("after token 1")));
}

TEST(SequenceTest, FinishRules) {
  SamplingParams params{.max_new_tokens = 100, .stop_token_ids = {3, 9}};
  EXPECT_EQ(FinishOf({1}, params, {1, 2}), FinishReason::kNone);
  EXPECT_EQ(FinishOf({1}, params, {1, 9}), FinishReason::kStop) << "every end id counts";
  EXPECT_EQ(FinishOf({3}, params, {1}), FinishReason::kNone) << "the prompt does not stop it";
  EXPECT_EQ(FinishOf({1, 1, 1}, params, {1, 1, 1, 1}), FinishReason::kNone);
  EXPECT_EQ(FinishOf({1, 1, 1}, params, {1, 1, 1, 1, 1}), FinishReason::kLength)
      << "the context is full";
  EXPECT_EQ(FinishOf({1, 1, 1}, params, {1, 1, 1, 1, 3}), FinishReason::kStop)
      << "a stop in the last place is a stop";
  params.max_new_tokens = 2;
  EXPECT_EQ(FinishOf({1}, params, {1}), FinishReason::kNone);
  EXPECT_EQ(FinishOf({1}, params, {1, 1}), FinishReason::kLength);
  params.max_new_tokens = 100;
  params.min_new_tokens = 2;
  EXPECT_EQ(FinishOf({1}, params, {9}), FinishReason::kNone) << "below the minimum";
  EXPECT_EQ(FinishOf({1}, params, {1, 1, 9}), FinishReason::kStop);
}

TEST(SequenceTest, BlocksComeAndGoWithTheSequence) {
  kv::BlockPool pool(4);
  auto sequence = Sequence::Create({1, 2, 3}, {}, kLimits);
  ASSERT_THAT(sequence, IsOk());
  ASSERT_THAT((*sequence)->EnsureBlocks(pool, 17), IsOk());
  EXPECT_EQ(pool.free_blocks(), 2);
  ASSERT_THAT((*sequence)->EnsureBlocks(pool, 32), IsOk());
  EXPECT_EQ(pool.free_blocks(), 2) << "two blocks hold 32 tokens";
  auto other = pool.Acquire(1);
  EXPECT_THAT((*sequence)->EnsureBlocks(pool, 64), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT((*sequence)->EnsureBlocks(pool, 65), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(pool.free_blocks(), 1);
  other->Reset();
  (*sequence)->Preempt();
  EXPECT_EQ(pool.free_blocks(), 4);
  auto blocks = kv::BlockTable::Acquire(pool, 2, 3);
  ASSERT_THAT(blocks, IsOk());
  (*sequence)->AdoptKv(*std::move(blocks), 2);
  EXPECT_EQ((*sequence)->pending_tokens(), 1);
  sequence->reset();
  EXPECT_EQ(pool.free_blocks(), 4);
}

}  // namespace
}  // namespace lynx::engine
