// Hand-offs between nodes of several ranks, in simulated time: each pair of ranks moves what both
// hold, decode adopts exactly the bytes that prefill computed or nothing, and everything is given
// back on all ranks.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/handoff/rank_sender.h"
#include "common/node/rank_worker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/decode/handoff/node_kv_copy.h"
#include "services/decode/handoff/rank_receiver.h"
#include "tests/support/handoff_nodes.h"
#include "tests/support/metrics_sum.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_size.h"

namespace lynx::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kPrompt = 40;  // 3 blocks.
constexpr int32_t kBlocks = 32;

// How `tp` ranks, of each of `dp` replicas, hold the heads of `whole`, as model::ShardOf() deals
// them out.
struct Shards {
  kv::KvLayout whole;
  int32_t tp = 1;
  int32_t dp = 1;

  int32_t copies() const { return std::max(1, tp / whole.kv_heads); }
  int32_t heads() const { return std::max(1, whole.kv_heads / tp); }
  int32_t world() const { return tp * dp; }
  int32_t first_head(int32_t rank) const { return rank % tp / copies() * heads(); }
  kv::KvLayout layout() const {
    kv::KvLayout layout = whole;
    layout.kv_heads = heads();
    return layout;
  }
  transfer::NodeIdentity Identity(Incarnation incarnation, int32_t rank) const {
    transfer::NodeIdentity identity = {
        incarnation, "model-a", "class-a",
        transfer::DescribeLayout(layout(), whole.kv_heads, tp, rank % tp, first_head(rank))};
    identity.layout.set_replica(rank / tp);
    return identity;
  }
  // What that rank holds of a block.
  std::vector<std::byte> Block(uint64_t sequence, int32_t layer, int32_t index,
                               int32_t rank) const {
    const auto bytes =
        TestBlock(sequence, layer, index, static_cast<size_t>(whole.BlockLayerBytes()));
    const auto half = bytes.size() / static_cast<size_t>(whole.Halves());
    const auto head = half / static_cast<size_t>(whole.kv_heads);
    std::vector<std::byte> part;
    for (size_t begin = 0; begin < bytes.size(); begin += half) {
      const auto from = bytes.begin() +
                        static_cast<int64_t>(begin + head * static_cast<size_t>(first_head(rank)));
      part.insert(part.end(), from, from + static_cast<int64_t>(head) * heads());
    }
    return part;
  }
};

// The ranks of a node in one process; what they tell each other takes `delay`.
class Group {
 public:
  explicit Group(EventLoop& loop) : loop_(loop) {}

  class Rank0 final : public node::RankChannel {
   public:
    explicit Rank0(Group& group) : group_(group) {}
    int others() const override { return static_cast<int>(group_.workers.size()); }
    void Tell(const proto::RankMessage& message) override {
      for (size_t i = 0; i < group_.workers.size(); ++i) {
        group_.loop_.RunAfter(group_.delay, [this, i, message] {
          if (i < group_.workers.size()) group_.workers[i]->OnMessage(message);
        });
      }
    }

   private:
    Group& group_;
  };
  class Other final : public node::RankChannel {
   public:
    Other(Group& group, int rank) : group_(group), rank_(rank) {}
    int others() const override { return 1; }
    void Tell(const proto::RankMessage& message) override {
      group_.loop_.RunAfter(group_.delay, [this, message] {
        if (group_.hear) group_.hear(rank_, message);
      });
    }

   private:
    Group& group_;
    const int rank_;
  };

  // Null: a node of one rank.
  node::RankChannel* channel() { return workers.empty() ? nullptr : &rank0; }

  absl::Duration delay = absl::ZeroDuration();
  std::function<void(int, const proto::RankMessage&)> hear;
  std::vector<std::unique_ptr<Other>> others;
  std::vector<std::unique_ptr<node::RankWorker>> workers;  // Of ranks 1 and on.
  Rank0 rank0{*this};

 private:
  EventLoop& loop_;
};

