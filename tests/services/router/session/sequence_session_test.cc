#include "services/router/session/sequence_session.h"

#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::router {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Effects = SequenceSession::Effects;
using Refused = proto::Refused;
using Terminal = proto::Terminal;

constexpr NodeId kDecode = 20;
constexpr NodeId kPrefill = 10;
constexpr uint64_t kWire = 77;

class SequenceSessionTest : public ::testing::Test {
 protected:
  SequenceSessionTest() { Make(); }
  void Make(absl::Duration deadline = absl::InfiniteDuration(), int max_new_tokens = 8) {
    SequenceRequest request;
    request.prompt = {1, 2, 3};
    request.sampling.set_max_new_tokens(max_new_tokens);
    request.deadline = clock_.Now() + deadline;
    session_ = std::make_unique<SequenceSession>(std::move(request), options_, clock_.Now());
  }
  absl::Time Now() const { return clock_.Now(); }

  void ToReserving() { session_->OnReserveSent(kDecode, kWire, Now()); }
  Effects Grant(NodeId from = kDecode, int32_t held_prefix_tokens = 0) {
    proto::GrantInfo grant;
    grant.set_grant_id(5);
    grant.set_held_prefix_tokens(held_prefix_tokens);
    return session_->OnGranted(from, grant, Now());
  }
  void ToPrefilling() {
    ToReserving();
    ASSERT_TRUE(Grant().place_prefill);
    session_->OnPrefillSent(kPrefill, Now());
  }
  Effects First(int id = 100, NodeId from = kPrefill, uint32_t position = 0) {
    first_.Clear();  // Outlives the effects, which may point into it.
    first_.mutable_token()->set_id(id);
    first_.set_position(position);
    return session_->OnFirstToken(from, first_, Now());
  }
  void ToDecoding() {
    ToPrefilling();
    ASSERT_TRUE(First().first.has_value());
  }
  void To(SequenceState state) {
    if (state == SequenceState::kReserving) ToReserving();
    if (state == SequenceState::kPrefilling) ToPrefilling();
    if (state == SequenceState::kDecoding) ToDecoding();
    ASSERT_EQ(session_->state(), state);
  }
  Effects Refuse(NodeId from, Refused::Reason reason) {
    Refused refused;
    refused.set_reason(reason);
    refused.set_message("because");
    return session_->OnRefused(from, refused, Now());
  }
  // Tokens 100 + position, as decode sends them; the ids that came out.
  std::vector<int> Tokens(uint32_t position, int count, NodeId from = kDecode) {
    entry_.Clear();  // Outlives the effects, which point into it.
    entry_.set_position(position);
    for (int i = 0; i < count; ++i) {
      entry_.add_tokens()->set_id(static_cast<int>(position) + 100 + i);
    }
    last_ = session_->OnTokens(from, entry_, Now());
    return Ids(last_);
  }
  static std::vector<int> Ids(const Effects& effects) {
    std::vector<int> ids;
    for (const proto::Token* token : effects.tokens) ids.push_back(token->id());
    return ids;
  }
  Effects Say(NodeId from, Terminal::Kind kind,
              Terminal::FinishReason reason = Terminal::FINISH_REASON_UNSPECIFIED,
              uint32_t output_tokens = 0) {
    Terminal terminal;
    terminal.set_kind(kind);
    terminal.set_finish_reason(reason);
    terminal.set_output_tokens(output_tokens);
    if (kind == Terminal::KIND_FAILED) {
      terminal.set_status_code(static_cast<uint32_t>(code_));
      terminal.set_message("checksum");
    }
    return session_->OnTerminal(from, terminal, Now());
  }
  Effects Late(absl::Duration by) {
    clock_.Advance(by);
    return session_->OnDeadline(absl::ResourceExhaustedError("no room"), Now());
  }
  static std::vector<NodeId> Cancelled(const Effects& effects) {
    std::vector<NodeId> nodes;
    for (const Effects::Message& message : effects.cancels) {
      EXPECT_EQ(message.wire_id, kWire);
      nodes.push_back(message.node);
    }
    return nodes;
  }
  void ExpectRetry(const Effects& effects, RetryStage stage, RetryReason reason) {
    EXPECT_TRUE(effects.requeue);
    EXPECT_FALSE(effects.end.has_value());
    ASSERT_TRUE(effects.retry.has_value());
    EXPECT_STREQ(Name(effects.retry->first), Name(stage));
    EXPECT_STREQ(Name(effects.retry->second), Name(reason));
    ExpectNoAttempt(SequenceState::kQueued);
  }
  void ExpectEnd(const Effects& effects, absl::StatusCode code) {
    EXPECT_FALSE(effects.requeue);
    ASSERT_TRUE(effects.end.has_value());
    EXPECT_EQ(effects.end->status.code(), code) << effects.end->status;
    ExpectNoAttempt(SequenceState::kDone);
  }
  void ExpectNoAttempt(SequenceState state) {
    EXPECT_STREQ(Name(session_->state()), Name(state));
    EXPECT_EQ(session_->wire_id(), 0u);
    EXPECT_EQ(session_->decode(), 0u);
    EXPECT_EQ(session_->prefill(), 0u);
  }

  ManualClock clock_;
  SequenceSession::Options options_;
  std::unique_ptr<SequenceSession> session_;
  proto::TokenBatch::Entry entry_;
  proto::FirstToken first_;
  Effects last_;
  absl::StatusCode code_ = absl::StatusCode::kDataLoss;
};

TEST_F(SequenceSessionTest, RunsFromQueueToEnd) {
  EXPECT_EQ(session_->state(), SequenceState::kQueued);
  ToReserving();
  EXPECT_TRUE(Grant().place_prefill);
  session_->OnPrefillSent(kPrefill, Now());
  EXPECT_EQ(session_->grant().grant_id(), 5u);
  EXPECT_EQ(First().first->token().id(), 100);
  EXPECT_FALSE(Say(kPrefill, Terminal::KIND_HANDED_OFF).ignored);
  EXPECT_THAT(Tokens(1, 2), ElementsAre(101, 102));
  EXPECT_THAT(Tokens(3, 1), ElementsAre(103));
  const Effects effects = Say(kDecode, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_LENGTH, 4);
  ExpectEnd(effects, absl::StatusCode::kOk);
  EXPECT_EQ(effects.end->finish_reason, Terminal::FINISH_REASON_LENGTH);
  EXPECT_THAT(effects.cancels, IsEmpty());
  EXPECT_THAT(session_->output(), ElementsAre(100, 101, 102, 103));
  EXPECT_EQ(session_->deadline(), absl::InfiniteFuture());
}

TEST_F(SequenceSessionTest, AGrantCountsOnceAndOnlyFromTheNodeAsked) {
  EXPECT_TRUE(Grant().ignored) << "queued: nothing was asked";
  ToReserving();
  EXPECT_TRUE(Grant(kDecode + 1).ignored);
  EXPECT_TRUE(Grant().place_prefill);
  session_->OnPrefillSent(kPrefill, Now());
  EXPECT_TRUE(Grant().ignored) << "doubled";
  ASSERT_TRUE(First().first.has_value());
  EXPECT_TRUE(Grant().ignored);
}

