// Hand-off under faults, in simulated time: whatever is lost, late, doubled or damaged, decode
// adopts exactly the bytes that prefill computed or nothing, and everything is given back.
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/handoff_nodes.h"
#include "tests/support/status_matchers.h"

namespace lynx::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int32_t kPrompt = 40;  // 3 blocks.

// The first tokens of every prompt here.
std::vector<TokenId> FirstTokens(int32_t count) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

class HandoffFaultTest : public ::testing::Test {
 protected:
  std::unique_ptr<transfer::TransferEngine> Engine(const std::string& address) {
    return transfer::LoopbackEngine::Create(fabric_, address, loop_).value();
  }
  void StartDecode(int32_t blocks = 16, Incarnation incarnation = 0xd0,
                   const decode::KvReceiver::Options& options = {}) {
    decode_.reset();
    decode_ = std::make_unique<DecodeNode>(TestIdentity(incarnation, layout_), Engine("decode"),
                                           loop_, blocks, options, layout_, decode_remote_kv_);
  }
  void StartPrefill(int32_t blocks = 64, Incarnation incarnation = 0x9e,
                    const handoff::KvSender::Options& options = {}) {
    prefill_ = std::make_unique<PrefillNode>(TestIdentity(incarnation, layout_), Engine("prefill"),
                                             loop_, blocks, options, layout_, prefill_remote_kv_);
  }
  proto::GrantInfo Reserve(uint64_t sequence, int32_t prompt = kPrompt,
                           absl::Duration lease = absl::Seconds(30)) {
    auto grant = decode_->Reserve(sequence, prompt, lease);
    EXPECT_THAT(grant, IsOk());
    return grant.value_or(proto::GrantInfo());
  }
  const absl::Status& Result(uint64_t sequence) {
    static const absl::Status kNone = absl::UnknownError("no result");
    auto& job = prefill_->jobs.at(sequence);
    return job.result.has_value() ? *job.result : kNone;
  }
  // Nothing is held any more for anybody, except the blocks of adopted sequences.
  void ExpectAllReturned() {
    EXPECT_EQ(prefill_->sender->handoffs(), 0u);
    EXPECT_EQ(prefill_->pool.free_blocks(), prefill_->pool.capacity_blocks());
    EXPECT_EQ(prefill_->faults->pending(), 0u);
    EXPECT_EQ(decode_->receiver->grants(), 0u);
    EXPECT_EQ(decode_->receiver->staging_bytes(), 0u);
    EXPECT_EQ(decode_->receiver->quarantined_bytes(), 0u);
    int64_t adopted = 0;
    for (const auto& [sequence, one] : decode_->adopted) {
      adopted += one.lease.held_blocks();
    }
    EXPECT_EQ(decode_->pool.free_blocks() + adopted, decode_->pool.capacity_blocks());
  }
  // Applies `fault` to the n-th message of a kind that prefill sends, once.
  void Inject(proto::TransferHeader::BodyCase kind, int n, TransferFault fault) {
    prefill_->faults->set_script(
        [kind, n, fault, seen = 0](int, const proto::TransferHeader& header) mutable {
          if (header.body_case() == kind && seen++ == n) return fault;
          return TransferFault();
        });
  }

  kv::KvLayout layout_ = kTestLayout;
  bool prefill_remote_kv_ = false;
  bool decode_remote_kv_ = false;
  ManualClock clock_;
  SimEventLoop loop_{clock_};
  transfer::LoopbackFabric fabric_;
  std::unique_ptr<DecodeNode> decode_;
  std::unique_ptr<PrefillNode> prefill_;
};

TEST_F(HandoffFaultTest, WithoutFaultsTheSequenceArrivesWhole) {
  StartDecode();
  StartPrefill();
  prefill_->Start(1, kPrompt, Reserve(1));
  loop_.RunDue();
  EXPECT_THAT(Result(1), IsOk());
  ASSERT_TRUE(decode_->adopted.contains(1));
  EXPECT_TRUE(decode_->HoldsKv(1));
  EXPECT_EQ(decode_->adopted.at(1).body.first_token().id(), 7);
  EXPECT_EQ(decode_->adopted.at(1).body.prompt_size(), kPrompt);
  ExpectAllReturned();
}

TEST_F(HandoffFaultTest, LatentsArriveWhole) {
  const kv::KvLayout latents = {.kind = kv::KvKind::kLatent,
                                .layers = 3,
                                .kv_heads = 1,
                                .head_dim = 13,
                                .dtype = DType::kBf16};
  decode_ = std::make_unique<DecodeNode>(TestIdentity(0xd0, latents), Engine("decode"), loop_, 16,
                                         decode::KvReceiver::Options(), latents);
  prefill_ = std::make_unique<PrefillNode>(TestIdentity(0x9e, latents), Engine("prefill"), loop_,
                                           64, handoff::KvSender::Options(), latents);
  prefill_->Start(1, kPrompt, Reserve(1));
  loop_.RunDue();
  EXPECT_THAT(Result(1), IsOk());
  ASSERT_TRUE(decode_->adopted.contains(1));
  EXPECT_TRUE(decode_->HoldsKv(1));
  ExpectAllReturned();
}