// What both kinds of nodes have.
struct Node {
  Node(EventLoop& loop, const Shards& s) : shards(s), group(loop) {
    for (int32_t replica = 0; replica < shards.dp; ++replica) {
      pools.emplace_back(kBlocks, s.whole.groups);
    }
    for (int32_t rank = 0; rank < shards.world(); ++rank) {
      arenas.push_back(kv::KvArena::Create(shards.layout(), kBlocks).value());
      registries.push_back(std::make_unique<telemetry::Registry>());
    }
  }
  std::unique_ptr<transfer::TransferEngine> Engine(transfer::LoopbackFabric& fabric,
                                                   const std::string& address, EventLoop& loop) {
    auto faulty = std::make_unique<FaultyTransferEngine>(
        transfer::LoopbackEngine::Create(fabric, address, loop).value(), loop);
    faults.push_back(faulty.get());
    return faulty;
  }
  node::RankWorkerParts Parts(Incarnation incarnation, int32_t rank,
                              transfer::LoopbackFabric& fabric, const std::string& name,
                              EventLoop& loop) {
    const auto index = static_cast<size_t>(rank);
    group.others.push_back(std::make_unique<Group::Other>(group, rank));
    return {.identity = shards.Identity(incarnation, rank),
            .kv = *arenas[index],
            .engine = Engine(fabric, absl::StrCat(name, "-", rank), loop),
            .loop = loop,
            .registry = *registries[index],
            .rank0 = *group.others.back()};
  }
  double Metric(size_t rank, const std::string& name) const {
    return MetricsSum(registries[rank]->Render(), name);
  }

  // The ranks of a replica.
  std::vector<int32_t> RanksOf(int32_t replica) const {
    std::vector<int32_t> ranks(static_cast<size_t>(shards.tp));
    std::iota(ranks.begin(), ranks.end(), replica * shards.tp);
    return ranks;
  }

  const Shards shards;
  std::deque<kv::BlockPool> pools;  // Of each replica.
  std::vector<std::unique_ptr<kv::KvArena>> arenas;
  std::vector<std::unique_ptr<telemetry::Registry>> registries;
  std::vector<FaultyTransferEngine*> faults;  // By rank.
  Group group;
};

class Decode final : public Node, public decode::KvReceiver::Handler {
 public:
  Decode(EventLoop& loop, transfer::LoopbackFabric& fabric, const Shards& s,
         Incarnation incarnation = 0xd0)
      : Node(loop, s) {
    auto own = Engine(fabric, "decode-0", loop);
    decode::ReceiverRanks ranks;
    for (int32_t rank = 0; rank < s.world(); ++rank) {
      proto::RankEndpoint& endpoint = ranks.endpoints.emplace_back();
      endpoint.set_transfer_address(absl::StrCat("decode-", rank));
      endpoint.set_head_begin(s.first_head(rank));
      endpoint.set_head_end(s.first_head(rank) + s.heads());
      if (rank == 0) continue;
      auto worker = std::make_unique<decode::RankReceiver>(
          Parts(incarnation, rank, fabric, "decode", loop), decode::RankReceiver::Options{});
      receivers.push_back(worker.get());
      group.workers.push_back(std::move(worker));
    }
    ranks.channel = group.channel();
    if (s.world() == 1) ranks = {};
    receiver = std::make_unique<decode::KvReceiver>(
        s.Identity(incarnation, 0), *arenas[0], std::move(own), loop, *registries[0], *this,
        decode::KvReceiver::Options{}, std::move(ranks));
    group.hear = [this](int rank, const auto& message) { receiver->OnRankMessage(rank, message); };
  }
  proto::GrantInfo Reserve(uint64_t sequence, int32_t replica = 0) {
    auto lease = kv::BlockTable::Acquire(pools[static_cast<size_t>(replica)], kPrompt, kPrompt);
    EXPECT_THAT(lease, IsOk());
    auto grant = receiver->Reserve({sequence,
                                    DecodeNode::kRouter,
                                    kPrompt,
                                    {},
                                    absl::Seconds(30),
                                    *std::move(lease),
                                    replica});
    EXPECT_THAT(grant, IsOk());
    replicas[sequence] = replica;
    return grant.value_or(proto::GrantInfo());
  }
  void OnAdopt(decode::Adopted one) override {
    const uint64_t sequence = one.sequence;
    // At this moment: all ranks have it.
    for (const int32_t rank : RanksOf(replicas.at(sequence))) {
      for (int32_t layer = 0; layer < shards.whole.layers; ++layer) {
        for (int32_t i = 0; i < one.lease.end_block(); ++i) {
          const auto held = arenas[static_cast<size_t>(rank)]->BlockLayerSpan(
              layer, one.lease.group(0)[static_cast<size_t>(i)]);
          EXPECT_TRUE(std::ranges::equal(held, shards.Block(sequence, layer, i, rank)))
              << "rank " << rank << " layer " << layer << " block " << i;
        }
      }
    }
    adopted[sequence] = std::move(one);
  }
  void OnFailed(uint64_t sequence, Incarnation, const absl::Status& status) override {
    failed[sequence] = status;
  }