TEST_F(SequenceSessionTest, WithoutAPrefillNodeTheGrantIsGivenBackAndTheSequenceWaits) {
  ToReserving();
  Grant();
  const Effects effects = session_->OnNoPrefill(Now());
  EXPECT_TRUE(effects.requeue);
  EXPECT_FALSE(effects.retry.has_value());
  EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode));
  ExpectNoAttempt(SequenceState::kQueued);
}

TEST_F(SequenceSessionTest, DecodeThatCannotNowSendsTheSequenceElsewhere) {
  for (const auto reason :
       {Refused::REASON_BUSY, Refused::REASON_NOT_READY, Refused::REASON_TOO_LARGE}) {
    SCOPED_TRACE(reason);
    Make();
    ToReserving();
    const Effects effects = Refuse(kDecode, reason);
    EXPECT_TRUE(effects.requeue);
    EXPECT_FALSE(effects.retry.has_value()) << "waiting is no failure";
    EXPECT_THAT(effects.cancels, IsEmpty()) << "it holds nothing";
    ExpectNoAttempt(SequenceState::kQueued);
    EXPECT_EQ(session_->too_small().contains(kDecode), reason == Refused::REASON_TOO_LARGE);
  }
}

TEST_F(SequenceSessionTest, BusyNodesDoNotProlongTheQueueTimeout) {
  for (int i = 0; i < 3; ++i) {
    ToReserving();
    clock_.Advance(absl::Seconds(1));
    Refuse(kDecode, Refused::REASON_BUSY);
  }
  EXPECT_EQ(session_->deadline(), Now() + options_.queue_timeout - absl::Seconds(3));
  ExpectEnd(Late(options_.queue_timeout - absl::Seconds(3)), absl::StatusCode::kResourceExhausted);
}

TEST_F(SequenceSessionTest, RefusalsAreReadByReason) {
  ToReserving();
  EXPECT_TRUE(Refuse(kDecode, Refused::REASON_DUPLICATE).ignored);
  EXPECT_TRUE(Refuse(kPrefill, Refused::REASON_BUSY).ignored) << "not the node asked";
  ExpectRetry(Refuse(kDecode, Refused::REASON_UNSPECIFIED), RetryStage::kReserve,
              RetryReason::kRefused);
  Make();
  ToReserving();
  ExpectEnd(Refuse(kDecode, Refused::REASON_INVALID), absl::StatusCode::kInternal);
}

TEST_F(SequenceSessionTest, APrefillNodeThatRefusesLeavesTheGrantToAnother) {
  for (const auto reason : {Refused::REASON_BUSY, Refused::REASON_NOT_READY,
                            Refused::REASON_TOO_LARGE, Refused::REASON_INCOMPATIBLE}) {
    SCOPED_TRACE(reason);
    Make();
    ToPrefilling();
    EXPECT_TRUE(Refuse(kDecode, reason).ignored);
    const Effects effects = Refuse(kPrefill, reason);
    EXPECT_TRUE(effects.place_prefill);
    EXPECT_THAT(effects.cancels, IsEmpty());
    EXPECT_TRUE(session_->prefill_refused().contains(kPrefill));
    session_->OnPrefillSent(kPrefill + 1, Now());
    EXPECT_EQ(session_->wire_id(), kWire);
    EXPECT_TRUE(First(100, kPrefill).ignored) << "a late word of the first";
    EXPECT_TRUE(First(100, kPrefill + 1).first.has_value());
  }
}

TEST_F(SequenceSessionTest, AReplayedPrefillRefusedAsDuplicateHarmsNothing) {
  ToPrefilling();
  EXPECT_TRUE(Refuse(kPrefill, Refused::REASON_DUPLICATE).ignored);
  EXPECT_TRUE(First().first.has_value());
  EXPECT_TRUE(Refuse(kPrefill, Refused::REASON_DUPLICATE).ignored);
  EXPECT_TRUE(Refuse(kPrefill, Refused::REASON_BUSY).ignored) << "it has answered already";
}

TEST_F(SequenceSessionTest, AnInvalidPrefillIsOurBug) {
  ToPrefilling();
  const Effects effects = Refuse(kPrefill, Refused::REASON_INVALID);
  ExpectEnd(effects, absl::StatusCode::kInternal);
  EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode));
}

TEST_F(SequenceSessionTest, FirstTokenCountsOnceFromPrefillOnly) {
  EXPECT_TRUE(First().ignored);
  ToReserving();
  EXPECT_TRUE(First().ignored);
  Grant();
  session_->OnPrefillSent(kPrefill, Now());
  EXPECT_TRUE(First(100, kDecode).ignored);
  EXPECT_TRUE(First().first.has_value());
  EXPECT_TRUE(First().ignored);
  EXPECT_THAT(session_->output(), SizeIs(1));
}

TEST_F(SequenceSessionTest, TokensAreDeliveredOnceAndInOrder) {
  ToDecoding();
  EXPECT_THAT(Tokens(1, 2), ElementsAre(101, 102));
  EXPECT_THAT(Tokens(1, 2), IsEmpty());
  EXPECT_TRUE(last_.ignored) << "doubled";
  EXPECT_THAT(Tokens(2, 2), ElementsAre(103)) << "overlapping";
  EXPECT_THAT(Tokens(5, 1), IsEmpty()) << "token 4 is missing";
  EXPECT_FALSE(last_.ignored);
  EXPECT_THAT(Tokens(4, 1), ElementsAre(104, 105));
  EXPECT_THAT(Tokens(6, 1, kPrefill), IsEmpty()) << "not from prefill";
  EXPECT_THAT(Tokens(0, 1), IsEmpty()) << "the first token is prefill's to tell";
  EXPECT_THAT(Tokens(6, 5), ElementsAre(106, 107)) << "max_new_tokens is 8";
  EXPECT_THAT(Tokens(4000000000u, 1), IsEmpty());
}

TEST_F(SequenceSessionTest, DecodeMayBeFasterThanTheFirstToken) {
  ToPrefilling();
  EXPECT_THAT(Tokens(1, 1), IsEmpty());
  EXPECT_THAT(Tokens(2, 1), IsEmpty());
  EXPECT_FALSE(Say(kDecode, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_STOP, 4).end);
  const Effects effects = First();
  EXPECT_TRUE(effects.first.has_value());
  EXPECT_THAT(Ids(effects), ElementsAre(101, 102));
  ASSERT_TRUE(effects.end.has_value());
  EXPECT_TRUE(effects.end->status.ok());
  EXPECT_THAT(effects.cancels, IsEmpty());
}

TEST_F(SequenceSessionTest, AHoleThatStaysIsNeverSkipped) {
  ToDecoding();
  Tokens(1, 1);
  Tokens(3, 1);
  EXPECT_FALSE(Late(options_.gap_timeout - absl::Milliseconds(1)).end);
  options_.max_retries = 0;
  const Effects effects = Late(absl::Milliseconds(1));
  ExpectEnd(effects, absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(effects.end->status.message()), HasSubstr("token 2"));
  EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode));
}

