#include "common/model/expert_mover.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/collective/thread_communicator.h"
#include "common/model/memory_need.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/moving_experts.h"
#include "tests/support/rank_group_runner.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace lynx::model {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::MovingExpertsRunner;
using ::lynx::testing::RankGroupRunner;
using ::lynx::testing::StatusIs;
using ::lynx::testing::TempDir;
using ::lynx::testing::TinyModel;
using ::testing::HasSubstr;

constexpr int32_t kSequences = 5;

// Of the first of greedy sequences that decode together, the bits of its logits; with a policy, by
// which each depends on the others, of all.
struct Trace {
  std::vector<TokenId> tokens;
  std::vector<float> logits;
  int32_t left_out = 0;  // Experts that rows had called for, over all plans.
  bool operator==(const Trace&) const = default;
};

Trace Generate(ModelRunner& runner, int32_t sequences, int32_t steps = 12,
               const moe::Policy* policy = nullptr) {
  std::vector<std::vector<TokenId>> tokens;
  std::vector<kv::BlockId> blocks;
  for (int32_t s = 0; s < sequences; ++s) {
    tokens.push_back({5 + s, 17, 60 - s, 0, 3 + 2 * s});
    blocks.push_back(s);
  }
  Trace trace;
  for (int32_t step = 0; step < steps; ++step) {
    std::vector<SequenceRows> batch;
    for (size_t s = 0; s < tokens.size(); ++s) {
      const std::span<const TokenId> all = tokens[s];
      batch.push_back({.tokens = step == 0 ? all : all.last(1),
                       .start = step == 0 ? 0 : static_cast<int32_t>(all.size()) - 1,
                       .blocks = std::span(blocks).subspan(s, 1),
                       .logits_rows = 1,
                       .decode = step > 0,
                       .policy = policy});
    }
    EXPECT_THAT(runner.Step(batch, nullptr), IsOk());
    for (const moe::PlanStats& plan : runner.stats().plans) {
      trace.left_out += plan.experts_exact - plan.experts;
    }
    const auto vocab = static_cast<size_t>(runner.spec().vocab_size);
    for (size_t s = 0; s < tokens.size(); ++s) {
      const auto logits = runner.logits().subspan(s * vocab, vocab);
      tokens[s].push_back(static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin()));
      if (s > 0 && policy == nullptr) continue;
      trace.tokens.push_back(tokens[s].back());
      trace.logits.insert(trace.logits.end(), logits.begin(), logits.end());
    }
  }
  return trace;
}

class ExpertMoverTest : public ::testing::Test {
 protected:
  ExpertMoverTest() { TinyModel::Make({.experts = 8}).Write(dir_.path()); }

  RunnerOptions Options(const ParallelLayout& layout) {
    return {.model_dir = dir_.path(),
            .compute_dtype = DType::kF32,
            .kv_dtype = DType::kF32,
            .kv_blocks = kSequences,
            .max_step_rows = 40,
            .max_step_logits = kSequences,
            .threads = 1,
            .layout = layout};
  }
  std::unique_ptr<RankGroupRunner> Load(const ParallelLayout& layout) {
    auto runner = RankGroupRunner::Load(Options(layout));
    EXPECT_THAT(runner, IsOk());
    return *std::move(runner);
  }
  std::filesystem::path Weights() const { return dir_.path() / "model.safetensors"; }

  TempDir dir_;
};

TEST_F(ExpertMoverTest, NoBitDependsOnWhereExpertsAreOrWhoSharesTheStep) {
  for (const ParallelLayout& layout : {ParallelLayout{.tp = 2, .ep = 2, .ep_spare = 1},
                                       {.tp = 2, .ep = 2, .ep_spare = 3},
                                       {.tp = 4, .ep = 4, .ep_spare = 2},
                                       {.tp = 4, .ep = 2, .ep_spare = 1}}) {
    SCOPED_TRACE(absl::StrCat("tp ", layout.tp, " ep ", layout.ep, " spare ", layout.ep_spare));
    const Trace alone = Generate(*Load(layout), 1);
    EXPECT_EQ(Generate(*Load(layout), kSequences), alone);
    const auto ranks = Load(layout);
    MovingExpertsRunner moving(*ranks, /*seed=*/7);
    EXPECT_EQ(Generate(moving, kSequences), alone);
    EXPECT_EQ(Generate(moving, 1), alone);
    EXPECT_GT(moving.moved(), 20);
    // And the tokens are those of a single rank.
    EXPECT_EQ(alone.tokens, Generate(*Load({}), 1).tokens);
  }
}

TEST_F(ExpertMoverTest, OneNumericClassWhateverTheSpareSlots) {
  const auto fixed = Load({.tp = 2, .ep = 2});
  const auto one = Load({.tp = 2, .ep = 2, .ep_spare = 1});
  const auto two = Load({.tp = 2, .ep = 2, .ep_spare = 2});
  EXPECT_EQ(fixed->rank(0).expert_mover(), nullptr);
  EXPECT_EQ(one->numeric_class(), two->numeric_class());
  EXPECT_NE(one->numeric_class(), fixed->numeric_class());
  EXPECT_EQ(Generate(*one, 2), Generate(*two, 2));
}

