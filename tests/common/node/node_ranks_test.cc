// Nodes of several ranks on the demo model, each rank a thread of this process that knows of the
// others what it would know of another process.
#include "common/node/node_ranks.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/metrics_sum.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/told_status.h"
#include "tests/support/wrapped_model_runner.h"

namespace lynx::node {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int32_t kBlocks = 8;
constexpr absl::Duration kLong = absl::Seconds(60);

model::RunnerOptions RunnerOptions() {
  return {.model_dir = "models/lynx-tiny-moe",
          .compute_dtype = DType::kF32,
          .kv_dtype = DType::kF32,
          .kv_blocks = kBlocks,
          .max_step_rows = 32,
          .max_step_logits = 4,
          .threads = 1};
}

// Fails in its nth step, before it says anything to the other ranks.
class FailingRunner final : public testing::WrappedModelRunner {
 public:
  // `broken`: its connections to the others are the first to go; null: they stay.
  FailingRunner(std::unique_ptr<model::ModelRunner> inner, int32_t from,
                collective::Communicator* broken)
      : WrappedModelRunner(std::move(inner)), from_(from), broken_(broken) {}
  absl::Status Step(std::span<const model::SequenceRows> batch,
                    model::StepObserver* observer) override {
    if (++steps_ < from_) return model_->Step(batch, observer);
    if (broken_ != nullptr) {
      broken_->Abort(absl::InternalError("a kernel failed"));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // The others have noticed.
    }
    return absl::InternalError("a kernel failed");
  }

 private:
  const int32_t from_;
  collective::Communicator* const broken_;
  int32_t steps_ = 0;
};

class TestNode {
 public:
  struct Changes {
    int32_t kv_blocks_of_last = kBlocks;
    int32_t last_fails_from = 1 << 30;  // In this step.
    bool connections_first = false;     // Those of the last, which break before it fails.
    int32_t spare = 0;
    PlacementOptions placement = {};
    std::string model_of_last = {};
  };
  TestNode(int32_t tp, int32_t ep) : TestNode(tp, ep, Changes{}) {}
  TestNode(int32_t tp, int32_t ep, const Changes& changes) {
    const model::ParallelLayout layout{.tp = tp, .ep = ep, .ep_spare = changes.spare};
    if (tp == 1) {
      runner_ = model::ModelRunner::Load(RunnerOptions()).value();
      return;
    }
    lost_.resize(static_cast<size_t>(tp));
    followed_.resize(static_cast<size_t>(tp));
    for (auto& reason : lost_) reason = std::make_unique<testing::ToldStatus>();
    leader_ = NodeRanks::Create(Options(0, layout, "127.0.0.1:0")).value();
    for (int32_t rank = 1; rank < tp; ++rank) {
      threads_.emplace_back([this, rank, layout, changes, last = rank + 1 == tp] {
        followed_[static_cast<size_t>(rank)] = Follow(rank, layout, last ? changes : Changes{});
      });
    }
    status_ = Lead(layout, changes.placement);
  }
  ~TestNode() { End(); }
  // In good order, or of what the leader has failed with; afterwards how the others ended.
  std::vector<absl::Status> End() {
    runner_ = nullptr;
    if (leader_ != nullptr && !status_.ok()) leader_->Leave(status_);
    leader_ = nullptr;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return followed_;
  }

  const absl::Status& status() const { return status_; }
  model::ModelRunner& runner() { return *runner_; }
  absl::Status WhyLost(size_t rank) { return lost_[rank]->Wait(); }

 private:
  NodeRanks::Options Options(int32_t rank, const model::ParallelLayout& layout,
                             const std::string& leader) {
    return {.rank = rank,
            .layout = layout,
            .leader = leader,
            .start_timeout = kLong,
            .silence = kLong,
            .call_timeout = kLong,
            .on_lost = [reason = lost_[static_cast<size_t>(rank)].get()](const absl::Status& why) {
              reason->Set(why);
            }};
  }
  absl::Status Lead(const model::ParallelLayout& layout, const PlacementOptions& placement) {
    if (const absl::Status joined = leader_->Join("the same", nullptr); !joined.ok()) return joined;
    model::RunnerOptions options = RunnerOptions();
    options.layout = layout;
    options.ranks = leader_->communicator();
    auto own = model::ModelRunner::Load(options);
    if (!own.ok()) return own.status();
    auto all = leader_->Lead(*std::move(own), placement);
    if (!all.ok()) return all.status();
    runner_ = *std::move(all);
    return absl::OkStatus();
  }
  absl::Status Follow(int32_t rank, const model::ParallelLayout& layout, const Changes& changes) {
    auto ranks = NodeRanks::Create(Options(rank, layout, leader_->endpoint()));
    if (!ranks.ok()) return ranks.status();
    if (const absl::Status joined = (*ranks)->Join("the same", nullptr); !joined.ok()) {
      return joined;
    }
    model::RunnerOptions options = RunnerOptions();
    options.layout = layout;
    options.ranks = (*ranks)->communicator();
    options.kv_blocks = changes.kv_blocks_of_last;
    if (!changes.model_of_last.empty()) options.model_dir = changes.model_of_last;
    auto own = model::ModelRunner::Load(options);
    if (!own.ok()) return own.status();
    FailingRunner runner(*std::move(own), changes.last_fails_from,
                         changes.connections_first ? (*ranks)->communicator() : nullptr);
    return (*ranks)->Follow(runner, /*address=*/"", nullptr, nullptr);
  }

