// Replicas of attention that share the experts: what a step is of all of them, and how it ends when
// a rank does not want to go on, or cannot.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/collective/gloo_communicator.h"
#include "common/collective/memory_rendezvous.h"
#include "common/collective/thread_communicator.h"
#include "common/model/model_runner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace lynx::model {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::lynx::testing::TempDir;
using ::lynx::testing::TinyModel;
using ::lynx::testing::TinyModelOptions;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Communicators = std::vector<std::unique_ptr<collective::Communicator>>;

void OnEach(size_t count, const std::function<void(size_t)>& body) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

Communicators MakeGloo(int size, absl::Duration timeout) {
  Communicators group(static_cast<size_t>(size));
  collective::MemoryRendezvous rendezvous;
  OnEach(group.size(), [&](size_t rank) {
    auto made = collective::GlooCommunicator::Connect(
        {.rank = static_cast<int>(rank), .size = size, .timeout = timeout}, rendezvous);
    ASSERT_THAT(made, IsOk());
    group[rank] = *std::move(made);
  });
  return group;
}

// Makes another rank's calls for it, until it is to be lost.
class MortalCommunicator final : public collective::Communicator {
 public:
  struct Life {
    // Calls of this rank that are still to be made, subgroups' included.
    std::atomic<int> calls = 1 << 30;
    bool silent = false;  // Stands still at its end, instead of breaking its connections.
  };
  MortalCommunicator(collective::Communicator& ranks, Life& life) : ranks_(ranks), life_(life) {}

  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  absl::Status AllReduceSum(std::span<float> values) override {
    return Call([&] { return ranks_.AllReduceSum(values); });
  }
  absl::Status AllReduceSum(std::span<double> values) override {
    return Call([&] { return ranks_.AllReduceSum(values); });
  }
  absl::Status ReduceScatterSum(std::span<const float> values, std::span<float> mine) override {
    return Call([&] { return ranks_.ReduceScatterSum(values, mine); });
  }
  absl::Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    return Call([&] { return ranks_.AllGather(mine, all); });
  }
  absl::Status AllToAll(std::span<const std::byte> send, std::span<const int64_t> send_bytes,
                        std::span<std::byte> received,
                        std::span<const int64_t> received_bytes) override {
    return Call([&] { return ranks_.AllToAll(send, send_bytes, received, received_bytes); });
  }
  absl::Status Broadcast(std::span<std::byte> data, int root) override {
    return Call([&] { return ranks_.Broadcast(data, root); });
  }
  absl::Status Barrier() override {
    return Call([&] { return ranks_.Barrier(); });
  }
  std::unique_ptr<collective::Communicator> Subgroup(std::vector<int> members) override {
    auto few = ranks_.Subgroup(std::move(members));
    auto mortal = std::make_unique<MortalCommunicator>(*few, life_);
    mortal->owned_ = std::move(few);
    return mortal;
  }
  void Abort(absl::Status why) override { ranks_.Abort(std::move(why)); }

 private:
  template <typename Do>
  absl::Status Call(const Do& call) {
    if (life_.calls.fetch_sub(1) > 0) return call();
    if (!life_.silent) ranks_.Abort(absl::AbortedError("killed"));
    return absl::AbortedError("killed");
  }

  std::unique_ptr<collective::Communicator> owned_;
  collective::Communicator& ranks_;
  Life& life_;
};

// Ranks that are threads, each with a runner.
struct Node {
  Node(const RunnerOptions& options, Communicators communicators)
      : group(std::move(communicators)), lives(group.size()), runners(group.size()) {
    for (size_t rank = 0; rank < group.size(); ++rank) {
      mortals.push_back(std::make_unique<MortalCommunicator>(*group[rank], lives[rank]));
    }
    OnEach(group.size(), [&](size_t rank) {
      RunnerOptions own = options;
      own.ranks = mortals[rank].get();
      auto runner = ModelRunner::Load(own);
      ASSERT_THAT(runner, IsOk());
      runners[rank] = *std::move(runner);
    });
  }
  explicit Node(const RunnerOptions& options)
      : Node(options,
             collective::ThreadCommunicator::MakeGroup(options.layout.world(), absl::Seconds(60))) {
  }