// A plan comes of the rows alone, unless it is to balance ranks.
TEST_F(ExpertMoverTest, NoBitDependsOnWhereExpertsAreUnderAnyPolicy) {
  const auto one = Load({.tp = 4, .ep = 4, .ep_spare = 1});
  const auto three = Load({.tp = 4, .ep = 4, .ep_spare = 3});
  MovingExpertsRunner moving(*three, /*seed=*/11);
  ASSERT_EQ(one->numeric_class(), three->numeric_class());
  for (const char* text : {"prune:k0=1", "vote:M=3,floor=0", "lynx_compat:alpha=3,beta=3",
                           "lynx:alpha=3,beta=3,floor=1", "oea:k0=1", "budget:M=3,floor=0",
                           "budget:coverage=0.6,floor=0", "marginal:lambda=0.2"}) {
    SCOPED_TRACE(text);
    const auto policy = moe::ParsePolicy(text);
    ASSERT_THAT(policy, IsOk());
    const Trace still = Generate(*one, kSequences, 12, &*policy);
    EXPECT_GT(still.left_out, 0);
    EXPECT_EQ(Generate(*three, kSequences, 12, &*policy), still);
    EXPECT_EQ(Generate(moving, kSequences, 12, &*policy), still);
  }
  EXPECT_GT(moving.moved(), 20);
}

TEST_F(ExpertMoverTest, AChangeIsRefusedThatDoesNotFit) {
  const auto ranks = Load({.tp = 2, .ep = 2, .ep_spare = 1});
  ExpertMover& mover = *ranks->rank(0).expert_mover();
  const moe::ExpertSlots first = mover.first_slots();
  EXPECT_EQ(first, (moe::ExpertSlots{{0, 1, 2, 3, 4}, {4, 5, 6, 7, 1}}));
  const auto stage = [&](moe::ExpertSlots slots, int32_t layer = 0) {
    return mover.Stage({.id = 1, .layer = layer, .slots = std::move(slots)});
  };
  EXPECT_THAT(stage(first, 2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layer 2")));
  EXPECT_THAT(stage({first[0]}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 parts of 2")));
  EXPECT_THAT(stage({{0, 1, 2, 3}, first[1]}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("part 0 has 5 slots, not 4")));
  EXPECT_THAT(stage({{0, 1, 2, 3, 8}, first[1]}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no expert 8")));
  EXPECT_THAT(stage({{0, 1, 2, 3, 3}, first[1]}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 is twice in part 0")));
  EXPECT_THAT(stage({{4, 1, 2, 3, 5}, first[1]}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expert 0 is nowhere")));
  EXPECT_THAT(stage({{5, 6, 7, 3, 4}, {0, 1, 2, 4, 5}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("brings 3 to part 0, of 2")));
  EXPECT_THAT(mover.Commit(1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("change 1")));
}

TEST_F(ExpertMoverTest, WhatIsDroppedIsNotMade) {
  const auto ranks = Load({.tp = 2, .ep = 2, .ep_spare = 1});
  ExpertMover& mover = *ranks->rank(0).expert_mover();
  const ExpertChange change{.id = 3, .layer = 1, .slots = {{0, 1, 2, 3, 7}, {4, 5, 6, 7, 1}}};
  EXPECT_THAT(mover.Stage(change), IsOk());
  mover.Drop();
  EXPECT_THAT(mover.Commit(3),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("change 3")));
  EXPECT_THAT(mover.Stage(change), IsOk());
  EXPECT_THAT(mover.Commit(2),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("change 2")));
  EXPECT_THAT(mover.Commit(3), IsOk());
}

// Reading what is mapped would kill the process where a file has become shorter.
TEST_F(ExpertMoverTest, FilesThatWereWrittenToOrCutShortAreNotReadAgain) {
  const std::function<void()> damages[] = {
      [&] { std::ofstream(Weights(), std::ios::app) << 'x'; },
      [&] { std::filesystem::resize_file(Weights(), std::filesystem::file_size(Weights()) / 2); },
      [&] { std::filesystem::resize_file(Weights(), 0); },
  };
  for (const auto& damage : damages) {
    TinyModel::Make({.experts = 8}).Write(dir_.path());
    const auto ranks = Load({.tp = 2, .ep = 2, .ep_spare = 1});
    const Trace before = Generate(*ranks, 2);
    damage();
    const ExpertChange change{.id = 1, .layer = 0, .slots = {{0, 1, 2, 3, 4}, {4, 5, 6, 7, 2}}};
    EXPECT_THAT(
        ranks->rank(1).expert_mover()->Stage(change),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr("model.safetensors: was written to")));
    // A change that brings this rank nothing reads nothing.
    EXPECT_THAT(ranks->rank(0).expert_mover()->Stage(change), IsOk());
    EXPECT_EQ(Generate(*ranks, 2), before);
  }
}

TEST_F(ExpertMoverTest, SpareSlotsAndStagingAreAskedFor) {
  const auto weights_of = [&](const ParallelLayout& layout) {
    std::vector<int64_t> asked(static_cast<size_t>(layout.world()));
    for (int32_t rank = 0; rank < layout.world(); ++rank) {
      // Refused, so that ranks need not meet.
      RunnerOptions options = Options(layout);
      const auto group =
          collective::ThreadCommunicator::MakeGroup(layout.world(), absl::Seconds(60));
      options.ranks = group[static_cast<size_t>(rank)].get();
      options.admit_memory = [&](const MemoryNeed& need) {
        asked[static_cast<size_t>(rank)] = need.weights;
        return absl::ResourceExhaustedError("no");
      };
      EXPECT_THAT(ModelRunner::Load(options).status(),
                  StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no")));
    }
    return asked;
  };
  const auto none = weights_of({.tp = 2, .ep = 2});
  const auto one = weights_of({.tp = 2, .ep = 2, .ep_spare = 1});
  const auto two = weights_of({.tp = 2, .ep = 2, .ep_spare = 2});
  const int64_t of_layers = two[0] - one[0];  // An expert of both layers.
  EXPECT_GT(of_layers, 0);
  EXPECT_EQ(one[0] - none[0], of_layers + ExpertMover::kMostNew * of_layers / 2);
  EXPECT_EQ(one[1] - none[1], one[0] - none[0]);
}

}  // namespace
}  // namespace lynx::model