// The hashes that decode found it by may have lied.
TEST_F(SequenceSessionTest, WithoutTheHeldPrefixThatMayBeAtFaultItStartsOver) {
  const auto to_decoding = [&](int32_t held) {
    ToReserving();
    ASSERT_TRUE(Grant(kDecode, held).place_prefill);
    session_->OnPrefillSent(kPrefill, Now());
    First();
    ASSERT_EQ(session_->state(), SequenceState::kDecoding);
  };
  code_ = absl::StatusCode::kAborted;
  to_decoding(16);
  EXPECT_TRUE(session_->share_prefix());
  ExpectRetry(Say(kDecode, Terminal::KIND_FAILED), RetryStage::kHandoff, RetryReason::kNodeError);
  EXPECT_FALSE(session_->share_prefix());

  Make();
  to_decoding(16);
  Say(kPrefill, Terminal::KIND_FAILED);
  EXPECT_EQ(session_->state(), SequenceState::kQueued) << "prefill's word of it will do";
  EXPECT_FALSE(session_->share_prefix());

  Make();
  to_decoding(16);
  Tokens(1, 1);
  ExpectRetry(Say(kDecode, Terminal::KIND_FAILED), RetryStage::kDecode, RetryReason::kNodeError);
  EXPECT_TRUE(session_->share_prefix()) << "decode went on from it";
}

TEST_F(SequenceSessionTest, AClosedHoleIsForgotten) {
  ToDecoding();
  Tokens(2, 1);
  clock_.Advance(absl::Seconds(1));
  Tokens(1, 1);
  EXPECT_EQ(session_->deadline(), Now() + options_.token_timeout);
}

TEST_F(SequenceSessionTest, ALostLastBatchIsNoSuccess) {
  ToDecoding();
  Tokens(1, 1);
  EXPECT_FALSE(Say(kDecode, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_LENGTH, 3).end);
  ExpectRetry(Late(options_.gap_timeout), RetryStage::kDecode, RetryReason::kLostMessage);
}

// All that was asked for is there: losing the last word about it costs nothing.
TEST_F(SequenceSessionTest, AWholeAnswerNeedsNoLastWord) {
  const auto whole = [&](absl::Duration deadline = absl::InfiniteDuration()) {
    Make(deadline, /*max_new_tokens=*/3);
    ToDecoding();
    Tokens(1, 2);
    EXPECT_FALSE(last_.end.has_value()) << "the last word is decode's";
  };
  const auto expect_length = [&](const Effects& effects) {
    ExpectEnd(effects, absl::StatusCode::kOk);
    EXPECT_EQ(effects.end->finish_reason, Terminal::FINISH_REASON_LENGTH);
  };
  whole();
  expect_length(session_->OnNodeGone(kDecode, "died", Now()));
  whole();
  expect_length(Say(kDecode, Terminal::KIND_FAILED));
  whole();
  const Effects late = Late(options_.gap_timeout);
  expect_length(late);
  EXPECT_THAT(Cancelled(late), ElementsAre(kDecode)) << "it may not know yet that it is done";
  whole(absl::Seconds(1));
  expect_length(Late(absl::Seconds(1)));

  // One token that prefill gave.
  Make(absl::InfiniteDuration(), 1);
  ToDecoding();
  EXPECT_FALSE(session_->OnNodeGone(kPrefill, "died", Now()).end.has_value());
  expect_length(Late(options_.gap_timeout));

  // One token less is not whole: it may have been about to go on.
  Make(absl::InfiniteDuration(), 3);
  ToDecoding();
  Tokens(1, 1);
  ExpectRetry(session_->OnNodeGone(kDecode, "died", Now()), RetryStage::kDecode,
              RetryReason::kNodeGone);
}

TEST_F(SequenceSessionTest, ALateLastBatchEndsTheSequence) {
  ToDecoding();
  EXPECT_FALSE(Say(kDecode, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_LENGTH, 3).end);
  session_->OnNodeGone(kDecode, "went after its last word", Now());
  EXPECT_EQ(session_->state(), SequenceState::kDecoding);
  Make();
  ToDecoding();
  EXPECT_FALSE(Say(kDecode, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_LENGTH, 3).end);
  EXPECT_THAT(Tokens(1, 2), ElementsAre(101, 102));
  ASSERT_TRUE(last_.end.has_value());
  EXPECT_TRUE(last_.end->status.ok());
}

TEST_F(SequenceSessionTest, AFirstTokenThatFinishesCancelsTheGrant) {
  ToDecoding();
  Effects effects = Say(kPrefill, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_LENGTH, 1);
  ExpectEnd(effects, absl::StatusCode::kOk);
  EXPECT_EQ(effects.end->finish_reason, Terminal::FINISH_REASON_LENGTH);
  EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode));

  // A stop id is counted but not sent.
  Make();
  ToPrefilling();
  EXPECT_TRUE(session_->OnFirstToken(kPrefill, proto::FirstToken(), Now()).first.has_value());
  effects = Say(kPrefill, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_STOP, 1);
  ExpectEnd(effects, absl::StatusCode::kOk);
  EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode));
  EXPECT_THAT(session_->output(), IsEmpty());
}

TEST_F(SequenceSessionTest, PrefillsLastWordWaitsForALostFirstToken) {
  for (const auto kind : {Terminal::KIND_FINISHED, Terminal::KIND_HANDED_OFF}) {
    Make();
    ToPrefilling();
    EXPECT_FALSE(Say(kPrefill, kind, Terminal::FINISH_REASON_STOP, 1).end);
    const Effects effects = Late(options_.gap_timeout);
    ExpectRetry(effects, RetryStage::kHandoff, RetryReason::kLostMessage);
    EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode));
  }
}

TEST_F(SequenceSessionTest, PrefillFailureBeforeTheFirstTokenStartsOver) {
  for (const auto kind : {Terminal::KIND_FAILED, Terminal::KIND_CANCELLED}) {
    Make();
    ToPrefilling();
    const Effects effects = Say(kPrefill, kind);
    ExpectRetry(effects, RetryStage::kPrefill, RetryReason::kNodeError);
    EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode));
    EXPECT_TRUE(session_->avoid().contains(kPrefill));
  }
}

TEST_F(SequenceSessionTest, PrefillFailureAfterTheFirstTokenIsATryLessUnlessDecodeSpeaks) {
  ToDecoding();
  const Effects effects = Say(kPrefill, Terminal::KIND_FAILED);
  ExpectRetry(effects, RetryStage::kPrefill, RetryReason::kNodeError);
  EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode));

  Make();
  ToDecoding();
  Tokens(1, 1);
  EXPECT_TRUE(Say(kPrefill, Terminal::KIND_FAILED).ignored);
  EXPECT_THAT(Tokens(2, 1), ElementsAre(102));
}

TEST_F(SequenceSessionTest, DecodeFailureStartsOverInEveryState) {
  ToReserving();
  ExpectRetry(Say(kDecode, Terminal::KIND_FAILED), RetryStage::kReserve, RetryReason::kNodeError);
  Make();
  ToPrefilling();
  const Effects effects = Say(kDecode, Terminal::KIND_FAILED);
  ExpectRetry(effects, RetryStage::kHandoff, RetryReason::kNodeError);
  EXPECT_THAT(Cancelled(effects), ElementsAre(kPrefill));
  Make();
  ToDecoding();
  ExpectRetry(Say(kDecode, Terminal::KIND_FAILED), RetryStage::kHandoff, RetryReason::kNodeError);
  Make();
  ToDecoding();
  Tokens(1, 1);
  ExpectRetry(Say(kDecode, Terminal::KIND_FAILED), RetryStage::kDecode, RetryReason::kNodeError);
  Make();
  ToReserving();
  ExpectRetry(Say(kDecode, Terminal::KIND_FINISHED), RetryStage::kReserve, RetryReason::kNodeError);
}