TEST_F(HandoffFaultTest, KvThatTheHostCannotTouchArrivesWhole) {
  for (const auto& [prefill, decode] : {std::pair(true, false), {false, true}, {true, true}}) {
    SCOPED_TRACE(::testing::Message() << prefill << decode);
    prefill_remote_kv_ = prefill;
    decode_remote_kv_ = decode;
    StartDecode();
    StartPrefill();
    Inject(proto::TransferHeader::kKvPush, 1,
           {.kind = TransferFault::kDuplicate});  // What is there is not written again.
    prefill_->Start(1, kPrompt, Reserve(1));
    loop_.RunDue();
    EXPECT_THAT(Result(1), IsOk());
    ASSERT_TRUE(decode_->adopted.contains(1));
    EXPECT_TRUE(decode_->HoldsKv(1));
    ExpectAllReturned();
    prefill_.reset();
  }
}

TEST_F(HandoffFaultTest, KvThatCannotBeCopiedEndsItsHandoffAlone) {
  prefill_remote_kv_ = decode_remote_kv_ = true;
  StartDecode();
  StartPrefill();
  for (const bool at_prefill : {true, false}) {
    const uint64_t sequence = at_prefill ? 1 : 2;
    absl::Status& status =
        at_prefill ? prefill_->remote_kv->read_status : decode_->remote_kv->write_status;
    ASSERT_THAT(prefill_->Begin(sequence, kPrompt, Reserve(sequence)), IsOk());
    for (int32_t layer = 0; layer < layout_.layers; ++layer) {
      EXPECT_THAT(prefill_->PushLayer(sequence, layer, 0), IsOk());
    }
    status = absl::InternalError("the device is lost");
    loop_.RunDue();
    EXPECT_EQ(prefill_->sender->handoffs(), 0u);
    EXPECT_THAT(Result(sequence),
                StatusIs(at_prefill ? absl::StatusCode::kUnavailable : absl::StatusCode::kAborted,
                         HasSubstr("the device is lost")));
    status = absl::OkStatus();
    decode_->receiver->Cancel(sequence);
    loop_.RunDue();
    ExpectAllReturned();
  }
  prefill_->Start(3, kPrompt, Reserve(3));
  loop_.RunDue();
  EXPECT_THAT(Result(3), IsOk());
  EXPECT_TRUE(decode_->adopted.contains(3) && decode_->HoldsKv(3));
}

const kv::KvLayout& Windows() {
  static const kv::KvLayout layout = {
      .layers = 3,
      .kv_heads = 2,
      .head_dim = 8,
      .dtype = DType::kF32,
      .groups = kv::KvGroups(std::vector<kv::Reach>{{}, {.window = 20}, {.chunk = 16}})};
  return layout;
}

TEST_F(HandoffFaultTest, OfWindowsOnlyWhatDecodeNeedsIsSent) {
  layout_ = Windows();
  StartDecode();
  StartPrefill();
  // 40 tokens: all 3 blocks of the first layer, of the window tokens 21 on, of the chunk 32 on. 48
  // tokens: the next token begins a chunk. Of the second grant the first layer's prefix is there.
  const int64_t block = Windows().BlockLayerBytes();
  int64_t sent = 0;
  prefill_->faults->set_script([&](int, const proto::TransferHeader& header) {
    sent += header.kv_push().checksums_size() * block;
    return TransferFault();
  });
  const auto expect_sent = [&](uint64_t sequence, int32_t prompt, int32_t held, int64_t blocks) {
    sent = 0;
    auto grant = decode_->Reserve(sequence, prompt, absl::Seconds(30), FirstTokens(held));
    ASSERT_THAT(grant, IsOk());
    prefill_->Start(sequence, prompt, *grant);
    loop_.RunDue();
    EXPECT_THAT(Result(sequence), IsOk());
    ASSERT_TRUE(decode_->adopted.contains(sequence));
    EXPECT_TRUE(decode_->HoldsKv(sequence, held / kv::kBlockTokens));
    EXPECT_EQ(decode_->adopted.at(sequence).lease.held_blocks(),
              Windows().groups.BlocksHeld(prompt, kv::BlocksFor(prompt)));
    EXPECT_EQ(sent, blocks * block) << prompt << " tokens, " << held << " held";
    ExpectAllReturned();
    decode_->adopted.clear();
  };
  expect_sent(1, 40, 0, 3 + 2 + 1);
  expect_sent(2, 48, 0, 3 + 2 + 0);
  expect_sent(3, 40, 32, 1 + 1 + 1);
  expect_sent(4, 5, 0, 3);
  EXPECT_EQ(decode_->pool.free_blocks(), 16);
}