  // Of every rank. `observer` is the `seen_by`-th rank's.
  std::vector<absl::Status> Step(std::span<const SequenceRows> batch,
                                 StepObserver* observer = nullptr, size_t seen_by = 0) {
    std::vector<absl::Status> statuses(group.size());
    OnEach(group.size(), [&](size_t rank) {
      statuses[rank] = runners[rank]->Step(batch, rank == seen_by ? observer : nullptr);
    });
    return statuses;
  }
  std::vector<float> logits() const {
    return {runners[0]->logits().begin(), runners[0]->logits().end()};
  }

  Communicators group;
  std::vector<MortalCommunicator::Life> lives;
  std::vector<std::unique_ptr<MortalCommunicator>> mortals;
  std::vector<std::unique_ptr<ModelRunner>> runners;
};

RunnerOptions Options(const TempDir& dir, const ParallelLayout& layout) {
  return {.model_dir = dir.path(),
          .compute_dtype = DType::kF32,
          .kv_dtype = DType::kF32,
          .kv_blocks = 16,
          .max_step_rows = 16,
          .max_step_logits = 16,
          .threads = 1,
          .layout = layout};
}

void Write(const TempDir& dir, TinyModelOptions options) {
  options.dtype = DType::kF32;
  TinyModel::Make(options).Write(dir.path());
}

// Prompts of three tokens and a decode row behind each, one sequence a block.
struct Sequences {
  explicit Sequences(int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      tokens.push_back({i, (i * 7 + 3) % 60, (i * 5 + 11) % 60, (i * 3 + 1) % 60});
      blocks.push_back({i});
    }
  }
  std::vector<SequenceRows> Prompts(const std::vector<int32_t>& replicas) const {
    std::vector<SequenceRows> batch;
    for (size_t i = 0; i < replicas.size(); ++i) {
      batch.push_back(
          {.tokens = std::span(tokens[i]).first(3), .blocks = blocks[i], .replica = replicas[i]});
    }
    return batch;
  }
  std::vector<SequenceRows> Decode(const std::vector<int32_t>& replicas,
                                   const moe::Policy* policy) const {
    std::vector<SequenceRows> batch;
    for (size_t i = 0; i < replicas.size(); ++i) {
      batch.push_back({.tokens = std::span(tokens[i]).last(1),
                       .start = 3,
                       .blocks = blocks[i],
                       .logits_rows = 1,
                       .decode = true,
                       .policy = policy,
                       .replica = replicas[i]});
    }
    return batch;
  }

  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<kv::BlockId>> blocks;
};

std::string Describe(const StepStats& stats) {
  std::string text = absl::StrCat(stats.decode_rows, " decode, ", stats.prefill_rows,
                                  " prefill, phase ", static_cast<int>(stats.phase));
  for (const moe::PlanStats& plan : stats.plans) {
    absl::StrAppend(&text, "; ", plan.rows, " rows, ", plan.experts_exact, " to ", plan.experts,
                    " experts, ", plan.remapped, " remapped, bypass ",
                    static_cast<int>(plan.bypass));
  }
  return text;
}