  std::vector<decode::RankReceiver*> receivers;
  std::unique_ptr<decode::KvReceiver> receiver;
  std::map<uint64_t, int32_t> replicas;
  std::map<uint64_t, decode::Adopted> adopted;
  std::map<uint64_t, absl::Status> failed;
};

class Prefill final : public Node {
 public:
  Prefill(EventLoop& l, transfer::LoopbackFabric& fabric, const Shards& s,
          Incarnation incarnation = 0x9e, const std::string& name = "prefill")
      : Node(l, s), loop(l) {
    auto own = Engine(fabric, absl::StrCat(name, "-0"), loop);
    for (int32_t rank = 1; rank < s.world(); ++rank) {
      auto worker = std::make_unique<handoff::RankSender>(
          Parts(incarnation, rank, fabric, name, loop), handoff::KvSender::Options{});
      senders.push_back(worker.get());
      group.workers.push_back(std::move(worker));
    }
    sender = std::make_unique<handoff::KvSender>(s.Identity(incarnation, 0), *arenas[0],
                                                 std::move(own), loop, *registries[0],
                                                 handoff::KvSender::Options{}, group.channel());
    group.hear = [this](int rank, const auto& message) { sender->OnRankMessage(rank, message); };
  }
  void Start(uint64_t sequence, const proto::GrantInfo& grant,
             absl::Duration deadline = absl::Seconds(60), int32_t replica = 0) {
    auto lease = kv::BlockTable::Acquire(pools[static_cast<size_t>(replica)], 0, kPrompt);
    ASSERT_THAT(lease, IsOk());
    auto& blocks = leases[sequence] = *std::move(lease);
    const auto done = [=, this](const auto& status) {
      results[sequence] = status;
      // From here on the blocks may be anything: a late read of them must show.
      for (const int32_t rank : RanksOf(replica)) {
        auto& arena = arenas[static_cast<size_t>(rank)];
        for (int32_t layer = 0; layer < shards.whole.layers; ++layer) {
          for (const kv::BlockId block : leases.at(sequence).group(0)) {
            std::ranges::fill(arena->BlockLayerSpan(layer, block), std::byte{0xee});
          }
        }
      }
      leases.erase(sequence);
    };
    auto handoff = sender->Begin(grant, loop.Now() + deadline, done, replica);
    ASSERT_THAT(handoff, IsOk());
    for (int32_t layer = 0; layer < shards.whole.layers; ++layer) {
      for (const int32_t rank : RanksOf(replica)) {
        for (int32_t i = 0; i < blocks.end_block(); ++i) {
          std::ranges::copy(shards.Block(sequence, layer, i, rank),
                            arenas[static_cast<size_t>(rank)]
                                ->BlockLayerSpan(layer, blocks.group(0)[static_cast<size_t>(i)])
                                .begin());
        }
      }
      ASSERT_THAT(sender->Push(*handoff, layer, 0, blocks.group(0)), IsOk());
    }
    proto::CommitBody body;
    body.set_sequence(sequence);
    for (int32_t i = 0; i < kPrompt; ++i) body.add_prompt(i);
    body.mutable_first_token()->set_id(7);
    body.set_router(DecodeNode::kRouter);
    body.set_blocks(static_cast<int32_t>(kv::BlocksFor(kPrompt)));
    ASSERT_THAT(sender->Commit(*handoff, body), IsOk());
  }