TEST_F(HandoffFaultTest, OfWindowsALostBlockIsARetryUnderANewGrant) {
  layout_ = Windows();
  StartDecode();
  StartPrefill();
  Inject(proto::TransferHeader::kKvPush, 1, {TransferFault::kLose});
  prefill_->Start(1, kPrompt, Reserve(1));
  loop_.Advance(absl::Seconds(5));
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_FALSE(decode_->adopted.contains(1));
  ExpectAllReturned();
  decode_->failed.clear();
  prefill_->faults->set_script(nullptr);
  prefill_->Start(1, kPrompt, Reserve(1));
  loop_.RunDue();
  EXPECT_THAT(Result(1), IsOk());
  EXPECT_TRUE(decode_->HoldsKv(1));
  ExpectAllReturned();
}

TEST_F(HandoffFaultTest, APushOfWhatWindowsHavePassedIsRefused) {
  layout_ = Windows();
  StartDecode();
  StartPrefill();
  ASSERT_THAT(prefill_->Begin(1, kPrompt, Reserve(1)), IsOk());
  const auto& job = prefill_->jobs.at(1);
  ASSERT_THAT(prefill_->sender->Push(job.handoff, 1, 0, job.lease.group(1)), IsOk());
  loop_.RunDue();
  EXPECT_THAT(decode_->failed.at(1), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_TRUE(prefill_->jobs.at(1).result.has_value());
  ExpectAllReturned();
}

// One side keeps windows, the other the whole context: refused at the handshake, for every request.
TEST_F(HandoffFaultTest, OtherWindowsAreRefusedNamingBoth) {
  StartDecode();
  layout_ = Windows();
  StartPrefill();
  prefill_->Start(1, kPrompt, Reserve(1));
  loop_.RunDue();
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kFailedPrecondition,
                                  AllOf(HasSubstr("sender has a window of 20 in layer 1"),
                                        HasSubstr("receiver has all tokens"))));
}

TEST_F(HandoffFaultTest, AHeldPrefixIsNotSent) {
  StartDecode();
  StartPrefill();
  auto grant = decode_->Reserve(1, 40, absl::Seconds(30), FirstTokens(32));
  ASSERT_THAT(grant, IsOk());
  prefill_->Start(1, 40, *grant);
  loop_.RunDue();
  ASSERT_THAT(Result(1), IsOk());
  EXPECT_TRUE(decode_->HoldsKv(1, /*first_block=*/2));
  EXPECT_FALSE(decode_->HoldsKv(1, /*first_block=*/1)) << "a held block was overwritten";
}

// A hash has said that decode holds the prompt's beginning, and has erred.
TEST_F(HandoffFaultTest, APromptThatDoesNotBeginAsTheHeldPrefixIsNotAdopted) {
  StartDecode();
  StartPrefill();
  std::vector<TokenId> held = FirstTokens(32);
  held[31] = 99;
  auto grant = decode_->Reserve(1, 40, absl::Seconds(30), held);
  ASSERT_THAT(grant, IsOk());
  prefill_->Start(1, 40, *grant);
  loop_.RunDue();
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kAborted, HasSubstr("differs in token 31")));
  EXPECT_THAT(decode_->failed.at(1), StatusIs(absl::StatusCode::kAborted));
  EXPECT_TRUE(decode_->adopted.empty());
  EXPECT_EQ(decode_->pool.free_blocks(), decode_->pool.capacity_blocks());
  EXPECT_THAT(decode_->registry.Render(), HasSubstr("lynx_kv_transfer_prefix_mismatches_total 1"));
}

// Decode frees A's blocks at once and gives them to B, while A's bytes are still on the wire.
TEST_F(HandoffFaultTest, ALateWriteOfACancelledSequenceDoesNotTouchTheBlocksNewOwner) {
  StartDecode(/*blocks=*/3);
  StartPrefill();
  prefill_->faults->set_script([](int, const proto::TransferHeader& header) {
    TransferFault fault;
    if (header.has_kv_push()) fault = {TransferFault::kDelayInNet, absl::Seconds(5)};
    return fault;
  });
  prefill_->Start(1, kPrompt, Reserve(1));
  loop_.Advance(absl::Milliseconds(500));
  decode_->receiver->Cancel(1);
  prefill_->sender->Abort(prefill_->jobs.at(1).handoff, "client left");
  EXPECT_EQ(decode_->pool.free_blocks(), 3) << "cancelled blocks return at once";

  prefill_->faults->set_script(nullptr);
  prefill_->Start(2, kPrompt, Reserve(2));
  loop_.RunDue();
  ASSERT_THAT(Result(2), IsOk());
  EXPECT_TRUE(decode_->HoldsKv(2));
  loop_.Advance(absl::Seconds(10));  // A's bytes arrive.
  EXPECT_TRUE(decode_->HoldsKv(2)) << "A's late bytes overwrote B's";
  EXPECT_FALSE(decode_->adopted.contains(1));
  EXPECT_THAT(decode_->registry.Render(),
              Not(HasSubstr("lynx_kv_transfer_dropped_total{reason=\"unknown_grant\"} 0\n")));
  ExpectAllReturned();
}