TEST_F(SequenceSessionTest, AFailureThatEveryNodeWouldRepeatIsNotTriedAgain) {
  code_ = absl::StatusCode::kInvalidArgument;
  ToPrefilling();
  ExpectEnd(Say(kPrefill, Terminal::KIND_FAILED), absl::StatusCode::kInvalidArgument);
  options_.max_retries = 0;
  code_ = static_cast<absl::StatusCode>(99);
  Make();
  ToDecoding();
  ExpectEnd(Say(kDecode, Terminal::KIND_FAILED), absl::StatusCode::kInternal);
  code_ = absl::StatusCode::kOk;
  Make();
  ToDecoding();
  ExpectEnd(Say(kDecode, Terminal::KIND_FAILED), absl::StatusCode::kInternal);
}

TEST_F(SequenceSessionTest, WordsOfUninvolvedNodesAreIgnored) {
  for (const auto state : {SequenceState::kQueued, SequenceState::kReserving,
                           SequenceState::kPrefilling, SequenceState::kDecoding}) {
    SCOPED_TRACE(Name(state));
    Make();
    To(state);
    EXPECT_TRUE(Say(99, Terminal::KIND_FAILED).ignored);
    EXPECT_TRUE(Say(99, Terminal::KIND_FINISHED).ignored);
    EXPECT_TRUE(Say(kDecode, Terminal::KIND_HANDED_OFF).ignored);
    EXPECT_TRUE(Say(kDecode, Terminal::KIND_UNSPECIFIED).ignored);
    EXPECT_THAT(Tokens(1, 1, 99), IsEmpty());
    const Effects effects = session_->OnNodeGone(99, "died", Now());
    EXPECT_FALSE(effects.end || effects.requeue);
    EXPECT_EQ(session_->state(), state);
  }
}

TEST_F(SequenceSessionTest, VanishedDecodeInEveryState) {
  To(SequenceState::kQueued);
  session_->OnNodeGone(kDecode, "died", Now());
  EXPECT_EQ(session_->state(), SequenceState::kQueued);

  ToReserving();
  Effects effects = session_->OnNodeGone(kDecode, "died", Now());
  ExpectRetry(effects, RetryStage::kReserve, RetryReason::kNodeGone);
  EXPECT_THAT(effects.cancels, IsEmpty());

  Make();
  ToPrefilling();
  effects = session_->OnNodeGone(kDecode, "died", Now());
  ExpectRetry(effects, RetryStage::kHandoff, RetryReason::kNodeGone);
  EXPECT_THAT(Cancelled(effects), ElementsAre(kPrefill));

  Make();
  ToDecoding();
  effects = session_->OnNodeGone(kDecode, "died", Now());
  ExpectRetry(effects, RetryStage::kHandoff, RetryReason::kNodeGone);
  EXPECT_THAT(Cancelled(effects), ElementsAre(kPrefill)) << "it may be handing off yet";

  Make();
  ToDecoding();
  Tokens(1, 1);
  effects = session_->OnNodeGone(kDecode, "died", Now());
  ExpectRetry(effects, RetryStage::kDecode, RetryReason::kNodeGone);
  EXPECT_THAT(effects.cancels, IsEmpty());

  options_.max_retries = 0;
  Make();
  ToDecoding();
  effects = session_->OnNodeGone(kDecode, "decode node d:1 died", Now());
  ExpectEnd(effects, absl::StatusCode::kUnavailable);
  EXPECT_EQ(effects.end->status.message(), "decode node d:1 died");
  EXPECT_FALSE(session_->OnNodeGone(kDecode, "died", Now()).end) << "one end only";
}

TEST_F(SequenceSessionTest, VanishedPrefillInEveryState) {
  ToReserving();
  session_->OnNodeGone(kPrefill, "died", Now());
  EXPECT_EQ(session_->state(), SequenceState::kReserving);

  Make();
  ToPrefilling();
  Effects effects = session_->OnNodeGone(kPrefill, "died", Now());
  ExpectRetry(effects, RetryStage::kPrefill, RetryReason::kNodeGone);
  EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode));

  // After the first token only decode knows whether the hand-off was complete.
  Make();
  ToDecoding();
  session_->OnNodeGone(kPrefill, "prefill node p:1 died", Now());
  EXPECT_EQ(session_->deadline(), Now() + options_.handoff_timeout);
  effects = Late(options_.handoff_timeout);
  ExpectRetry(effects, RetryStage::kHandoff, RetryReason::kNodeGone);
  EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode));

  Make();
  ToDecoding();
  session_->OnNodeGone(kPrefill, "died", Now());
  EXPECT_THAT(Tokens(1, 1), ElementsAre(101));
  EXPECT_EQ(session_->deadline(), Now() + options_.token_timeout);

  Make();
  ToDecoding();
  Say(kPrefill, Terminal::KIND_HANDED_OFF);
  session_->OnNodeGone(kPrefill, "died", Now());
  EXPECT_EQ(session_->deadline(), Now() + options_.token_timeout) << "its work was done";
}

TEST_F(SequenceSessionTest, EveryWaitEnds) {
  ExpectEnd(Late(options_.queue_timeout), absl::StatusCode::kResourceExhausted);

  Make();
  ToReserving();
  EXPECT_FALSE(Late(options_.reserve_timeout - absl::Milliseconds(1)).requeue);
  Effects effects = Late(absl::Milliseconds(1));
  ExpectRetry(effects, RetryStage::kReserve, RetryReason::kTimeout);
  EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode));
  EXPECT_TRUE(session_->avoid().contains(kDecode));

  Make();
  ToPrefilling();
  effects = Late(options_.first_token_timeout);
  ExpectRetry(effects, RetryStage::kPrefill, RetryReason::kTimeout);
  EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode, kPrefill));

  Make();
  ToDecoding();
  Tokens(1, 1);
  clock_.Advance(absl::Seconds(30));
  Tokens(2, 1);
  EXPECT_FALSE(Late(options_.token_timeout - absl::Milliseconds(1)).end) << "progress counts";
  effects = Late(absl::Milliseconds(1));
  ExpectRetry(effects, RetryStage::kDecode, RetryReason::kTimeout);
  EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode));
  EXPECT_TRUE(session_->avoid().contains(kDecode));

  effects = Late(options_.resume_timeout);
  ExpectEnd(effects, absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(effects.end->status.message()),
              AllOf(HasSubstr("sent no token"), HasSubstr("no room")));
}

TEST_F(SequenceSessionTest, TheRequestsDeadlineEndsEveryState) {
  for (const auto state : {SequenceState::kQueued, SequenceState::kReserving,
                           SequenceState::kPrefilling, SequenceState::kDecoding}) {
    SCOPED_TRACE(Name(state));
    Make(absl::Seconds(1));
    To(state);
    EXPECT_LE(session_->deadline(), Now() + absl::Seconds(1));
    ExpectEnd(Late(absl::Seconds(1)), absl::StatusCode::kDeadlineExceeded);
  }
}