  EventLoop& loop;
  std::vector<handoff::RankSender*> senders;
  std::unique_ptr<handoff::KvSender> sender;
  std::map<uint64_t, kv::BlockTable> leases;
  std::map<uint64_t, absl::Status> results;
};

kv::KvLayout Heads(int32_t count) {
  return {.layers = 3, .kv_heads = count, .head_dim = 8, .dtype = DType::kF32};
}
const kv::KvLayout kLatents = {
    .kind = kv::KvKind::kLatent, .layers = 3, .kv_heads = 1, .head_dim = 13, .dtype = DType::kBf16};

class RankHandoffTest : public ::testing::Test {
 protected:
  void StartNodes(int32_t prefill_tp, int32_t decode_tp, const kv::KvLayout& whole = Heads(4),
                  int32_t prefill_dp = 1, int32_t decode_dp = 1) {
    prefill_.reset();
    decode_.reset();
    decode_ = std::make_unique<Decode>(loop_, fabric_, Shards{whole, decode_tp, decode_dp});
    prefill_ = std::make_unique<Prefill>(loop_, fabric_, Shards{whole, prefill_tp, prefill_dp});
  }
  absl::Status Result(uint64_t sequence) {
    auto it = prefill_->results.find(sequence);
    return it == prefill_->results.end() ? absl::UnknownError("no result") : it->second;
  }
  static void Inject(FaultyTransferEngine& engine, proto::TransferHeader::BodyCase kind, int n,
                     TransferFault fault) {
    engine.set_script([kind, n, fault, seen = 0](int, const proto::TransferHeader& header) mutable {
      if (header.body_case() == kind && seen++ == n) return fault;
      return TransferFault();
    });
  }
  void ExpectAllReturned(const Prefill& prefill) {
    EXPECT_EQ(prefill.sender->handoffs(), 0u);
    for (const auto* one : prefill.senders) EXPECT_EQ(one->sender().handoffs(), 0u);
    for (const auto* one : prefill.faults) EXPECT_EQ(one->pending(), 0u);
    EXPECT_TRUE(prefill.leases.empty());
    EXPECT_EQ(decode_->receiver->grants(), 0u);
    EXPECT_EQ(decode_->receiver->staging_bytes(), 0u);
    for (const auto* one : decode_->receivers) {
      EXPECT_EQ(one->parts(), 0u);
      EXPECT_EQ(one->early(), 0u);
      EXPECT_EQ(one->staging_bytes(), 0u);
    }
    std::vector<int64_t> adopted(decode_->pools.size());
    for (const auto& [sequence, one] : decode_->adopted) {
      adopted[static_cast<size_t>(decode_->replicas.at(sequence))] += one.lease.held_blocks();
    }
    for (size_t i = 0; i < adopted.size(); ++i) {
      const kv::BlockPool& pool = decode_->pools[i];
      EXPECT_EQ(pool.free_blocks() + adopted[i], pool.capacity_blocks()) << "replica " << i;
    }
    for (const kv::BlockPool& pool : prefill.pools) {
      EXPECT_EQ(pool.free_blocks(), pool.capacity_blocks());
    }
  }

  ManualClock clock_;
  SimEventLoop loop_{clock_};
  transfer::LoopbackFabric fabric_;
  std::unique_ptr<Decode> decode_;
  std::unique_ptr<Prefill> prefill_;
};