// The transport still reads A's blocks when A is aborted: prefill must not free them before.
TEST_F(HandoffFaultTest, PrefillKeepsItsBlocksUntilTheTransportHasLetGoOfThem) {
  StartDecode();
  StartPrefill(/*blocks=*/3);
  // Connected beforehand, so that the pushes go out at once.
  prefill_->Start(1, kPrompt, Reserve(1));
  loop_.RunDue();
  ASSERT_THAT(Result(1), IsOk());
  Inject(proto::TransferHeader::kKvPush, 1, {TransferFault::kDelay, absl::Milliseconds(600)});
  prefill_->Start(2, kPrompt, Reserve(2));
  loop_.RunDue();
  prefill_->sender->Abort(prefill_->jobs.at(2).handoff, "client left");
  loop_.Advance(absl::Milliseconds(500));
  EXPECT_EQ(prefill_->pool.free_blocks(), 0) << "freed under the transport's reads";
  EXPECT_FALSE(prefill_->jobs.at(2).result.has_value());
  loop_.Advance(absl::Milliseconds(200));
  EXPECT_THAT(Result(2), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(prefill_->pool.free_blocks(), 3);
  decode_->receiver->Cancel(2);
  ExpectAllReturned();
}

// A send that never ends is ended by force, and the connection is made anew for the next one.
TEST_F(HandoffFaultTest, AHungTransferEndsByItsDeadlineAndTheNextOneWorks) {
  StartDecode();
  StartPrefill();
  Inject(proto::TransferHeader::kKvPush, 1, {TransferFault::kHang, {}});
  ASSERT_THAT(prefill_->Begin(1, kPrompt, Reserve(1), /*deadline=*/absl::Seconds(5)), IsOk());
  for (int32_t layer : {0, 1, 2}) ASSERT_THAT(prefill_->PushLayer(1, layer, 0), IsOk());
  loop_.Advance(absl::Seconds(4));
  EXPECT_FALSE(prefill_->jobs.at(1).result.has_value());
  loop_.Advance(absl::Seconds(2));
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(prefill_->pool.free_blocks(), prefill_->pool.capacity_blocks());

  // The router hands the same sequence out again, under the fenced grant.
  const proto::GrantInfo again = Reserve(1);
  EXPECT_EQ(again.epoch(), 2u);
  prefill_->Start(1, kPrompt, again);
  loop_.RunDue();
  EXPECT_THAT(Result(1), IsOk());
  EXPECT_TRUE(decode_->HoldsKv(1));
  ExpectAllReturned();
}

TEST_F(HandoffFaultTest, FiveHundredAbortedHandoffsLeaveNothingBehind) {
  StartDecode(/*blocks=*/8);
  StartPrefill(/*blocks=*/8);
  for (uint64_t i = 1; i <= 500; ++i) {
    SCOPED_TRACE(i);
    // The completion never comes: the commit is lost, or one push is, or the answer is.
    const TransferFault lose = {i % 2 == 0 ? TransferFault::kLose : TransferFault::kFail, {}};
    Inject(i % 3 == 0 ? proto::TransferHeader::kCommit : proto::TransferHeader::kKvPush,
           static_cast<int>(i % 3), lose);
    decode_->faults->set_script([i](int, const proto::TransferHeader& header) {
      TransferFault fault;
      if (i % 5 == 0 && header.has_commit_reply()) fault.kind = TransferFault::kLose;
      return fault;
    });
    prefill_->Start(i, kPrompt, Reserve(i, kPrompt, absl::Seconds(3)), absl::Seconds(3));
    loop_.Advance(absl::Milliseconds(100));
    if (i % 4 == 0) decode_->receiver->Cancel(i);
    if (i % 7 == 0) prefill_->sender->Abort(prefill_->jobs.at(i).handoff, "client left");
    loop_.Advance(absl::Seconds(5));
    ASSERT_EQ(prefill_->jobs.at(i).results, 1);
    ASSERT_FALSE(decode_->adopted.contains(i));
    ASSERT_EQ(decode_->pool.free_blocks(), 8);
    ASSERT_EQ(prefill_->pool.free_blocks(), 8);
  }
  ExpectAllReturned();
}

TEST_F(HandoffFaultTest, DamagedOrMissingKvIsNeverAdopted) {
  struct Case {
    const char* name;
    proto::TransferHeader::BodyCase kind;
    int n;
    TransferFault fault;
    absl::StatusCode prefill;
    absl::StatusCode decode;
  };
  const auto push = proto::TransferHeader::kKvPush;
  const auto commit = proto::TransferHeader::kCommit;
  const auto loss = absl::StatusCode::kDataLoss;
  for (const Case& c : {
           Case{"flipped bit", push, 1, {TransferFault::kCorrupt, {}, 1234}, loss, loss},
           Case{"flipped bit in the last push", push, 2, {TransferFault::kCorrupt}, loss, loss},
           Case{"success without bytes", push, 0, {TransferFault::kLose}, loss, loss},
           Case{"damaged commit", commit, 0, {TransferFault::kCorrupt, {}, 3}, loss, loss},
       }) {
    SCOPED_TRACE(c.name);
    prefill_.reset();
    StartDecode();
    StartPrefill();
    Inject(c.kind, c.n, c.fault);
    prefill_->Start(1, kPrompt, Reserve(1));
    loop_.Advance(absl::Seconds(3));
    EXPECT_THAT(Result(1), StatusIs(c.prefill));
    ASSERT_TRUE(decode_->failed.contains(1));
    EXPECT_THAT(decode_->failed.at(1), StatusIs(c.decode));
    EXPECT_TRUE(decode_->adopted.empty());
    ExpectAllReturned();

    // The same pair goes on: the fault was the transfer's, not the connection's.
    prefill_->Start(2, kPrompt, Reserve(2));
    loop_.Advance(absl::Seconds(3));
    EXPECT_THAT(Result(2), IsOk());
    EXPECT_TRUE(decode_->HoldsKv(2));
  }
}

TEST_F(HandoffFaultTest, AFailedSendFailsItsHandoffAndVoidsTheEpoch) {
  StartDecode();
  StartPrefill();
  Inject(proto::TransferHeader::kKvPush, 1, {TransferFault::kFail});
  prefill_->Start(1, kPrompt, Reserve(1));
  loop_.Advance(absl::Seconds(1));
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(decode_->adopted.empty());
  const proto::GrantInfo again = Reserve(1);
  EXPECT_EQ(again.epoch(), 2u);
  prefill_->Start(1, kPrompt, again);
  loop_.RunDue();
  EXPECT_TRUE(decode_->HoldsKv(1));
  ExpectAllReturned();
}

TEST_F(HandoffFaultTest, ALostConnectionFailsEveryHandoffOnItAndIsMadeAnew) {
  StartDecode(/*blocks=*/32);
  StartPrefill();
  Inject(proto::TransferHeader::kKvPush, 4, {TransferFault::kBreak});
  for (uint64_t i = 1; i <= 3; ++i) prefill_->Start(i, kPrompt, Reserve(i));
  loop_.Advance(absl::Seconds(1));
  int lost = 0;
  for (uint64_t i = 1; i <= 3; ++i) {
    if (Result(i).ok()) continue;
    EXPECT_THAT(Result(i), StatusIs(absl::StatusCode::kUnavailable));
    ++lost;
    if (decode_->adopted.contains(i)) continue;  // Only the answer was lost.
    prefill_->Start(i, kPrompt, Reserve(i));
  }
  EXPECT_GE(lost, 1);
  loop_.Advance(absl::Seconds(1));
  for (uint64_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(decode_->adopted.contains(i));
    EXPECT_TRUE(decode_->HoldsKv(i));
  }
  ExpectAllReturned();
}

TEST_F(HandoffFaultTest, OvertakenAndRepeatedMessagesAreHarmless) {
  for (const TransferFault::Kind kind : {TransferFault::kDelayInNet, TransferFault::kDuplicate}) {
    for (int n = 0; n < 3; ++n) {
      SCOPED_TRACE(::testing::Message() << "kind " << kind << ", push " << n);
      prefill_.reset();
      StartDecode();
      StartPrefill();
      Inject(proto::TransferHeader::kKvPush, n, {kind, absl::Milliseconds(300)});
      prefill_->Start(1, kPrompt, Reserve(1));
      loop_.Advance(absl::Seconds(2));
      EXPECT_THAT(Result(1), IsOk());
      EXPECT_TRUE(decode_->HoldsKv(1));
      ExpectAllReturned();
    }
  }
  prefill_.reset();
  StartDecode();
  StartPrefill();
  Inject(proto::TransferHeader::kCommit, 0, {TransferFault::kDuplicate});
  prefill_->Start(1, kPrompt, Reserve(1));
  loop_.Advance(absl::Seconds(2));
  EXPECT_THAT(Result(1), IsOk());
  ExpectAllReturned();
}

TEST_F(HandoffFaultTest, ACommitAfterCancelIsAnsweredAborted) {
  StartDecode();
  StartPrefill();
  Inject(proto::TransferHeader::kCommit, 0, {TransferFault::kDelay, absl::Seconds(1)});
  prefill_->Start(1, kPrompt, Reserve(1));
  loop_.Advance(absl::Milliseconds(500));
  decode_->receiver->Cancel(1);
  decode_->receiver->Cancel(1);  // Idempotent.
  loop_.Advance(absl::Seconds(2));
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kAborted));
  EXPECT_TRUE(decode_->adopted.empty());
  EXPECT_TRUE(decode_->failed.empty()) << "Cancel has no callback";
  ExpectAllReturned();
}

