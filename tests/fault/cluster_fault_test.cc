#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/faulty_channel.h"
#include "tests/support/faulty_transfer_engine.h"
#include "tests/support/sim_cluster.h"
#include "tests/support/test_size.h"

// Faults below and around a whole cluster. Whatever goes wrong, an answer is the one that a single
// process gives; everything returns to rest; and then the cluster serves again.
namespace lynx {
namespace {

using ::lynx::testing::ChannelFault;
using ::lynx::testing::FaultyChannel;
using ::lynx::testing::FaultyTransferEngine;
using ::lynx::testing::LoneEngine;
using ::lynx::testing::PlainSampling;
using ::lynx::testing::RecordingSink;
using ::lynx::testing::SimCluster;
using ::lynx::testing::TransferFault;

std::vector<TokenId> Prompt(uint32_t seed, size_t length, uint32_t vocabulary = 4093) {
  std::mt19937 rng(seed);
  std::vector<TokenId> prompt;
  for (size_t i = 0; i < length; ++i) prompt.push_back(static_cast<TokenId>(rng() % vocabulary));
  return prompt;
}

// One request with a scripted fault on what prefill sends, then one without.
void ExpectNeverWrong(TransferFault fault, int message) {
  SCOPED_TRACE(::testing::Message() << "fault " << fault.kind << " on message " << message);
  SimCluster::Options options = {.kv_blocks = 32, .step_rows = 24};
  FaultyTransferEngine* faulty = nullptr;
  options.wrap_transfer = [&](const std::string& name, EventLoop& its_loop,
                              std::unique_ptr<transfer::TransferEngine> engine)
      -> std::unique_ptr<transfer::TransferEngine> {
    if (!name.starts_with("prefill")) return engine;
    auto wrapped = std::make_unique<FaultyTransferEngine>(std::move(engine), its_loop);
    faulty = wrapped.get();
    return wrapped;
  };
  SimCluster cluster(options);
  ASSERT_NE(faulty, nullptr);
  faulty->set_script([&](int number, const proto::TransferHeader&) {
    return number == message ? fault : TransferFault{};
  });
  LoneEngine oracle(options);
  for (uint32_t request = 0; request < 2; ++request) {
    const auto prompt = Prompt(request, 70);
    RecordingSink sink;
    cluster.Submit(prompt, PlainSampling(20), sink);
    ASSERT_TRUE(cluster.RunUntil([&] { return sink.ended; })) << "request " << request;
    EXPECT_TRUE(sink.end.status.ok()) << sink.end.status;
    EXPECT_EQ(sink.ids(), oracle.Answer(prompt, PlainSampling(20))) << "request " << request;
    EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Minutes(1)));
  }
}

// KV-6: transfer errors, lost and changed bytes, a link that breaks; on the handshake (0), on
// blocks of several layers, and on the commit.
TEST(ClusterFaultTest, AFailedTransferIsNeverDecodedFrom) {
  for (TransferFault::Kind kind :
       {TransferFault::kLose, TransferFault::kCorrupt, TransferFault::kFail, TransferFault::kBreak,
        TransferFault::kDuplicate, TransferFault::kHang}) {
    for (int message = 0; message < 14; message += testing::ForTestSize(13, 3, 1)) {
      ExpectNeverWrong({.kind = kind, .byte = 12345}, message);
    }
  }
}

// KV-1: a write that comes after its request was cancelled must not touch the blocks' next owner.
TEST(ClusterFaultTest, ALateWriteDoesNotReachTheBlocksNextOwner) {
  // Room for one request at a time, so that the second gets the blocks of the first.
  SimCluster::Options options = {.kv_blocks = 8, .step_rows = 128};
  bool slow = true;
  options.wrap_transfer = [&](const std::string& name, EventLoop& loop,
                              std::unique_ptr<transfer::TransferEngine> engine)
      -> std::unique_ptr<transfer::TransferEngine> {
    if (!name.starts_with("prefill")) return engine;
    auto wrapped = std::make_unique<FaultyTransferEngine>(std::move(engine), loop);
    wrapped->set_script([&](int, const proto::TransferHeader& header) -> TransferFault {
      if (!slow || !header.has_kv_push()) return {};
      return {.kind = TransferFault::kDelayInNet, .delay = absl::Seconds(5)};
    });
    return wrapped;
  };
  SimCluster cluster(options);
  LoneEngine oracle(options);
  RecordingSink first;
  const auto id = cluster.Submit(Prompt(1, 100), PlainSampling(20), first);
  cluster.Run(absl::Milliseconds(500));  // Writes are under way, the commit has come.
  cluster.service().Cancel(id);
  slow = false;
  RecordingSink second;
  const auto prompt = Prompt(2, 100);
  cluster.Submit(prompt, PlainSampling(20), second);
  ASSERT_TRUE(cluster.RunUntil([&] { return second.ended; }));
  ASSERT_TRUE(second.end.status.ok()) << second.end.status;
  EXPECT_EQ(second.ids(), oracle.Answer(prompt, PlainSampling(20)));
  cluster.Run(absl::Seconds(10));  // The late writes come in.
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Minutes(1)));
  EXPECT_FALSE(first.ended);
}