TEST_F(RankHandoffTest, EachPairOfRanksMovesWhatBothHold) {
  for (const kv::KvLayout& whole : {kLatents, Heads(1), Heads(2), Heads(4), Heads(8)}) {
    for (const int32_t from : {1, 2, 4}) {
      for (const int32_t to : {1, 2, 4}) {
        SCOPED_TRACE(absl::StrCat(whole.kv_heads, " heads, tp ", from, " to tp ", to));
        StartNodes(from, to, whole);
        prefill_->Start(1, decode_->Reserve(1));
        prefill_->Start(2, decode_->Reserve(2));
        loop_.Advance(absl::Seconds(1));
        EXPECT_THAT(Result(1), IsOk());
        EXPECT_THAT(Result(2), IsOk());
        EXPECT_EQ(decode_->adopted.size(), 2u);
        ExpectAllReturned(*prefill_);
        // What each decode rank holds arrives there once, and nothing else goes out.
        const double part =
            2 * 3.0 * 3 * static_cast<double>(decode_->shards.layout().BlockLayerBytes());
        double sent = 0;
        for (size_t rank = 0; rank < prefill_->registries.size(); ++rank) {
          sent += prefill_->Metric(rank, "lynx_kv_transfer_bytes_total");
        }
        for (size_t rank = 0; rank < decode_->registries.size(); ++rank) {
          EXPECT_EQ(decode_->Metric(rank, "lynx_kv_transfer_bytes_total"), part);
        }
        EXPECT_EQ(sent, part * to);
      }
    }
  }
}

// Four ranks of latents hold all of them: each sends to one of four receivers.
TEST_F(RankHandoffTest, CopiesAreSentByAllWhoHoldThem) {
  StartNodes(4, 4, kLatents);
  prefill_->Start(1, decode_->Reserve(1));
  loop_.Advance(absl::Seconds(1));
  ASSERT_THAT(Result(1), IsOk());
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(prefill_->Metric(rank, "lynx_kv_transfer_bytes_total"),
              9.0 * static_cast<double>(kLatents.BlockLayerBytes()));
  }
}