// The first try's commit must not complete the second try.
TEST_F(HandoffFaultTest, MessagesOfAFencedEpochDoNotCountInTheNext) {
  StartDecode();
  StartPrefill();
  Inject(proto::TransferHeader::kCommit, 0, {TransferFault::kDelayInNet, absl::Seconds(1)});
  prefill_->Start(1, kPrompt, Reserve(1));
  loop_.RunDue();
  prefill_->sender->Abort(prefill_->jobs.at(1).handoff, "try again");
  loop_.RunDue();
  const proto::GrantInfo again = Reserve(1);
  ASSERT_EQ(again.epoch(), 2u);
  ASSERT_THAT(prefill_->Begin(1, kPrompt, again), IsOk());
  for (int32_t layer : {0, 1, 2}) ASSERT_THAT(prefill_->PushLayer(1, layer, 0), IsOk());
  loop_.Advance(absl::Seconds(5));
  EXPECT_FALSE(decode_->adopted.contains(1));
  EXPECT_FALSE(prefill_->jobs.at(1).result.has_value()) << Result(1);
  EXPECT_THAT(decode_->registry.Render(),
              HasSubstr("lynx_kv_transfer_dropped_total{reason=\"stale_epoch\"} 1"));
  ASSERT_THAT(prefill_->Commit(1, kPrompt), IsOk());
  loop_.RunDue();
  EXPECT_THAT(Result(1), IsOk());
  EXPECT_TRUE(decode_->HoldsKv(1));
  ExpectAllReturned();
}