// One plan for the rows of all replicas: policies, guard and phase see what a single rank sees.
TEST(ReplicasTest, PlansAreThoseOfASingleRank) {
  constexpr moe::Policy kHarsh{.kind = moe::Policy::Kind::kVote, .floor = 0, .experts = 5};
  TempDir dir;
  Write(dir, {.experts = 12});
  const Sequences sequences(6);
  const std::vector<int32_t> one(6, 0);
  RunnerOptions options = Options(dir, {});
  options.max_step_rows = 20;
  auto single = ModelRunner::Load(options);
  ASSERT_THAT(single, IsOk());
  for (const ParallelLayout& layout : {ParallelLayout{1, 2, 2}, ParallelLayout{2, 2, 4}}) {
    options.layout = layout;
    Node node(options);
    for (const auto& replicas : {std::vector{0, 1, 1, 0, 1, 0}, {1, 1, 1, 1, 1, 1}}) {
      for (const bool mixed : {false, true}) {
        SCOPED_TRACE(absl::StrCat("tp ", layout.tp, mixed ? " mixed" : ""));
        ASSERT_THAT((*single)->Step(sequences.Prompts(one), nullptr), IsOk());
        ASSERT_THAT(node.Step(sequences.Prompts(replicas)), Each(IsOk()));
        std::vector<SequenceRows> expected = sequences.Decode(one, &kHarsh);
        std::vector<SequenceRows> batch = sequences.Decode(replicas, &kHarsh);
        const std::vector<TokenId> prompt = {9, 8};
        const std::vector<kv::BlockId> block = {7};
        if (mixed) {
          const SequenceRows rows{.tokens = prompt, .blocks = block, .logits_rows = 2};
          expected.insert(expected.begin() + 1, rows);
          batch.insert(batch.begin() + 1, rows);
        }
        ASSERT_THAT((*single)->Step(expected, nullptr), IsOk());
        ASSERT_THAT(node.Step(batch), Each(IsOk()));
        const StepStats& stats = (*single)->stats();
        EXPECT_EQ(stats.plans[0].bypass, mixed ? moe::Bypass::kPhase : moe::Bypass::kNone);
        for (const auto& runner : node.runners) {
          EXPECT_EQ(Describe(runner->stats()), Describe(stats));
        }
        const std::vector<float> logits = node.logits();
        ASSERT_EQ(logits.size(), (*single)->logits().size());
        for (size_t i = 0; i < logits.size(); ++i) {
          ASSERT_NEAR(logits[i], (*single)->logits()[i], 1e-4) << i;
        }
        for (size_t rank = 1; rank < node.runners.size(); ++rank) {
          EXPECT_THAT(node.runners[rank]->logits(), IsEmpty());
        }
      }
    }
  }
}

TEST(ReplicasTest, BoundsAreOfEachReplica) {
  TempDir dir;
  Write(dir, {});
  Node node(Options(dir, {.tp = 1, .dp = 2, .ep = 2}));
  const std::vector<TokenId> tokens(16, 1);
  const std::vector<kv::BlockId> blocks = {0};
  const SequenceRows full{.tokens = tokens, .blocks = blocks, .logits_rows = 16};
  SequenceRows other = full;
  other.replica = 1;
  const SequenceRows more{.tokens = std::span(tokens).first(1), .blocks = blocks};
  SequenceRows stranger = more;
  stranger.replica = 2;
  EXPECT_THAT(node.Step(std::vector{full, other}), Each(IsOk()));
  EXPECT_EQ(node.logits().size(), 32 * static_cast<size_t>(node.runners[0]->spec().vocab_size));
  EXPECT_THAT(node.Step(std::vector{full, other, more}),
              Each(StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("17 rows"))));
  EXPECT_THAT(node.Step(std::vector{stranger}),
              Each(StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("replica 2"))));
}

TEST(ReplicasTest, TheNumericClassNamesThem) {
  TempDir dir;
  Write(dir, {});
  Node two(Options(dir, {.tp = 1, .dp = 2, .ep = 2}));
  Node wide(Options(dir, {.tp = 2, .dp = 1, .ep = 2}));
  EXPECT_THAT(two.runners[0]->numeric_class(), HasSubstr("/tp1/dp2/ep2"));
  EXPECT_EQ(two.runners[1]->numeric_class(), two.runners[0]->numeric_class());
  EXPECT_THAT(wide.runners[0]->numeric_class(), HasSubstr("/tp2/dp1/ep2"));
}