TEST_F(RankHandoffTest, WhatOneRankGetsDamagedFailsThatHandoffAlone) {
  StartNodes(4, 2);
  Inject(*prefill_->faults[3], proto::TransferHeader::kKvPush, 4, {TransferFault::kCorrupt});
  prefill_->Start(1, decode_->Reserve(1));
  prefill_->Start(2, decode_->Reserve(2));
  loop_.Advance(absl::Seconds(1));
  EXPECT_THAT(Result(1), IsOk());
  EXPECT_THAT(Result(2), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 1: block")));
  EXPECT_THAT(decode_->failed.at(2), StatusIs(absl::StatusCode::kDataLoss,
                                              AllOf(HasSubstr("rank 1"), HasSubstr("layer"))));
  EXPECT_EQ(decode_->adopted.count(1), 1u);
  EXPECT_EQ(decode_->adopted.count(2), 0u);
  ExpectAllReturned(*prefill_);
}

TEST_F(RankHandoffTest, AfterALostConnectionOfTwoRanksTheGrantIsFilledAnew) {
  StartNodes(2, 4);
  Inject(*prefill_->faults[1], proto::TransferHeader::kKvPush, 3, {TransferFault::kBreak});
  const proto::GrantInfo first = decode_->Reserve(1);
  prefill_->Start(1, first);
  loop_.Advance(absl::Milliseconds(500));
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 3: ")));
  ASSERT_TRUE(prefill_->leases.empty());
  const auto again = decode_->receiver->FindGrant(1);
  ASSERT_TRUE(again.has_value());
  EXPECT_GT(again->epoch(), first.epoch());
  prefill_->Start(1, *again);
  loop_.Advance(absl::Milliseconds(500));
  EXPECT_THAT(Result(1), IsOk());
  EXPECT_EQ(decode_->adopted.count(1), 1u);
  ExpectAllReturned(*prefill_);
}

TEST_F(RankHandoffTest, PushesWaitForWhatOpensTheirGrant) {
  StartNodes(4, 4);
  decode_->group.delay = absl::Milliseconds(300);
  prefill_->Start(1, decode_->Reserve(1));
  loop_.Advance(absl::Milliseconds(100));
  EXPECT_GT(decode_->receivers[0]->early(), 0u);
  EXPECT_EQ(decode_->adopted.size(), 0u);
  loop_.Advance(absl::Seconds(1));
  EXPECT_THAT(Result(1), IsOk());
  EXPECT_EQ(decode_->adopted.size(), 1u);
  ExpectAllReturned(*prefill_);
}

TEST_F(RankHandoffTest, PushesWithoutAGrantAreDroppedInTime) {
  StartNodes(2, 2);
  decode_->group.delay = absl::Minutes(10);
  prefill_->Start(1, decode_->Reserve(1));
  loop_.Advance(absl::Seconds(5));
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1: no such grant")));
  EXPECT_EQ(decode_->receivers[0]->early(), 0u);
  EXPECT_EQ(decode_->receivers[0]->staging_bytes(), 0u);
}

TEST_F(RankHandoffTest, BlocksReturnOnlyWhenNoRankReadsThemAnyMore) {
  StartNodes(2, 2);
  Inject(*prefill_->faults[1], proto::TransferHeader::kKvPush, 1, {TransferFault::kHang});
  prefill_->Start(1, decode_->Reserve(1), absl::Seconds(3));
  loop_.Advance(absl::Milliseconds(2900));
  EXPECT_EQ(prefill_->leases.size(), 1u);
  loop_.Advance(absl::Seconds(3));
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(prefill_->leases.empty());
  decode_->receiver->Cancel(1);
  loop_.Advance(absl::Seconds(1));
  ExpectAllReturned(*prefill_);
}

TEST_F(RankHandoffTest, ACancelledGrantIsClosedOnAllRanks) {
  StartNodes(4, 4);
  for (auto* faults : prefill_->faults) {
    faults->set_script([](int, const proto::TransferHeader& header) {
      return header.has_kv_push() ? TransferFault{TransferFault::kDelay, absl::Milliseconds(50)}
                                  : TransferFault();
    });
  }
  prefill_->Start(1, decode_->Reserve(1));
  loop_.Advance(absl::Milliseconds(10));
  decode_->receiver->Cancel(1);
  loop_.Advance(absl::Seconds(2));
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(decode_->adopted.size(), 0u);
  ExpectAllReturned(*prefill_);
}

// The ranks of the decode node may see the two in unlike orders.
TEST_F(RankHandoffTest, TwoPrefillNodesOnOneGrantAreBothToldToBeginAnew) {
  StartNodes(2, 2);
  Prefill other(loop_, fabric_, Shards{Heads(4), 2}, 0x9f, "other");
  Inject(*prefill_->faults[0], proto::TransferHeader::kCommit, 0, {TransferFault::kLose});
  const proto::GrantInfo grant = decode_->Reserve(1);
  prefill_->Start(1, grant);
  loop_.Advance(absl::Milliseconds(50));
  other.Start(1, grant);
  loop_.Advance(absl::Milliseconds(500));
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(other.results.at(1), StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(decode_->adopted.size(), 0u);
  other.Start(1, decode_->receiver->FindGrant(1).value());
  loop_.Advance(absl::Milliseconds(500));
  EXPECT_THAT(other.results.at(1), IsOk());
  EXPECT_EQ(decode_->adopted.size(), 1u);
  ExpectAllReturned(*prefill_);
  ExpectAllReturned(other);
}

TEST_F(RankHandoffTest, UnderAnyFaultsTheBytesAreRightOrNothingIsAdopted) {
  const uint64_t seeds = ForTestSize<uint64_t>(30, 200, 3000);
  int adopted = 0;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 rng(seed);
    const auto pick = [&](int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); };
    StartNodes(1 << pick(3), 1 << pick(3), pick(4) == 0 ? kLatents : Heads(1 << pick(4)),
               1 + pick(2), 1 + pick(3));
    prefill_->group.delay = absl::Milliseconds(pick(3));
    decode_->group.delay = absl::Milliseconds(pick(3));
    const int share = 10 + pick(60);
    const auto script = [&rng, pick, share](int, const proto::TransferHeader& header) {
      if (pick(share) != 0) return TransferFault();
      const auto kind = static_cast<TransferFault::Kind>(1 + pick(8));
      // It reads no blocks, and nobody waits for its end.
      if (kind == TransferFault::kHang && header.has_abort()) return TransferFault();
      return TransferFault{kind, absl::Milliseconds(pick(50)), rng()};
    };
    for (auto* faults : prefill_->faults) faults->set_script(script);
    for (auto* faults : decode_->faults) faults->set_script(script);
    for (uint64_t sequence = 1; sequence <= 4; ++sequence) {
      const int32_t from = pick(prefill_->shards.dp);
      prefill_->Start(sequence, decode_->Reserve(sequence, pick(decode_->shards.dp)),
                      absl::Seconds(4), from);
      loop_.Advance(absl::Milliseconds(pick(20)));
      if (pick(6) == 0) decode_->receiver->Cancel(sequence);
      // Another try under the grant as it is now.
      if (pick(4) == 0 && prefill_->results.contains(sequence)) {
        const auto grant = decode_->receiver->FindGrant(sequence);
        if (grant.has_value()) prefill_->Start(sequence, *grant, absl::Seconds(4), from);
      }
    }
    loop_.Advance(absl::Seconds(90));  // Past all deadlines and leases.
    ExpectAllReturned(*prefill_);
    adopted += static_cast<int>(decode_->adopted.size());
    if (HasFailure()) break;
  }
  EXPECT_GT(adopted, static_cast<int>(seeds));  // Some of four get through.
}