TEST_F(HandoffFaultTest, AGrantWithoutDataDiesWithItsLeaseUnlessExtended) {
  StartDecode();
  StartPrefill();
  Reserve(1, kPrompt, absl::Seconds(2));
  Reserve(2, kPrompt, absl::Seconds(2));
  loop_.Advance(absl::Seconds(1));
  decode_->receiver->Extend(1, absl::Seconds(60));
  decode_->receiver->Extend(99, absl::Seconds(60));  // Unknown.
  loop_.Advance(absl::Seconds(2));
  EXPECT_THAT(decode_->failed.at(2), StatusIs(absl::StatusCode::kDeadlineExceeded));
  loop_.Advance(absl::Seconds(50));
  EXPECT_FALSE(decode_->failed.contains(1));
  loop_.Advance(absl::Seconds(20));
  EXPECT_TRUE(decode_->failed.contains(1));
  ExpectAllReturned();
}

TEST_F(HandoffFaultTest, ANewPrefillNodeTakesAGrantOverFromAFrozenOne) {
  StartDecode();
  StartPrefill();
  auto second = std::make_unique<PrefillNode>(TestIdentity(0x9f), Engine("prefill-2"), loop_, 16);
  const proto::GrantInfo grant = Reserve(1);
  Inject(proto::TransferHeader::kKvPush, 1, {TransferFault::kDelay, absl::Seconds(3)});
  prefill_->Start(1, kPrompt, grant);
  loop_.Advance(absl::Milliseconds(100));
  second->Start(1, kPrompt, grant);
  loop_.Advance(absl::Seconds(5));
  EXPECT_THAT(*second->jobs.at(1).result, IsOk());
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kAborted));
  EXPECT_TRUE(decode_->HoldsKv(1));
  ExpectAllReturned();
}

TEST_F(HandoffFaultTest, ADecodeNodeRestartedAtTheSameAddressIsANewPeer) {
  StartPrefill();
  for (uint64_t round = 1; round <= 10; ++round) {
    SCOPED_TRACE(round);
    StartDecode(/*blocks=*/16, /*incarnation=*/0xd0 + round);
    const proto::GrantInfo grant = Reserve(round);
    prefill_->Start(round, kPrompt, grant);
    loop_.Advance(absl::Milliseconds(10));
    ASSERT_THAT(Result(round), IsOk());
    EXPECT_TRUE(decode_->HoldsKv(round));
    EXPECT_LE(prefill_->sender->peers(), 1u);

    // A grant of the former self reaches nobody.
    StartDecode(/*blocks=*/16, /*incarnation=*/0x1d0 + round);
    prefill_->Start(1000 + round, kPrompt, grant);
    loop_.Advance(absl::Seconds(1));
    EXPECT_THAT(Result(1000 + round), StatusIs(absl::StatusCode::kUnavailable));
    ExpectAllReturned();
  }
}

TEST_F(HandoffFaultTest, ARestartedPrefillNodeIsANewPeer) {
  StartDecode(/*blocks=*/64);
  for (uint64_t round = 1; round <= 10; ++round) {
    SCOPED_TRACE(round);
    prefill_.reset();
    StartPrefill(/*blocks=*/16, /*incarnation=*/0x900 + round);
    prefill_->Start(round, kPrompt, Reserve(round));
    loop_.Advance(absl::Milliseconds(10));
    ASSERT_THAT(Result(round), IsOk());
    EXPECT_EQ(decode_->receiver->peers(), 1u);
  }
}