TEST_F(SequenceSessionTest, CancelFreesBothSides) {
  const std::vector<NodeId> none;
  const std::vector<NodeId> decode = {kDecode};
  const std::vector<NodeId> both = {kDecode, kPrefill};
  for (const auto& [state, nodes] :
       {std::pair(SequenceState::kQueued, none), std::pair(SequenceState::kReserving, decode),
        std::pair(SequenceState::kPrefilling, both), std::pair(SequenceState::kDecoding, both)}) {
    SCOPED_TRACE(Name(state));
    Make();
    To(state);
    const Effects effects = session_->OnCancel();
    EXPECT_EQ(Cancelled(effects), nodes);
    EXPECT_FALSE(effects.end.has_value());
    ExpectNoAttempt(SequenceState::kDone);
    EXPECT_THAT(session_->OnCancel().cancels, IsEmpty());
  }
}

constexpr NodeId kOther = 21;
constexpr uint64_t kOtherWire = 78;

// The sequence is to move from kDecode to kOther, which tells it from its fifth token on.
class MoveTest : public SequenceSessionTest {
 protected:
  void ToAsking() {
    ToDecoding();
    ASSERT_THAT(Tokens(1, 1), ElementsAre(101));
    ASSERT_TRUE(session_->MayMove(6));
    session_->OnMoveReserveSent(kOther, kOtherWire, 6, Now());
    EXPECT_FALSE(session_->MayMove(6)) << "it does";
  }
  void ToMoving() {
    ToAsking();
    ASSERT_TRUE(Grant(kOther).hand_over);
    EXPECT_EQ(session_->move()->grant.grant_id(), 5u);
    session_->OnHandOffSent(/*sent=*/true, Now());
  }
  static void ExpectMove(const Effects& effects, MoveResult result) {
    ASSERT_TRUE(effects.moved.has_value());
    EXPECT_STREQ(Name(*effects.moved), Name(result));
  }
  void ExpectStays(const Effects& effects, MoveResult result) {
    ExpectMove(effects, result);
    EXPECT_FALSE(effects.requeue || effects.end.has_value());
    ASSERT_THAT(effects.cancels, SizeIs(1));
    EXPECT_EQ(effects.cancels[0].node, kOther);
    EXPECT_EQ(effects.cancels[0].wire_id, kOtherWire);
    EXPECT_EQ(session_->decode(), kDecode);
    EXPECT_EQ(session_->wire_id(), kWire);
    EXPECT_FALSE(session_->move().has_value());
    const auto next = static_cast<uint32_t>(session_->output().size());
    EXPECT_THAT(Tokens(next, 1), ElementsAre(static_cast<int>(next) + 100));
  }
  void ExpectMoved() {
    EXPECT_EQ(session_->decode(), kOther);
    EXPECT_EQ(session_->wire_id(), kOtherWire);
    EXPECT_FALSE(session_->move().has_value());
  }
};

TEST_F(MoveTest, GoesOnFromTheOtherNodeBehindThePlace) {
  ToMoving();
  EXPECT_EQ(session_->other_node(), kOther);
  EXPECT_EQ(session_->other_wire_id(), kOtherWire);
  EXPECT_THAT(Tokens(2, 2), ElementsAre(102, 103));
  ExpectMove(Say(kDecode, Terminal::KIND_HANDED_OFF), MoveResult::kMoved);
  ExpectMoved();
  EXPECT_EQ(session_->other_node(), 0u);
  clock_.Advance(absl::Milliseconds(30));
  EXPECT_THAT(Tokens(4, 1, kOther), ElementsAre(104));
  EXPECT_EQ(last_.move_pause, absl::Milliseconds(30));
  EXPECT_THAT(Tokens(5, 3, kOther), ElementsAre(105, 106, 107));
  EXPECT_FALSE(last_.move_pause.has_value()) << "once";
  ExpectEnd(Say(kOther, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_LENGTH, 8),
            absl::StatusCode::kOk);
}

TEST_F(MoveTest, TheOtherNodeMayBeFasterThanTheLastWordsOfTheFormer) {
  ToMoving();
  EXPECT_THAT(Tokens(4, 1, kOther), IsEmpty()) << "two are missing";
  ExpectMove(last_, MoveResult::kMoved);
  ExpectMoved();
  EXPECT_EQ(session_->other_node(), kDecode);
  EXPECT_EQ(session_->other_wire_id(), kWire);
  EXPECT_EQ(session_->deadline(), Now() + options_.gap_timeout);
  EXPECT_THAT(Tokens(2, 4), ElementsAre(102, 103, 104))
      << "what it tells past the place is not its";
  EXPECT_EQ(session_->other_node(), 0u);
  EXPECT_TRUE(Say(kDecode, Terminal::KIND_HANDED_OFF).ignored);
  EXPECT_THAT(Tokens(5, 1), IsEmpty());
  EXPECT_THAT(Tokens(5, 1, kOther), ElementsAre(105));
}

TEST_F(MoveTest, ALostTokenOfTheFormerNodeIsAHole) {
  ToMoving();
  EXPECT_THAT(Tokens(2, 1), ElementsAre(102));
  ExpectMove(Say(kDecode, Terminal::KIND_HANDED_OFF), MoveResult::kMoved);
  EXPECT_EQ(session_->deadline(), Now() + options_.gap_timeout);
  const Effects effects = Late(options_.gap_timeout);
  ExpectRetry(effects, RetryStage::kDecode, RetryReason::kLostMessage);
  ASSERT_THAT(effects.cancels, SizeIs(1));
  EXPECT_EQ(effects.cancels[0].node, kOther);
}

TEST_F(MoveTest, StaysWhereItIsWhenItCannotMove) {
  ToAsking();
  ExpectStays(Refuse(kOther, Refused::REASON_BUSY), MoveResult::kRefused);
  Make();
  ToAsking();
  ExpectStays(Late(options_.reserve_timeout), MoveResult::kTimeout);
  Make();
  ToAsking();
  ExpectStays(session_->OnNodeGone(kOther, "died", Now()), MoveResult::kLost);
  Make();
  ToAsking();
  ASSERT_TRUE(Grant(kOther).hand_over);
  ExpectStays(session_->OnHandOffSent(/*sent=*/false, Now()), MoveResult::kStayed);
  Make();
  ToMoving();
  ExpectStays(Refuse(kDecode, Refused::REASON_BUSY), MoveResult::kStayed);
  Make();
  ToMoving();
  EXPECT_TRUE(Refuse(kDecode, Refused::REASON_DUPLICATE).ignored);
  ExpectStays(Say(kOther, Terminal::KIND_FAILED), MoveResult::kLost);
  EXPECT_TRUE(session_->avoid().contains(kOther));
  Make();
  ToMoving();
  ExpectStays(Late(options_.move_timeout), MoveResult::kTimeout);
  Make();
  ToMoving();
  EXPECT_THAT(Tokens(2, 3), ElementsAre(102, 103, 104));
  ExpectMove(last_, MoveResult::kPassed);
  EXPECT_EQ(session_->decode(), kDecode);
}

TEST_F(MoveTest, AfterAMoveThatWasGivenUpHandedOffMeansThatItIsLost) {
  ToMoving();
  session_->OnNodeGone(kOther, "died", Now());
  const Effects effects = Say(kDecode, Terminal::KIND_HANDED_OFF);
  ExpectRetry(effects, RetryStage::kDecode, RetryReason::kTimeout);
  EXPECT_THAT(effects.cancels, IsEmpty());
}