TEST(ReplicasTest, TheirExpertsDoNotMove) {
  TempDir dir;
  Write(dir, {});
  RunnerOptions options = Options(dir, {.tp = 1, .dp = 2, .ep = 2, .ep_spare = 1});
  const Communicators group = collective::ThreadCommunicator::MakeGroup(2, absl::Seconds(60));
  options.ranks = group[0].get();
  EXPECT_THAT(ModelRunner::Load(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ep-spare 1 with dp 2")));
}

// Any rank, of a replica with rows or without, in layers with experts and dense ones.
TEST(ReplicasTest, AllAbandonAStepTogetherAndGoOn) {
  class StopAtOnce final : public StepObserver {
   public:
    bool OnLayerDone(int32_t layer) override {
      seen.push_back(layer);
      return false;
    }
    std::vector<int32_t> seen;
  };
  for (const std::vector<int>& dense : {std::vector<int>{}, {1}}) {
    TempDir dir;
    Write(dir, {.dense_layers = dense});
    Node node(Options(dir, {.tp = 2, .dp = 2, .ep = 4}));
    const Sequences sequences(3);
    for (const auto& replicas : {std::vector{0, 1, 0}, {1, 1, 1}}) {
      ASSERT_THAT(node.Step(sequences.Prompts(replicas)), Each(IsOk()));
      const auto batch = sequences.Decode(replicas, nullptr);
      ASSERT_THAT(node.Step(batch), Each(IsOk()));
      const std::vector<float> logits = node.logits();
      for (size_t rank = 0; rank < node.runners.size(); ++rank) {
        StopAtOnce observer;
        EXPECT_THAT(node.Step(batch, &observer, rank), Each(StatusIs(absl::StatusCode::kCancelled)))
            << "rank " << rank;
        EXPECT_THAT(observer.seen, ElementsAre(0));
        EXPECT_THAT(node.logits(), IsEmpty());
        ASSERT_THAT(node.Step(batch), Each(IsOk()));
        EXPECT_EQ(node.logits(), logits);
      }
    }
  }
}

// Whichever call a rank is lost before, those of dispatch and combine among them.
TEST(ReplicasTest, ALostRankEndsTheStepOfAll) {
  TempDir dir;
  Write(dir, {.dense_layers = {1}});
  const RunnerOptions options = Options(dir, {.tp = 2, .dp = 2, .ep = 4});
  const Sequences sequences(3);
  std::vector<SequenceRows> batch = sequences.Prompts({0, 1, 1});
  for (SequenceRows& rows : batch) rows.logits_rows = 1;
  int calls = 0;
  {
    Node node(options);
    node.lives[1].calls = 1000;
    ASSERT_THAT(node.Step(batch), Each(IsOk()));
    calls = 1000 - node.lives[1].calls;
  }
  // Embedding; of a layer with experts attention, gather, dispatch, combine, and the sum; of a
  // dense one attention, the agreement, and the sum; logits.
  ASSERT_EQ(calls, 1 + 5 + 3 + 1);
  for (const bool gloo : {false, true}) {
    for (int at = 0; at < calls; ++at) {
      for (const bool silent : {false, true}) {
        // Time passes: dispatch and combine only.
        if (silent && at != 3 && at != 4) continue;
        SCOPED_TRACE(
            absl::StrCat(gloo ? "gloo" : "threads", silent ? ", silent" : "", ", call ", at));
        const absl::Duration timeout = silent ? absl::Milliseconds(300) : absl::Seconds(60);
        Node node(options, gloo ? MakeGloo(4, timeout)
                                : collective::ThreadCommunicator::MakeGroup(4, timeout));
        node.lives[1].calls = at;
        node.lives[1].silent = silent;
        const std::vector<absl::Status> statuses = node.Step(batch);
        EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kAborted));
        // The last call is rank 0's to wait for alone.
        const bool all = at + 1 < calls;
        for (const size_t rank : {0, 2, 3}) {
          if (rank != 0 && !all) continue;
          EXPECT_TRUE(absl::IsUnavailable(statuses[rank]) ||
                      absl::IsDeadlineExceeded(statuses[rank]))
              << "rank " << rank << ": " << statuses[rank];
        }
      }
    }
  }
}

// The same bits by Gloo as by threads.
TEST(ReplicasTest, WhoCarriesTheBytesDoesNotMatter) {
  TempDir dir;
  Write(dir, {.experts = 7});
  const RunnerOptions options = Options(dir, {.tp = 2, .dp = 2, .ep = 4});
  Node threads(options);
  Node gloo(options, MakeGloo(4, absl::Seconds(60)));
  const Sequences sequences(5);
  const std::vector<int32_t> replicas = {0, 1, 1, 0, 1};
  for (Node* node : {&threads, &gloo}) {
    ASSERT_THAT(node->Step(sequences.Prompts(replicas)), Each(IsOk()));
    ASSERT_THAT(node->Step(sequences.Decode(replicas, nullptr)), Each(IsOk()));
  }
  EXPECT_EQ(gloo.logits(), threads.logits());
}

}  // namespace
}  // namespace lynx::model