TEST_F(RankHandoffTest, EachRankKeepsItsPartOfACopyOfPreemptedKv) {
  for (const int32_t replica : {0, 1}) {
    SCOPED_TRACE(absl::StrCat("replica ", replica));
    StartNodes(2, 2, Heads(4), 1, 2);
    prefill_->Start(1, decode_->Reserve(1, replica));
    loop_.Advance(absl::Seconds(1));
    ASSERT_EQ(decode_->adopted.size(), 1u);
    decode::Adopted one = std::move(decode_->adopted.at(1));
    const auto copies = [&] {
      std::vector<size_t> counts;
      for (const auto* receiver : decode_->receivers) counts.push_back(receiver->copies());
      return counts;
    };
    {
      const auto copy = decode::NodeKvCopy::Make(*decode_->arenas[0], decode_->group.channel(),
                                                 replica, one.lease, kPrompt);
      ASSERT_THAT(copy, IsOk());
      EXPECT_EQ((*copy)->bytes(), 9 * decode_->shards.layout().BlockLayerBytes());
      loop_.RunDue();
      for (auto& arena : decode_->arenas) {
        for (kv::BlockId block = 0; block < kBlocks; ++block) {
          for (int32_t layer = 0; layer < 3; ++layer) {
            std::ranges::fill(arena->BlockLayerSpan(layer, block), std::byte{0xee});
          }
        }
      }
      auto elsewhere =
          kv::BlockTable::Acquire(decode_->pools[static_cast<size_t>(replica)], 0, kPrompt);
      ASSERT_THAT(elsewhere, IsOk());
      EXPECT_THAT((*copy)->Restore(*elsewhere, 0), IsOk());
      loop_.RunDue();
      one.lease = *std::move(elsewhere);
      decode_->OnAdopt(std::move(one));  // Looks at the bytes.
      // Other replicas' blocks of the same ids are not touched.
      for (const int32_t rank : decode_->RanksOf(1 - replica)) {
        for (kv::BlockId block = 0; block < kBlocks; ++block) {
          EXPECT_THAT(decode_->arenas[static_cast<size_t>(rank)]->BlockLayerSpan(0, block),
                      Each(std::byte{0xee}));
        }
      }
      EXPECT_THAT(copies(), replica == 0 ? ElementsAre(1, 0, 0) : ElementsAre(0, 1, 1));
    }
    loop_.RunDue();
    EXPECT_THAT(copies(), Each(0));
  }
}