TEST_F(MoveTest, WithItsNodeLostTheOtherMayHaveIt) {
  ToMoving();
  EXPECT_THAT(Tokens(2, 2), ElementsAre(102, 103));
  Effects effects = session_->OnNodeGone(kDecode, "died", Now());
  EXPECT_FALSE(effects.requeue);
  EXPECT_THAT(Tokens(4, 1, kOther), ElementsAre(104));
  ExpectMoved();

  Make();
  ToMoving();
  EXPECT_THAT(Tokens(2, 2), ElementsAre(102, 103));
  session_->OnNodeGone(kDecode, "died", Now());
  effects = Late(options_.handoff_timeout);
  ExpectRetry(effects, RetryStage::kDecode, RetryReason::kNodeGone);
  ASSERT_THAT(effects.cancels, SizeIs(1));
  EXPECT_EQ(effects.cancels[0].node, kOther);

  // It cannot have come to the place.
  Make();
  ToMoving();
  effects = session_->OnNodeGone(kDecode, "died", Now());
  ExpectRetry(effects, RetryStage::kDecode, RetryReason::kNodeGone);
  ExpectMove(effects, MoveResult::kEnded);
}

TEST_F(MoveTest, AnEndMeanwhileFreesTheOtherNode) {
  ToMoving();
  ExpectMove(session_->OnCancel(), MoveResult::kEnded);
  Make();
  ToAsking();
  Tokens(2, 1);
  const Effects effects = Say(kDecode, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_STOP, 4);
  ExpectEnd(effects, absl::StatusCode::kOk);
  ExpectMove(effects, MoveResult::kEnded);
  ASSERT_THAT(effects.cancels, SizeIs(1));
  EXPECT_EQ(effects.cancels[0].node, kOther);
}

TEST_F(MoveTest, OnlyWhatDecodesAndHasRoomForIt) {
  EXPECT_FALSE(session_->MayMove(6));
  ToPrefilling();
  EXPECT_FALSE(session_->MayMove(6));
  ASSERT_TRUE(First().first.has_value());
  EXPECT_FALSE(session_->MayMove(6)) << "prefill may be handing it off yet";
  Tokens(1, 1);
  EXPECT_FALSE(session_->MayMove(4)) << "the KV of as many, and a token more, is there already";
  EXPECT_TRUE(session_->MayMove(5));
  EXPECT_TRUE(session_->MayMove(9));
  EXPECT_FALSE(session_->MayMove(10)) << "the other node would have nothing left to do";
}

// The decode node computes the prompt.
class LocalPrefillTest : public SequenceSessionTest {
 protected:
  void ToLocal() {
    ToReserving();
    ASSERT_TRUE(Grant().place_prefill);
    session_->OnPrefillSent(kDecode, Now());
    ASSERT_TRUE(session_->local());
  }
};

TEST_F(LocalPrefillTest, TheNodeThatPrefillsGoesOnByItself) {
  ToLocal();
  EXPECT_TRUE(First(100, kDecode).first.has_value());
  EXPECT_THAT(Tokens(1, 2), ElementsAre(101, 102));
  const Effects end =
      Say(kDecode, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_LENGTH, /*output_tokens=*/3);
  ASSERT_TRUE(end.end.has_value());
  EXPECT_TRUE(end.end->status.ok());
  EXPECT_THAT(end.cancels, IsEmpty());
}

TEST_F(LocalPrefillTest, AnAnswerOfOneTokenIsCancelledNowhere) {
  Make(absl::InfiniteDuration(), /*max_new_tokens=*/1);
  ToLocal();
  First(100, kDecode);
  const Effects end =
      Say(kDecode, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_LENGTH, /*output_tokens=*/1);
  ASSERT_TRUE(end.end.has_value());
  EXPECT_THAT(end.cancels, IsEmpty());
}

TEST_F(LocalPrefillTest, IsCancelledOnce) {
  ToLocal();
  EXPECT_THAT(Cancelled(session_->OnCancel()), ElementsAre(kDecode));
}

TEST_F(LocalPrefillTest, ANodeThatRefusesThePromptKeepsItsGrant) {
  ToLocal();
  const Effects effects = Refuse(kDecode, Refused::REASON_BUSY);
  EXPECT_TRUE(effects.place_prefill);
  EXPECT_THAT(session_->prefill_refused(), ElementsAre(kDecode));
  session_->OnPrefillSent(kPrefill, Now());
  EXPECT_TRUE(First(100, kPrefill).first.has_value());
}

TEST_F(LocalPrefillTest, BeforeTheFirstTokenAFailureIsRetried) {
  ToLocal();
  code_ = absl::StatusCode::kDeadlineExceeded;
  const Effects failed = Say(kDecode, Terminal::KIND_FAILED);
  EXPECT_THAT(failed.cancels, IsEmpty()) << "it has nothing of ours any more";
  ExpectRetry(failed, RetryStage::kPrefill, RetryReason::kNodeError);
  ToLocal();
  const Effects gone = session_->OnNodeGone(kDecode, "died", Now());
  EXPECT_THAT(gone.cancels, IsEmpty());
  ExpectRetry(gone, RetryStage::kPrefill, RetryReason::kNodeGone);
}

TEST_F(LocalPrefillTest, AfterTheFirstTokenAFailureIsNotIgnored) {
  ToLocal();
  First(100, kDecode);
  Tokens(1, 1);
  code_ = absl::StatusCode::kInternal;
  ExpectRetry(Say(kDecode, Terminal::KIND_FAILED), RetryStage::kDecode, RetryReason::kNodeError);
}

TEST_F(SequenceSessionTest, RetriesAreCounted) {
  for (int i = 0; i < options_.max_retries; ++i) {
    ToReserving();
    ExpectRetry(session_->OnNodeGone(kDecode, "died", Now()), RetryStage::kReserve,
                RetryReason::kNodeGone);
    clock_.Advance(absl::Seconds(10));
  }
  EXPECT_EQ(session_->deadline(), Now() + options_.queue_timeout - absl::Seconds(10))
      << "each retry may wait for a node anew";
  ToReserving();
  ExpectEnd(session_->OnNodeGone(kDecode, "died", Now()), absl::StatusCode::kUnavailable);
}

TEST_F(SequenceSessionTest, ARetryStartsFromNothing) {
  ToPrefilling();
  Tokens(1, 3);
  Say(kDecode, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_LENGTH, 4);
  ExpectRetry(Late(options_.gap_timeout), RetryStage::kHandoff, RetryReason::kLostMessage);
  ToPrefilling();
  const Effects effects = First();
  EXPECT_THAT(effects.tokens, IsEmpty());
  EXPECT_FALSE(effects.end.has_value());
  EXPECT_THAT(Tokens(1, 1), ElementsAre(101));
}

// An attempt that breaks off after tokens were delivered, and the one that goes on behind them.
class ResumeTest : public SequenceSessionTest {
 protected:
  // Four tokens are delivered.
  Effects Break() {
    ToDecoding();
    Tokens(1, 3);
    return session_->OnNodeGone(kDecode, "decode node d:1 died", Now());
  }
  void ToPrefillingAgain() {
    session_->OnReserveSent(kDecode + 1, kWire, Now());
    ASSERT_TRUE(Grant(kDecode + 1).place_prefill);
    session_->OnPrefillSent(kPrefill + 1, Now());
  }
  Effects FirstAgain(int id = 104, uint32_t position = 4) {
    return First(id, kPrefill + 1, position);
  }
};

