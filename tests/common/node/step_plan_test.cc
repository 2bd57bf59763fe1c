#include "common/node/step_plan.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::node {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAreArray;

// Two sequences with one policy, one with another, a prompt with none.
struct Batch {
  std::vector<TokenId> tokens = {5, 6, 7, 8, 9, 10};
  std::vector<kv::BlockId> blocks = {3, 1, 4, 1, 5};
  moe::Policy lynx{.kind = moe::Policy::Kind::kLynx, .alpha = 3.5, .beta = 4, .floor = 1};
  moe::Policy budget{.kind = moe::Policy::Kind::kBudget, .floor = 1, .fraction = 0.1};
  std::vector<model::SequenceRows> rows;

  Batch() {
    const std::span<const TokenId> all = tokens;
    const std::span<const kv::BlockId> table = blocks;
    rows = {{.tokens = all.first(3), .start = 0, .blocks = table.first(1), .logits_rows = 0},
            {.tokens = all.subspan(3, 1),
             .start = 17,
             .blocks = table.subspan(1, 2),
             .logits_rows = 1,
             .decode = true,
             .policy = &lynx},
            {.tokens = all.subspan(4, 1),
             .start = 3,
             .blocks = table.subspan(3, 1),
             .logits_rows = 1,
             .decode = true,
             .policy = &budget,
             .replica = 2},
            {.tokens = all.subspan(5, 1),
             .start = 9,
             .blocks = table.subspan(4, 1),
             .logits_rows = 1,
             .decode = true,
             .policy = &lynx}};
  }
};

TEST(StepPlanTest, SaysAllThatDecidesAStep) {
  const Batch batch;
  auto decoded = StepPlan::Decode(EncodeStep(batch.rows));
  ASSERT_THAT(decoded, IsOk());
  const StepPlan plan = *std::move(decoded);
  ASSERT_EQ(plan.batch().size(), batch.rows.size());
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    SCOPED_TRACE(i);
    const model::SequenceRows& told = plan.batch()[i];
    const model::SequenceRows& meant = batch.rows[i];
    EXPECT_THAT(told.tokens, ElementsAreArray(meant.tokens));
    EXPECT_THAT(told.blocks, ElementsAreArray(meant.blocks));
    EXPECT_EQ(told.start, meant.start);
    EXPECT_EQ(told.logits_rows, meant.logits_rows);
    EXPECT_EQ(told.decode, meant.decode);
    EXPECT_EQ(told.replica, meant.replica);
    ASSERT_EQ(told.policy == nullptr, meant.policy == nullptr);
    if (told.policy != nullptr) {
      EXPECT_EQ(*told.policy, *meant.policy);
    }
  }
  EXPECT_EQ(plan.batch()[1].policy, plan.batch()[3].policy);
}

TEST(StepPlanTest, AnEmptyStepIsToldToo) {
  auto plan = StepPlan::Decode(EncodeStep({}));
  ASSERT_THAT(plan, IsOk());
  EXPECT_TRUE(plan->batch().empty());
}

TEST(StepPlanTest, EveryTruncationIsRefused) {
  const std::string bytes = EncodeStep(Batch().rows);
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_THAT(StepPlan::Decode(std::string_view(bytes).substr(0, n)),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << n;
  }
  EXPECT_THAT(StepPlan::Decode(bytes + '\0'), StatusIs(absl::StatusCode::kInvalidArgument));
}

// Damaged bytes are refused or are another step, whose spans lie within what was decoded.
TEST(StepPlanTest, DamageNeverReachesBeyondTheBytes) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 rng(seed);
  const std::string good = EncodeStep(Batch().rows);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (int change = 0; change < 3; ++change) {
      const size_t at = rng() % bytes.size();
      const uint32_t values[] = {static_cast<uint32_t>(rng()), 0, 0xffffffffu, 1, 0x7fffffffu};
      const uint32_t value = values[rng() % 5];
      std::memcpy(bytes.data() + at, &value, std::min(bytes.size() - at, sizeof(value)));
    }
    const auto plan = StepPlan::Decode(bytes);
    if (!plan.ok()) continue;
    size_t sum = 0;
    for (const model::SequenceRows& rows : plan->batch()) {
      for (const TokenId token : rows.tokens) sum += static_cast<size_t>(token);
      for (const kv::BlockId block : rows.blocks) sum += static_cast<size_t>(block);
      if (rows.policy != nullptr) sum += static_cast<size_t>(rows.policy->kind);
    }
    EXPECT_NE(sum, 1u);  // So that the reads are made.
  }
}

}  // namespace
}  // namespace lynx::node