// NODE-1: random deaths and returns under load. A failure prints the seed.
void KillAndReturn(uint32_t seed, const std::string& model_dir, uint32_t vocabulary) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed << " " << model_dir);
  std::mt19937 rng(seed);
  const SimCluster::Options options = {.prefill = 2,
                                       .decode = 2,
                                       .kv_blocks = 64,
                                       .step_rows = 48,
                                       .prompt_rows = seed % 2 == 0 ? 0 : 24,
                                       .model_dir = model_dir};
  SimCluster cluster(options);
  LoneEngine oracle(options);
  const std::vector<std::string> names = {"prefill-0", "prefill-1", "decode-0", "decode-1"};
  std::vector<std::unique_ptr<RecordingSink>> sinks;
  std::vector<std::vector<TokenId>> prompts;
  const auto submit = [&] {
    prompts.push_back(
        Prompt(seed * 1000 + static_cast<uint32_t>(prompts.size()), 1 + rng() % 90, vocabulary));
    sinks.push_back(std::make_unique<RecordingSink>());
    auto started = cluster.service().Start(
        {.prompt = prompts.back(), .sampling = PlainSampling(16)}, *sinks.back());
    if (!started.ok()) {  // No ready pair at this moment: a clean refusal.
      sinks.pop_back();
      prompts.pop_back();
    }
  };
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < 4; ++i) submit();
    cluster.Run(absl::Milliseconds(rng() % 40));
    const std::string& victim = names[rng() % names.size()];
    cluster.Kill(victim);
    cluster.Run(absl::Milliseconds(rng() % 8000));
    cluster.Start(victim);
    cluster.Run(absl::Milliseconds(rng() % 2000));
  }
  ASSERT_TRUE(cluster.RunUntil(
      [&] {
        return std::all_of(sinks.begin(), sinks.end(),
                           [](const auto& sink) { return sink->ended; });
      },
      absl::Minutes(10)));
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_TRUE(sinks[i]->end.status.ok()) << "request " << i << ": " << sinks[i]->end.status;
    EXPECT_EQ(sinks[i]->ids(), oracle.Answer(prompts[i], PlainSampling(16))) << "request " << i;
  }
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Minutes(2)));
  for (int i = 0; i < 4; ++i) {
    RecordingSink sink;
    const auto prompt = Prompt(seed + 77, 40, vocabulary);
    cluster.Submit(prompt, PlainSampling(8), sink);
    ASSERT_TRUE(cluster.RunUntil([&] { return sink.ended; }));
    EXPECT_TRUE(sink.end.status.ok()) << sink.end.status;
    EXPECT_EQ(sink.ids(), oracle.Answer(prompt, PlainSampling(8)));
  }
}

// A lost Cancel costs the blocks of a grant no longer than its lease, though the router lives on.
TEST(ClusterFaultTest, AGrantWhoseCancelWasLostReturnsItsBlocks) {
  for (int lost : {0, 1}) {  // Decode and prefill are told, each for itself.
    SimCluster::Options options = {.kv_blocks = 32, .step_rows = 4, .max_batch = 4};
    int cancels = 0;
    options.wrap_channel = [&](const std::string& name, EventLoop& loop,
                               std::unique_ptr<rpc::Channel> channel) {
      auto wrapped = std::make_unique<FaultyChannel>(std::move(channel), loop);
      if (name == "router") {
        wrapped->set_script([&](int, const proto::Envelope& envelope) {
          return ChannelFault{.drop = envelope.has_cancel() && cancels++ == lost};
        });
      }
      return wrapped;
    };
    SimCluster cluster(options);
    RecordingSink sink;
    const auto id = cluster.Submit(Prompt(1, 400), PlainSampling(20), sink);
    ASSERT_TRUE(cluster.RunUntil([&] { return cluster.pool("prefill-0").free_blocks() < 32; }));
    cluster.service().Cancel(id);
    cluster.Run(absl::Milliseconds(20));
    EXPECT_EQ(cancels, 2);
    EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Minutes(1)))
        << "the lost message was number " << lost;
  }
}

TEST(ClusterFaultTest, NodesThatDieAndReturnCostTimeAtMost) {
  const uint32_t seeds = testing::ForTestSize(1u, 3u, 60u);
  for (uint32_t seed = 1; seed <= seeds; ++seed) {
    KillAndReturn(seed, "models/lynx-tiny-moe", 4093);
    KillAndReturn(seed, "tests/golden/variants/gpt-oss", 97);
  }
}

}  // namespace
}  // namespace lynx