  std::vector<std::unique_ptr<testing::ToldStatus>> lost_;
  std::vector<absl::Status> followed_;
  std::unique_ptr<NodeRanks> leader_;
  std::unique_ptr<model::ModelRunner> runner_;
  std::vector<std::thread> threads_;
  absl::Status status_;
};

const std::vector<TokenId> kPrompt = {11,  250, 3001, 77,  1024, 5,  5,    901, 2048, 64,
                                      400, 7,   31,   600, 12,   90, 1500, 8,   2,    333};
const std::vector<kv::BlockId> kTable = {2, 5, 1};

absl::Status Prefill(model::ModelRunner& runner, model::StepObserver* observer = nullptr) {
  const model::SequenceRows rows{.tokens = kPrompt, .blocks = kTable, .logits_rows = 1};
  return runner.Step({&rows, 1}, observer);
}

TokenId Best(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// The tokens that follow `first`, the prompt's KV being there.
std::vector<TokenId> Decode(model::ModelRunner& runner, TokenId first, int32_t count) {
  std::vector<TokenId> tokens = {first};
  for (int32_t i = 0; i < count; ++i) {
    const TokenId last = tokens.back();
    const model::SequenceRows rows{.tokens = {&last, 1},
                                   .start = static_cast<int32_t>(kPrompt.size()) + i,
                                   .blocks = kTable,
                                   .logits_rows = 1,
                                   .decode = true};
    EXPECT_THAT(runner.Step({&rows, 1}, nullptr), IsOk());
    tokens.push_back(Best(runner.logits()));
  }
  return tokens;
}

std::vector<TokenId> Generate(model::ModelRunner& runner) {
  EXPECT_THAT(Prefill(runner), IsOk());
  return Decode(runner, Best(runner.logits()), 12);
}

TEST(NodeRanksTest, GreedyTokensAreThoseOfASingleRank) {
  TestNode single(1, 1);
  const std::vector<TokenId> tokens = Generate(single.runner());
  for (const auto& [tp, ep] :
       std::vector<std::pair<int32_t, int32_t>>{{2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}}) {
    SCOPED_TRACE(absl::StrCat("tp ", tp, " ep ", ep));
    TestNode node(tp, ep);
    ASSERT_THAT(node.status(), IsOk());
    EXPECT_EQ(Generate(node.runner()), tokens);
    for (const absl::Status& followed : node.End()) EXPECT_THAT(followed, IsOk());
  }
}

// Every logit of a sequence, bit by bit.
std::vector<float> LogitsOf(model::ModelRunner& runner) {
  std::vector<float> all;
  const auto add = [&] { all.insert(all.end(), runner.logits().begin(), runner.logits().end()); };
  EXPECT_THAT(Prefill(runner), IsOk());
  add();
  for (int32_t i = 0; i < 20; ++i) {
    const TokenId last = Best(runner.logits());
    const model::SequenceRows rows{.tokens = {&last, 1},
                                   .start = static_cast<int32_t>(kPrompt.size()) + i,
                                   .blocks = kTable,
                                   .logits_rows = 1,
                                   .decode = true};
    EXPECT_THAT(runner.Step({&rows, 1}, nullptr), IsOk());
    add();
  }
  return all;
}

// Goes by what steps needed as often as it can, and changes what is no worse.
PlacementOptions Restless(PlacementMetrics& metrics) {
  return {.interval = absl::Milliseconds(1), .least_gain = 0, .metrics = &metrics};
}

double Count(const telemetry::Registry& registry, const std::string& result) {
  return testing::MetricsSum(registry.Render(),
                             "lynx_moe_placement_changes_total{result=\"" + result + "\"}");
}

TEST(NodeRanksTest, ExpertsMoveBetweenStepsAndNoBitNotices) {
  for (const auto& [tp, ep, spare] : {std::tuple{2, 2, 1}, {4, 4, 2}, {4, 2, 1}}) {
    SCOPED_TRACE(absl::StrCat("tp ", tp, " ep ", ep, " spare ", spare));
    TestNode fixed(tp, ep, {.spare = spare});
    ASSERT_THAT(fixed.status(), IsOk());
    const std::vector<float> undisturbed = LogitsOf(fixed.runner());

    telemetry::Registry registry;
    PlacementMetrics metrics(registry);
    TestNode node(tp, ep, {.spare = spare, .placement = Restless(metrics)});
    ASSERT_THAT(node.status(), IsOk());
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (Count(registry, "made") < 3) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      ASSERT_EQ(LogitsOf(node.runner()), undisturbed);
    }
    EXPECT_EQ(LogitsOf(node.runner()), undisturbed);
    EXPECT_EQ(Count(registry, "dropped"), 0);
    for (const absl::Status& followed : node.End()) EXPECT_THAT(followed, IsOk());
  }
}

TEST(NodeRanksTest, WhatOneRankCannotReadMovesNowhere) {
  testing::TempDir dir;
  std::filesystem::copy(RunnerOptions().model_dir, dir.path() / "model",
                        std::filesystem::copy_options::recursive);
  TestNode fixed(2, 2, {.spare = 1});
  const std::vector<float> undisturbed = LogitsOf(fixed.runner());
  telemetry::Registry registry;
  PlacementMetrics metrics(registry);
  TestNode node(
      2, 2, {.spare = 1, .placement = Restless(metrics), .model_of_last = dir.path() / "model"});
  ASSERT_THAT(node.status(), IsOk());
  for (const auto& file : std::filesystem::directory_iterator(dir.path() / "model")) {
    if (file.path().extension() != ".safetensors") continue;
    std::filesystem::last_write_time(
        file.path(), std::filesystem::file_time_type::clock::now() + std::chrono::seconds(1));
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (Count(registry, "dropped") < 3) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    ASSERT_EQ(LogitsOf(node.runner()), undisturbed);
  }
  for (const absl::Status& followed : node.End()) EXPECT_THAT(followed, IsOk());
}

class StopAfter : public model::StepObserver {
 public:
  explicit StopAfter(int32_t layer) : layer_(layer) {}
  bool OnLayerDone(int32_t layer) override {
    seen.push_back(layer);
    return layer < layer_;
  }
  std::vector<int32_t> seen;