// A grant is filled in the ranks of its replica by those of the one that computes the prompt.
TEST_F(RankHandoffTest, OneReplicaHandsOverToOne) {
  const std::pair<int32_t, int32_t> widths[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 2}};
  for (const kv::KvLayout& whole : {kLatents, Heads(1), Heads(2), Heads(4)}) {
    for (const auto& [from_tp, from_dp] : widths) {
      for (const auto& [to_tp, to_dp] : widths) {
        SCOPED_TRACE(absl::StrCat(whole.kv_heads, " heads, tp ", from_tp, " x dp ", from_dp,
                                  " to tp ", to_tp, " x dp ", to_dp));
        StartNodes(from_tp, to_tp, whole, from_dp, to_dp);
        uint64_t sequence = 0;
        std::vector<double> wanted(decode_->registries.size());
        const double part =
            3.0 * 3 * static_cast<double>(decode_->shards.layout().BlockLayerBytes());
        for (int32_t from = 0; from < from_dp; ++from) {
          for (int32_t to = 0; to < to_dp; ++to) {
            ++sequence;
            prefill_->Start(sequence, decode_->Reserve(sequence, to), absl::Seconds(60), from);
            for (const int32_t rank : decode_->RanksOf(to)) {
              wanted[static_cast<size_t>(rank)] += part;
            }
          }
        }
        loop_.Advance(absl::Seconds(1));
        for (uint64_t id = 1; id <= sequence; ++id) EXPECT_THAT(Result(id), IsOk());
        EXPECT_EQ(decode_->adopted.size(), sequence);
        ExpectAllReturned(*prefill_);
        for (size_t rank = 0; rank < wanted.size(); ++rank) {
          EXPECT_EQ(decode_->Metric(rank, "lynx_kv_transfer_bytes_total"), wanted[rank])
              << "rank " << rank;
        }
      }
    }
  }
}

// Rank 0 has seen nothing of the hand-off when its commit is lost with the connection.
TEST_F(RankHandoffTest, AGrantOfAnotherReplicaIsFilledAnewAfterItsPrefillNodeIsLost) {
  StartNodes(2, 1, Heads(4), 1, 2);
  Inject(*prefill_->faults[0], proto::TransferHeader::kCommit, 0, {TransferFault::kBreak});
  const proto::GrantInfo first = decode_->Reserve(1, 1);
  prefill_->Start(1, first);
  loop_.Advance(absl::Milliseconds(500));
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kUnavailable));
  const auto again = decode_->receiver->FindGrant(1);
  ASSERT_TRUE(again.has_value());
  EXPECT_GT(again->epoch(), first.epoch());
  Prefill other(loop_, fabric_, Shards{Heads(4), 2}, 0x9f, "other");
  other.Start(1, *again);
  loop_.Advance(absl::Milliseconds(500));
  EXPECT_THAT(other.results.at(1), IsOk());
  EXPECT_EQ(decode_->adopted.count(1), 1u);
  ExpectAllReturned(*prefill_);
  ExpectAllReturned(other);
}

TEST_F(RankHandoffTest, ADamagedPartOfAnotherReplicaEndsThatHandOffAlone) {
  StartNodes(2, 2, Heads(4), 2, 2);
  Inject(*prefill_->faults[3], proto::TransferHeader::kKvPush, 1, {TransferFault::kCorrupt});
  prefill_->Start(1, decode_->Reserve(1, 1), absl::Seconds(60), 0);
  prefill_->Start(2, decode_->Reserve(2, 0), absl::Seconds(60), 1);
  prefill_->Start(3, decode_->Reserve(3, 1), absl::Seconds(60), 1);
  loop_.Advance(absl::Seconds(1));
  EXPECT_THAT(Result(1), IsOk());
  EXPECT_THAT(Result(2), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 1: block")));
  EXPECT_THAT(Result(3), IsOk());
  ExpectAllReturned(*prefill_);
}

}  // namespace
}  // namespace lynx::testing