TEST_F(ResumeTest, GoesOnBehindWhatWasDelivered) {
  EXPECT_FALSE(Break().resumed.has_value());
  EXPECT_TRUE(session_->broken());
  EXPECT_EQ(session_->known_tokens(), 7) << "three of the prompt, four of the answer";
  clock_.Advance(absl::Seconds(3));
  ToPrefillingAgain();
  Effects effects = FirstAgain();
  EXPECT_FALSE(effects.first.has_value()) << "it had its first token";
  EXPECT_THAT(Ids(effects), ElementsAre(104));
  EXPECT_EQ(effects.resumed, absl::Seconds(3));
  EXPECT_FALSE(session_->broken());
  EXPECT_THAT(Tokens(5, 2, kDecode + 1), ElementsAre(105, 106));
  EXPECT_FALSE(last_.resumed.has_value()) << "once";
  EXPECT_THAT(last_.worked, ElementsAre(kPrefill + 1, kDecode + 1));
  effects = Say(kDecode + 1, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_STOP, 8);
  ExpectEnd(effects, absl::StatusCode::kOk);
  EXPECT_THAT(session_->output(), ElementsAre(100, 101, 102, 103, 104, 105, 106));
}

TEST_F(ResumeTest, DropsWhatTheFormerNodesStillSay) {
  Break();
  EXPECT_THAT(Tokens(4, 1), IsEmpty());
  EXPECT_TRUE(last_.ignored);
  EXPECT_TRUE(Say(kDecode, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_LENGTH, 5).ignored);
  ToPrefillingAgain();
  EXPECT_THAT(Tokens(4, 1), IsEmpty());
  EXPECT_TRUE(last_.ignored);
  EXPECT_TRUE(First(104, kPrefill, 4).ignored);
  EXPECT_TRUE(Say(kPrefill, Terminal::KIND_FAILED).ignored);
  EXPECT_THAT(Ids(FirstAgain()), ElementsAre(104));
}

// Places are those in the answer, whoever names them.
TEST_F(ResumeTest, TakesNoTokenTwiceAndNoneThatIsNotItsTurn) {
  Break();
  ToPrefillingAgain();
  EXPECT_THAT(Tokens(0, 5, kDecode + 1), IsEmpty()) << "delivered, or prefill's to tell";
  EXPECT_TRUE(last_.ignored);
  EXPECT_THAT(Tokens(5, 1, kDecode + 1), IsEmpty());
  EXPECT_FALSE(last_.ignored) << "held";
  EXPECT_THAT(Ids(FirstAgain()), ElementsAre(104, 105));
}

// As one does that knows nothing of resuming.
TEST_F(ResumeTest, APrefillNodeThatTellsAnotherTokenIsNotBelieved) {
  Break();
  ToPrefillingAgain();
  const Effects effects = FirstAgain(100, 0);
  EXPECT_THAT(effects.tokens, IsEmpty());
  ExpectRetry(effects, RetryStage::kPrefill, RetryReason::kNodeError);
  EXPECT_EQ(effects.failed, kPrefill + 1);
  EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode + 1, kPrefill + 1));
  EXPECT_TRUE(session_->broken());
}

TEST_F(ResumeTest, ALostLastWordIsSaidAgain) {
  ToDecoding();
  Tokens(1, 3);
  session_->OnNodeGone(kDecode, "died with its last word", Now());
  ToPrefillingAgain();
  first_.Clear();
  first_.set_position(4);
  EXPECT_TRUE(session_->OnFirstToken(kPrefill + 1, first_, Now()).resumed.has_value());
  const Effects effects =
      Say(kPrefill + 1, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_STOP, 5);
  ExpectEnd(effects, absl::StatusCode::kOk);
  EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode + 1));
}

// An answer without a token: that it begins is told once.
TEST_F(ResumeTest, AnAnswerThatStoppedAtOnceStopsAgain) {
  ToPrefilling();
  EXPECT_TRUE(session_->OnFirstToken(kPrefill, proto::FirstToken(), Now()).first.has_value());
  ExpectRetry(session_->OnNodeGone(kDecode, "died", Now()), RetryStage::kHandoff,
              RetryReason::kNodeGone);
  ToPrefilling();
  EXPECT_FALSE(session_->OnFirstToken(kPrefill, proto::FirstToken(), Now()).first.has_value());
  ExpectEnd(Say(kPrefill, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_STOP, 1),
            absl::StatusCode::kOk);
}

TEST_F(ResumeTest, WaitsForNodesItsOwnTimeAndSaysWhyItEnds) {
  options_.queue_timeout = absl::Seconds(1);
  options_.resume_timeout = absl::Seconds(20);
  Break();
  EXPECT_FALSE(Late(absl::Seconds(20) - absl::Milliseconds(1)).end.has_value());
  const Effects effects = Late(absl::Milliseconds(1));
  ExpectEnd(effects, absl::StatusCode::kUnavailable);
  EXPECT_EQ(effects.end->status.message(),
            "decode node d:1 died, and no other node went on: no room");
}

TEST_F(ResumeTest, ProgressForgivesRetries) {
  options_.max_retries = 1;
  options_.forgive_tokens = 3;
  Make(absl::InfiniteDuration(), /*max_new_tokens=*/100);
  ToDecoding();
  session_->OnNodeGone(kDecode, "died", Now());
  EXPECT_EQ(session_->retries(), 1);
  ToPrefillingAgain();
  FirstAgain(101, 1);
  Tokens(2, 1, kDecode + 1);
  EXPECT_EQ(session_->retries(), 1);
  Tokens(3, 1, kDecode + 1);
  EXPECT_EQ(session_->retries(), 0);
  ExpectRetry(session_->OnNodeGone(kDecode + 1, "died", Now()), RetryStage::kDecode,
              RetryReason::kNodeGone);
  ToPrefillingAgain();
  FirstAgain(104, 4);
  ExpectEnd(session_->OnNodeGone(kDecode + 1, "died", Now()), absl::StatusCode::kUnavailable);
}

TEST_F(ResumeTest, BlamesWhoeverDidNotDoItsPart) {
  ToReserving();
  EXPECT_EQ(Late(options_.reserve_timeout).failed, kDecode);
  Make();
  ToPrefilling();
  EXPECT_EQ(Late(options_.first_token_timeout).failed, kPrefill);
  Make();
  ToDecoding();
  EXPECT_EQ(Late(options_.token_timeout).failed, kDecode);
  Make();
  ToDecoding();
  EXPECT_EQ(Say(kDecode, Terminal::KIND_FAILED).failed, kDecode);
  code_ = absl::StatusCode::kUnavailable;  // May be its peer's fault.
  Make();
  ToPrefilling();
  EXPECT_EQ(Say(kPrefill, Terminal::KIND_FAILED).failed, 0u);
  Make();
  ToPrefilling();
  EXPECT_EQ(session_->OnNodeGone(kPrefill, "died", Now()).failed, 0u);
}