 private:
  const int32_t layer_;
};

TEST(NodeRanksTest, AllAbandonAStepTogetherAndGoOn) {
  TestNode single(1, 1);
  const std::vector<TokenId> tokens = Generate(single.runner());
  TestNode node(2, 2);
  ASSERT_THAT(node.status(), IsOk());
  for (int32_t layer = 0; layer < 3; ++layer) {
    StopAfter observer(layer);
    EXPECT_THAT(Prefill(node.runner(), &observer), StatusIs(absl::StatusCode::kCancelled));
    EXPECT_EQ(observer.seen.back(), layer);
    EXPECT_TRUE(node.runner().logits().empty());
  }
  // After the last layer there is nothing left to abandon.
  StopAfter last(3);
  EXPECT_THAT(Prefill(node.runner(), &last), IsOk());
  EXPECT_THAT(last.seen, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(Generate(node.runner()), tokens);
}

TEST(NodeRanksTest, AStepThatAllRefuseDoesNoHarm) {
  TestNode node(2, 1);
  ASSERT_THAT(node.status(), IsOk());
  const model::SequenceRows wrong{.tokens = kPrompt, .blocks = {}, .logits_rows = 1};
  EXPECT_THAT(node.runner().Step({&wrong, 1}, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(node.runner().Step({}, nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Prefill(node.runner()), IsOk());
}

TEST(NodeRanksTest, RanksThatDifferAreRefusedNamingBoth) {
  TestNode memory(2, 1, {.kv_blocks_of_last = 9});
  EXPECT_THAT(memory.status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("the number of KV blocks of rank 1 is 9, of rank 0 8")));
  EXPECT_THAT(memory.End()[1], StatusIs(absl::StatusCode::kFailedPrecondition));
}

// As when it is killed, and the step of another rank fails before anybody's group has heard of it.
TEST(NodeRanksTest, WhoEndsOverALostRankIsNotTakenForIt) {
  for (int round = 0; round < 3; ++round) {
    TestNode node(4, 2, {.last_fails_from = 2, .connections_first = true});
    ASSERT_THAT(node.status(), IsOk());
    EXPECT_THAT(Prefill(node.runner()), IsOk());
    EXPECT_THAT(Prefill(node.runner()), Not(IsOk()));
    for (const size_t rank : {0, 1, 2}) {
      EXPECT_THAT(node.WhyLost(rank),
                  StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 3 has ended: ")))
          << "rank " << rank;
    }
  }
}

TEST(NodeRanksTest, ALostRankEndsTheNode) {
  TestNode node(4, 2, {.last_fails_from = 2});
  ASSERT_THAT(node.status(), IsOk());
  EXPECT_THAT(Prefill(node.runner()), IsOk());
  EXPECT_THAT(Prefill(node.runner()), Not(IsOk()));  // Long before anybody's time is over.
  const auto reason =
      StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 3 has ended: a kernel failed"));
  EXPECT_THAT(node.WhyLost(0), reason);
  EXPECT_THAT(node.WhyLost(1), reason);
  EXPECT_THAT(node.WhyLost(3), StatusIs(absl::StatusCode::kInternal, HasSubstr("a kernel failed")));
  EXPECT_THAT(Prefill(node.runner()), Not(IsOk()));
  const std::vector<absl::Status> ends = node.End();
  for (size_t rank = 1; rank < ends.size(); ++rank) EXPECT_THAT(ends[rank], Not(IsOk())) << rank;
}

}  // namespace
}  // namespace lynx::node