TEST_F(HandoffFaultTest, MismatchesAreRefusedAtTheHandshakeNamingBothValues) {
  using Change = void (*)(transfer::NodeIdentity&);
  struct Case {
    const char* name;
    Change change;
    std::string ours;
    std::string theirs;
  };
  const Case cases[] = {
      {"KV layout",
       [](auto& id) {
         id.layout = TestIdentity(0x9e, {.kind = kv::KvKind::kLatent,
                                         .layers = 3,
                                         .kv_heads = 1,
                                         .head_dim = 32,
                                         .dtype = DType::kF32})
                         .layout;
       },
       "2 heads of 8", "latents of 32"},
      {"dtype", [](auto& id) { id.layout.set_dtype("bf16"); }, "f32", "bf16"},
      {"layers", [](auto& id) { id.layout.set_layers(5); }, "3", "5"},
      {"block_tokens", [](auto& id) { id.layout.set_block_tokens(32); }, "16", "32"},
      {"head_dim", [](auto& id) { id.layout.set_head_dim(64); }, "8", "64"},
      {"kv_heads_total", [](auto& id) { id.layout.set_kv_heads_total(4); }, "2", "4"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    prefill_.reset();
    StartDecode();
    transfer::NodeIdentity identity = TestIdentity(0x9e);
    c.change(identity);
    prefill_ = std::make_unique<PrefillNode>(identity, Engine("prefill"), loop_, 16);
    prefill_->Start(1, kPrompt, Reserve(1));
    loop_.Advance(absl::Seconds(1));
    EXPECT_THAT(Result(1),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(c.name), HasSubstr(c.ours), HasSubstr(c.theirs))));
    EXPECT_TRUE(decode_->adopted.empty());
    decode_->receiver->Cancel(1);
    ExpectAllReturned();
  }
}

TEST_F(HandoffFaultTest, AnotherModelIsRefusedBeforeAnythingIsSent) {
  StartDecode();
  StartPrefill();
  proto::GrantInfo grant = Reserve(1);
  grant.set_compatibility_hash("model-b");
  prefill_->Start(1, kPrompt, grant);
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kFailedPrecondition,
                                  AllOf(HasSubstr("model-a"), HasSubstr("model-b"))));
  EXPECT_EQ(prefill_->faults->sent(), 0);
}

TEST_F(HandoffFaultTest, SwappedRolesAreRefused) {
  StartPrefill();
  auto other = std::make_unique<PrefillNode>(TestIdentity(0x9f), Engine("prefill-2"), loop_, 16);
  proto::GrantInfo grant;
  grant.set_grant_id(1);
  grant.set_decode_incarnation(0x9f);
  grant.set_epoch(1);
  grant.set_transfer_address("prefill-2");
  grant.set_blocks(3);
  grant.set_compatibility_hash("model-a");
  prefill_->Start(1, kPrompt, grant);
  loop_.Advance(absl::Seconds(1));
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kFailedPrecondition,
                                  AllOf(HasSubstr("decode"), HasSubstr("prefill"))));
}

TEST_F(HandoffFaultTest, ADamagedSelfTestPatternEndsTheConnection) {
  StartDecode();
  StartPrefill();
  Inject(proto::TransferHeader::kHandshake, 0, {TransferFault::kCorrupt, {}, 77});
  prefill_->Start(1, kPrompt, Reserve(1));
  loop_.Advance(absl::Seconds(1));
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(decode_->receiver->peers(), 0u);
  prefill_->Start(2, kPrompt, Reserve(2));
  loop_.Advance(absl::Seconds(1));
  EXPECT_THAT(Result(2), IsOk());
}

TEST_F(HandoffFaultTest, AnUnansweredHandshakeIsUnavailableWithinItsTimeout) {
  StartDecode();
  StartPrefill();
  Inject(proto::TransferHeader::kHandshake, 0, {TransferFault::kLose});
  prefill_->Start(1, kPrompt, Reserve(1));
  loop_.Advance(absl::Seconds(6));
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("handshake")));
  EXPECT_EQ(prefill_->sender->peers(), 0u);
}