// Only decode nodes give the answer's tokens the bits that they had.
class RepeatTest : public SequenceSessionTest {
 protected:
  // The attempt before the first token; nodes are `n` further on.
  void ToPrefillingAt(NodeId n) {
    session_->OnReserveSent(kDecode + n, kWire, Now(), /*repeats=*/true);
    ASSERT_TRUE(Grant(kDecode + n).place_prefill);
    session_->OnPrefillSent(kPrefill + n, Now());
  }
  // Four tokens are delivered.
  Effects Break() {
    ToPrefillingAt(0);
    First();
    Tokens(1, 3);
    return session_->OnNodeGone(kDecode, "decode node d:1 died", Now());
  }
  Effects FirstAgain(int id = 100) { return First(id, kPrefill + 1, 0); }
  void ExpectDiffers(const Effects& effects, const std::string& how) {
    ExpectEnd(effects, absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(effects.end->status.message()),
                AllOf(HasSubstr("decode node d:1 died"), HasSubstr(how)));
    EXPECT_THAT(effects.tokens, IsEmpty());
    EXPECT_FALSE(effects.resumed.has_value());
    EXPECT_THAT(session_->output(), ElementsAre(100, 101, 102, 103));
  }
};

TEST_F(RepeatTest, SwallowsWhatWasDeliveredAndGoesOnBehindIt) {
  ToPrefillingAt(0);
  EXPECT_FALSE(session_->repeats()) << "nothing has begun";
  session_->OnNodeGone(kDecode, "died", Now());
  ExpectRetry(Break(), RetryStage::kDecode, RetryReason::kNodeGone);
  EXPECT_TRUE(session_->repeats());
  EXPECT_EQ(session_->known_tokens(), 3) << "the prompt";
  EXPECT_THAT(session_->given(), IsEmpty());
  clock_.Advance(absl::Seconds(3));
  ToPrefillingAt(1);
  Effects effects = FirstAgain();
  EXPECT_FALSE(effects.first.has_value());
  EXPECT_THAT(effects.tokens, IsEmpty());
  EXPECT_FALSE(effects.resumed.has_value());
  EXPECT_THAT(Tokens(1, 2, kDecode + 1), IsEmpty());
  EXPECT_FALSE(last_.ignored);
  EXPECT_THAT(Tokens(1, 2, kDecode + 1), IsEmpty());
  EXPECT_TRUE(last_.ignored) << "a message that came twice";
  EXPECT_TRUE(session_->broken());
  EXPECT_EQ(session_->deadline(), Now() + options_.token_timeout);
  clock_.Advance(absl::Seconds(2));
  EXPECT_THAT(Tokens(3, 3, kDecode + 1), ElementsAre(104, 105));
  EXPECT_EQ(last_.resumed, absl::Seconds(5)) << "from the break to something new";
  EXPECT_FALSE(session_->broken());
  EXPECT_THAT(Tokens(6, 1, kDecode + 1), ElementsAre(106));
  EXPECT_FALSE(last_.resumed.has_value()) << "once";
  ExpectEnd(Say(kDecode + 1, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_STOP, 8),
            absl::StatusCode::kOk);
  EXPECT_THAT(session_->output(), ElementsAre(100, 101, 102, 103, 104, 105, 106));
}

TEST_F(RepeatTest, TakesTokensInOrderWheneverTheyCome) {
  Break();
  ToPrefillingAt(1);
  EXPECT_THAT(Tokens(4, 1, kDecode + 1), IsEmpty());
  EXPECT_THAT(Tokens(1, 2, kDecode + 1), IsEmpty());
  FirstAgain();
  EXPECT_EQ(session_->deadline(), Now() + options_.gap_timeout) << "token 3 is missing";
  EXPECT_THAT(Tokens(3, 1, kDecode + 1), ElementsAre(104));
  EXPECT_EQ(session_->deadline(), Now() + options_.token_timeout);
}

TEST_F(RepeatTest, ATokenThatIsLostWhileItIsRepeatedIsNamed) {
  options_.max_retries = 1;
  Break();
  ToPrefillingAt(1);
  FirstAgain();
  Tokens(2, 1, kDecode + 1);
  const Effects effects = Late(options_.gap_timeout);
  ExpectEnd(effects, absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(effects.end->status.message()), HasSubstr("token 1 of"));
}

TEST_F(RepeatTest, AnotherTokenThanWasDeliveredEndsIt) {
  Break();
  ToPrefillingAt(1);
  Effects effects = FirstAgain(99);
  ExpectDiffers(effects, "token 0 is now 99");
  EXPECT_THAT(Cancelled(effects), ElementsAre(kDecode + 1, kPrefill + 1));

  for (const bool held : {false, true}) {
    SCOPED_TRACE(held);
    Make();
    Break();
    ToPrefillingAt(1);
    if (!held) FirstAgain();
    entry_.Clear();
    entry_.set_position(1);
    for (int id : {101, 102, 7, 104, 105}) entry_.add_tokens()->set_id(id);
    effects = session_->OnTokens(kDecode + 1, entry_, Now());
    if (held) effects = FirstAgain();
    ExpectDiffers(effects, "token 3 is now 7");
    EXPECT_EQ(Cancelled(effects).front(), kDecode + 1);
    EXPECT_THAT(Tokens(4, 1, kDecode + 1), IsEmpty());
    EXPECT_TRUE(last_.ignored);
  }
}

TEST_F(RepeatTest, AnEndBeforeWhatWasDeliveredEndsIt) {
  Break();
  ToPrefillingAt(1);
  FirstAgain();
  Tokens(1, 2, kDecode + 1);
  ExpectDiffers(Say(kDecode + 1, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_STOP, 4),
                "ends before token 3");
  Make();
  Break();
  ToPrefillingAt(1);
  session_->OnFirstToken(kPrefill + 1, proto::FirstToken(), Now());
  ExpectDiffers(Say(kPrefill + 1, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_STOP, 1),
                "ends before token 0");
}

TEST_F(RepeatTest, ALostLastWordIsSaidAgain) {
  Break();
  ToPrefillingAt(1);
  FirstAgain();
  Tokens(1, 3, kDecode + 1);
  EXPECT_TRUE(session_->broken()) << "nothing new yet";
  const Effects effects =
      Say(kDecode + 1, Terminal::KIND_FINISHED, Terminal::FINISH_REASON_STOP, 5);
  ExpectEnd(effects, absl::StatusCode::kOk);
  EXPECT_TRUE(effects.resumed.has_value());
}

TEST_F(RepeatTest, WhatIsRepeatedIsNoProgress) {
  options_.max_retries = 2;
  options_.forgive_tokens = 3;
  Break();
  for (NodeId n = 1; n <= 2; ++n) {
    EXPECT_EQ(session_->retries(), static_cast<int>(n));
    ToPrefillingAt(n);
    First(100, kPrefill + n, 0);
    EXPECT_THAT(Tokens(1, 3, kDecode + n), IsEmpty());
    clock_.Advance(absl::Seconds(1));
    const Effects effects = session_->OnNodeGone(kDecode + n, "died too", Now());
    if (n == 1) {
      ExpectRetry(effects, RetryStage::kDecode, RetryReason::kNodeGone);
    } else {
      ExpectEnd(effects, absl::StatusCode::kUnavailable);
    }
  }
}

// It began with other bits, so that nobody could repeat it.
TEST_F(RepeatTest, WhatBeganElsewhereIsNotRepeated) {
  ToDecoding();
  session_->OnNodeGone(kDecode, "died", Now());
  ToPrefillingAt(1);
  EXPECT_FALSE(session_->repeats());
  EXPECT_THAT(Ids(First(101, kPrefill + 1, 1)), ElementsAre(101));
}

}  // namespace
}  // namespace lynx::router