TEST_F(HandoffFaultTest, NobodyAtTheAddressIsUnavailable) {
  StartDecode();
  StartPrefill();
  const proto::GrantInfo grant = Reserve(1);
  decode_.reset();
  prefill_->Start(1, kPrompt, grant);
  loop_.Advance(absl::Seconds(1));
  EXPECT_THAT(Result(1), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(prefill_->pool.free_blocks(), prefill_->pool.capacity_blocks());
}

TEST_F(HandoffFaultTest, BytesInFlightStayWithinTheCredit) {
  const int64_t block = kTestLayout.BlockLayerBytes();
  StartDecode(/*blocks=*/64, 0xd0, {.credit_bytes = 4 * block});
  StartPrefill();
  int64_t in_flight = 0;
  int64_t most = 0;
  prefill_->faults->set_script([&](int, const proto::TransferHeader& header) {
    if (!header.has_kv_push()) return TransferFault();
    const int64_t bytes = block * header.kv_push().checksums_size();
    in_flight += bytes;
    most = std::max(most, in_flight);
    loop_.RunAfter(absl::Milliseconds(10), [&in_flight, bytes] { in_flight -= bytes; });
    return TransferFault{TransferFault::kDelay, absl::Milliseconds(10)};
  });
  for (uint64_t i = 1; i <= 4; ++i) prefill_->Start(i, 200, Reserve(i, 200));
  loop_.Advance(absl::Seconds(20));
  for (uint64_t i = 1; i <= 4; ++i) EXPECT_TRUE(decode_->HoldsKv(i));
  EXPECT_LE(most, 4 * block);
  EXPECT_GT(most, 0);
  ExpectAllReturned();
}

// Random faults at both ends, random cancels and aborts, against the contract: exactly one result a
// hand-off, adopted bytes are right, an OK means adopted, nothing is left.
TEST_F(HandoffFaultTest, RandomFaultsNeverBreakTheContract) {
  int adopted_ok = 0;
  int tried_again = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    prefill_.reset();
    layout_ = seed % 2 == 0 ? Windows() : kTestLayout;
    const int32_t groups = layout_.groups.count();
    StartDecode(/*blocks=*/24 * groups, 0xd0 + seed, {.credit_bytes = 1 << 16});
    StartPrefill(/*blocks=*/24 * groups, 0x9e + seed, {.max_message_bytes = 8 << 10});
    const auto script = [&rng](int, const proto::TransferHeader& header) {
      TransferFault fault;
      switch (rng() % 60) {
        case 0:
          fault = {TransferFault::kDelay, absl::Milliseconds(rng() % 2000)};
          break;
        case 1:
          fault = {TransferFault::kDelayInNet, absl::Milliseconds(rng() % 3000)};
          break;
        case 2:
          fault = {TransferFault::kLose};
          break;
        case 3:
          fault = {TransferFault::kCorrupt, {}, rng()};
          break;
        case 4:
          fault = {TransferFault::kDuplicate};
          break;
        case 5:
          fault = {TransferFault::kFail};
          break;
        case 6:
          if (header.has_kv_push()) fault = {TransferFault::kHang};
          break;
        case 7:
          fault = {TransferFault::kBreak};
          break;
        default:
          break;
      }
      return fault;
    };
    prefill_->faults->set_script(script);
    decode_->faults->set_script(script);
    std::set<uint64_t> cancelled;
    for (uint64_t i = 1; i <= 40; ++i) {
      const int32_t prompt = static_cast<int32_t>(1 + rng() % 100);
      auto grant = decode_->Reserve(i, prompt, absl::Seconds(4));
      if (grant.ok() && prefill_->pool.free_blocks() >= kv::BlocksFor(prompt) * groups) {
        prefill_->Start(i, prompt, *grant, absl::Milliseconds(500 + rng() % 4000));
      } else if (grant.ok()) {
        decode_->receiver->Cancel(i);
        cancelled.insert(i);
      }
      loop_.Advance(absl::Milliseconds(rng() % 300));
      const uint64_t victim = 1 + rng() % i;
      if (rng() % 6 == 0 && decode_->receiver->FindGrant(victim)) {
        decode_->receiver->Cancel(victim);
        cancelled.insert(victim);
      }
      if (rng() % 6 == 0 && prefill_->jobs.contains(victim)) {
        prefill_->sender->Abort(prefill_->jobs.at(victim).handoff, "client left");
      }
      // What failed is tried again under the grant's next epoch while messages of the former one
      // may be under way.
      if (rng() % 2 == 0) {
        for (const auto& [sequence, job] : prefill_->jobs) {
          const auto again = decode_->receiver->FindGrant(sequence);
          if (!again || !job.result.has_value() || again->epoch() == job.epoch) continue;
          if (again->epoch() > DecodeNode::kMostEpochs ||
              prefill_->pool.free_blocks() < kv::BlocksFor(job.prompt_tokens) * groups) {
            continue;
          }
          prefill_->Start(sequence, job.prompt_tokens, *again,
                          absl::Milliseconds(500 + rng() % 4000));
          ++tried_again;
          break;
        }
      }
      for (auto it = decode_->adopted.begin(); it != decode_->adopted.end();) {
        ASSERT_TRUE(decode_->HoldsKv(it->first)) << "sequence " << it->first;
        // Kept a while, so that late bytes can hit it.
        it = rng() % 4 == 0 ? decode_->adopted.erase(it) : std::next(it);
      }
    }
    loop_.Advance(absl::Seconds(20));
    for (const auto& [sequence, job] : prefill_->jobs) {
      ASSERT_LE(job.results, 1);
      ASSERT_TRUE(job.result.has_value()) << "sequence " << sequence << " has no result";
      adopted_ok += job.result->ok();
    }
    for (const auto& [sequence, one] : decode_->adopted) {
      ASSERT_TRUE(decode_->HoldsKv(sequence));
      ASSERT_FALSE(decode_->failed.contains(sequence));
      ASSERT_FALSE(cancelled.contains(sequence));
    }
    ExpectAllReturned();
  }
  EXPECT_GT(adopted_ok, 200) << "the faults left nothing to test";
  EXPECT_GT(tried_again, 100) << "hardly a grant has a second epoch";
}

}  // namespace
}  // namespace lynx::testing
