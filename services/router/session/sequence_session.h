#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/router/membership/node_table.h"
#include "services/router/session/sequence_service.h"

namespace lynx::router {

enum class SequenceState : uint8_t { kQueued, kReserving, kPrefilling, kDecoding, kDone };
const char* Name(SequenceState state);

// Which part of the work had to be done again, and why: label values of a counter.
enum class RetryStage : uint8_t { kReserve, kPrefill, kHandoff, kDecode };
enum class RetryReason : uint8_t { kNodeGone, kTimeout, kNodeError, kRefused, kLostMessage };
inline constexpr int kRetryStages = 4;
inline constexpr int kRetryReasons = 5;
const char* Name(RetryStage stage);
const char* Name(RetryReason reason);

// What became of a try to have a sequence handed to another decode node: label values, too.
enum class MoveResult : uint8_t {
  kMoved,
  kNoNode,   // No other node could take it.
  kRefused,  // The other node has no room after all.
  kPassed,   // It had more tokens than was asked for when its node heard of it.
  kStayed,   // Its node could not hand it over, and goes on.
  kLost,     // The other node failed or vanished.
  kTimeout,
  kEnded,  // Its answer ended, or broke off, first.
};
inline constexpr int kMoveResults = 8;
const char* Name(MoveResult result);

// The life of one sequence as a state machine. Pure: it is told what happened and when, and answers
// with what is to be done (Effects); it sends nothing, calls nobody and starts no timer.
//
// One try on one pair of nodes is an attempt, with a wire id of its own: a late word on an earlier
// attempt cannot be taken for one on the present attempt, even from the same node.
//
//   event              Queued     Reserving         Prefilling          Decoding
//   ReserveSent        Reserving  -                 -                   -
//   Granted            -          place prefill     ignore              ignore
//   PrefillSent        -          Prefilling        -                   -
//   NoPrefill          -          requeue           retry               -
//   decode refuses     -          requeue (1)       ignore              ignore
//   prefill refuses    -          -                 place prefill (2)   ignore
//   FirstToken         -          ignore            deliver, Decoding   ignore
//   tokens             -          ignore            hold                deliver in order; hold (3)
//   prefill finished   -          ignore            hold (4)            end; cancel decode
//   prefill handed off -          ignore            hold (4)            note it
//   prefill failed     -          ignore            retry               retry (6)
//   decode finished    -          retry             hold, then end      end when all tokens are in
//   decode failed      -          retry             retry               retry
//   another token than
//   was delivered (7)  -          -                 end                 end   (DataLoss)
//   prefill vanished   -          -                 retry               decode has handoff_timeout
//   decode vanished    -          retry             retry               retry
//   wait too long      end (5)    retry             retry               retry
//   hole too long (3)  -          -                 retry               retry
//   request deadline   end        end               end                 end   (DeadlineExceeded)
//   displaced          end        -                 -                   -
//   client cancels     Done       Done, silent; what was placed is cancelled on its nodes
//
//   (1) Busy and not ready say "not now, not there": back to the queue, which looks elsewhere. Too
//       large excludes the node for good. Duplicate answers a message that came twice: ignored.
//       Invalid is a bug of ours: fail.
//   (2) Another prefill node, with the same grant: nothing was begun with it. Duplicate and invalid
//       as (1).
//   (3) Nodes speak of different things over different connections, so decode's tokens may come
//       before prefill's FirstToken, and a lost message leaves a hole. Both wait gap_timeout.
//   (4) The FirstToken is missing then: as (3). So is decode's last word once max_new_tokens are
//       in; but then the answer is whole, and whatever would fail it from here on ends it well.
//   (5) What the caller of OnDeadline says; Unavailable once tokens were delivered.
//   (6) Ignored once decode speaks.
//   (7) Where an attempt repeats what was delivered; that it ends earlier is the same.
//
// Move: while it decodes, the sequence may be handed to another decode node, as it is when its own
// drains. Room for it is reserved there while it goes on here; then its node is asked to hand it
// over behind a token that both know (proto::HandOff), whose place says from whom each token is to
// come. Not moving, the sequence is as in the table; else also:
//
//   event              Reserving there      Handing over
//   granted there      hand it over         ignore
//   refused            stay                 here: stay; there: ignore
//   a token past it    stay                 here: stay; there: switch
//   handed off here    ignore               switch
//   failed, vanished   here: as it was      here: the other has handoff_timeout, if the place was
//                      there: stay          reached; there: stay
//   too long           stay                 stay; retry if its own node is lost
//
// stay: the other node is told to forget it, and nothing else changes. switch: the other node is
// its decode node from now on. Of the former one what it told up to the place still counts, which
// may come later; what it tells beyond does not, if it goes on because an answer was lost.
//
// Where the decode node computes the prompt, it is both nodes of the attempt: prefill's events are
// its own, and nothing is handed off.
//
// retry: the attempt is cancelled on both nodes and the sequence goes back to the queue, for other
// nodes when there are any, at most max_retries times; then it fails. The next attempt computes the
// prompt and what was delivered, and goes on behind it: the seed is part of the request and the
// place in the answer is the generator's key, so an exact answer is the one that it would have
// been. Its first token is prefill's to tell, whatever its place. Where decode held a prefix and
// had not spoken, that may have been at fault: the next attempt goes without (share_prefix). Who
// loses nodes again and again may be what kills them, so retries are counted over the whole
// sequence; but forgive_tokens of progress forgive one. fail: ends with the status that tells why.
// Every end that is not the nodes' own word cancels the attempt on both nodes.
//
// An exact answer whose tokens only decode nodes of one class give their bits (`repeats`) does not
// go on behind them: each further attempt begins with the prompt alone and repeats the answer, by
// the same generator. What was delivered is compared and swallowed: it is no progress, and the
// sequence is broken until something new comes. Should one token differ, the sequence fails.
//
// Not thread-safe.
class SequenceSession {
 public:
  struct Options {
    int max_retries = 3;
    size_t forgive_tokens = 256;
    absl::Duration queue_timeout = absl::Seconds(30);   // Until placed: at first, after a retry.
    absl::Duration resume_timeout = absl::Seconds(30);  // The same, once tokens were delivered.
    absl::Duration reserve_timeout = absl::Seconds(2);
    absl::Duration first_token_timeout = absl::Minutes(5);  // Prefill sent to first token.
    absl::Duration token_timeout = absl::Minutes(1);        // Between tokens.
    absl::Duration handoff_timeout = absl::Seconds(5);      // Decode silent, prefill gone.
    absl::Duration gap_timeout = absl::Seconds(2);          // Something missing in between.
    absl::Duration move_timeout = absl::Seconds(10);        // Asked to hand over to it is done.
  };

  // What to do now, in the order of the fields. Pointers are into what the call was given or into
  // `held`; they live as long as both.
  struct Effects {
    struct Message {
      NodeId node;
      uint64_t wire_id;
    };
    std::vector<Message> cancels;
    std::optional<proto::FirstToken> first;
    std::vector<const proto::Token*> tokens;
    std::deque<proto::Token> held;
    bool requeue = false;  // Back in the queue.
    std::optional<absl::Duration> gave_up =
        {};                      // An attempt that had taken so long, of none begun.
    bool place_prefill = false;  // Call PrefillSent or OnNoPrefill next.
    bool hand_over = false;      // Send HandOff of move() to decode(), and call OnHandOffSent next.
    std::optional<MoveResult> moved = {};  // A move ended.
    // From the last token of the former node to the first of the other.
    std::optional<absl::Duration> move_pause = {};
    std::optional<SequenceEnd> end;
    std::optional<std::pair<RetryStage, RetryReason>> retry;
    // Goes on after tokens were delivered and the attempt broke off so long ago.
    std::optional<absl::Duration> resumed = {};
    std::vector<NodeId> worked = {};  // These did what they were asked (0: gone), ...
    NodeId failed = 0;                // ... and this one did not, though it is there.
    bool ignored = false;             // The event changed nothing; count it.
  };

  // Time of the events of the present attempt, for measuring; infinite past: not yet.
  struct Times {
    absl::Time queued = absl::InfinitePast();
    absl::Time reserved = absl::InfinitePast();
    absl::Time granted = absl::InfinitePast();
    absl::Time prefill_sent = absl::InfinitePast();
    absl::Time first_token = absl::InfinitePast();
    absl::Time handed_off = absl::InfinitePast();    // Prefill's word, or decode's first token.
    absl::Time second_token = absl::InfinitePast();  // The first one of decode.
  };

  SequenceSession(SequenceRequest request, const Options& options, absl::Time now);

  // `repeats`: the sequence is exact on these nodes, and computed with the prompt the tokens of
  // this attempt would have other bits. That of the attempt in which the answer begins counts; then
  // place further ones where it holds as well (repeats()).
  Effects OnReserveSent(NodeId decode, uint64_t wire_id, absl::Time now, bool repeats = false);
  Effects OnGranted(NodeId from, const proto::GrantInfo& grant, absl::Time now);
  Effects OnPrefillSent(NodeId prefill, absl::Time now);
  // No node can take the prompt now.
  Effects OnNoPrefill(absl::Time now);
  Effects OnRefused(NodeId from, const proto::Refused& refused, absl::Time now);
  Effects OnFirstToken(NodeId from, const proto::FirstToken& first, absl::Time now);
  Effects OnTokens(NodeId from, const proto::TokenBatch::Entry& entry, absl::Time now);
  Effects OnTerminal(NodeId from, const proto::Terminal& terminal, absl::Time now);
  Effects OnNodeGone(NodeId node, const std::string& why, absl::Time now);
  // Call when deadline() has passed. `queue_status`: what a client hears whose sequence was not
  // placed in time.
  Effects OnDeadline(const absl::Status& queue_status, absl::Time now);
  // Others go before it and the queue is full.
  Effects OnDisplaced(absl::Status status);
  Effects OnCancel();

  // A sequence that decodes moves to another node.
  struct Move {
    NodeId node = 0;
    uint64_t wire_id = 0;
    int32_t tokens = 0;  // Of prompt and output, whose KV is handed over.
    proto::GrantInfo grant = {};
    bool asked = false;  // The node that has it was asked to hand it over.
    absl::Time until = absl::InfiniteFuture();
  };
  // Whether it can move with so many tokens of prompt and output.
  bool MayMove(int64_t tokens) const;
  // Where room for them was asked for.
  Effects OnMoveReserveSent(NodeId to, uint64_t wire_id, int32_t tokens, absl::Time now);
  // `sent`: false: it cannot be reached.
  Effects OnHandOffSent(bool sent, absl::Time now);
  const std::optional<Move>& move() const { return move_; }
  // Another node that may tell of the sequence, and its id there; 0: there is none.
  NodeId other_node() const { return move_ ? move_->node : former_ ? former_->node : 0; }
  uint64_t other_wire_id() const { return move_ ? move_->wire_id : former_ ? former_->wire_id : 0; }

  // The earliest time something is overdue. Moves with every event, often later: keep a timer for
  // an older value and ask again when it fires.
  absl::Time deadline() const;

  SequenceState state() const { return state_; }
  const SequenceRequest& request() const { return request_; }
  uint64_t wire_id() const { return wire_id_; }  // 0: no attempt.
  NodeId decode() const { return decode_; }      // 0: not placed.
  NodeId prefill() const { return prefill_; }    // 0: not placed.
  // The decode node computes the prompt.
  bool local() const { return prefill_ != 0 && prefill_ == decode_; }
  const proto::GrantInfo& grant() const { return grant_; }
  bool granted() const { return granted_; }
  // Decode may hold a prefix of the prompt.
  bool share_prefix() const { return share_prefix_; }
  bool work_begun() const { return work_begun_; }  // In any attempt: the prompt went to a node.
  const Times& times() const { return times_; }
  // Delivered so far: with the prompt and the seed, all that another node needs to go on.
  const std::vector<TokenId>& output() const { return output_; }
  bool begun() const { return begun_; }  // The first token, or that there is none, was delivered.
  bool resumes() const { return resumes_; }  // The present attempt, or the last one.
  bool broken() const { return broke_at_ != absl::InfinitePast(); }  // Begun, to be resumed.
  // The answer has begun, and goes on only if it is repeated from its first token.
  bool repeats() const { return begun_ && repeats_; }
  // Of output, what an attempt computes with the prompt.
  std::span<const TokenId> given() const {
    return std::span(output_).first(repeats() ? 0 : output_.size());
  }
  // Of prompt and given().
  int64_t known_tokens() const {
    return static_cast<int64_t>(request_.prompt.size() + given().size());
  }
  // Of prompt and answer, what the present attempt has told, too.
  int64_t told_tokens() const { return static_cast<int64_t>(request_.prompt.size() + next_); }
  int retries() const { return retries_; }
  // Nodes to avoid while there are others, and those that can never hold the sequence.
  const std::set<NodeId>& avoid() const { return avoid_; }
  const std::set<NodeId>& too_small() const { return too_small_; }
  // Prefill nodes that refused the present grant.
  const std::set<NodeId>& prefill_refused() const { return prefill_refused_; }

 private:
  void Fail(absl::Status status, Effects& effects);
  void Finish(proto::Terminal::FinishReason reason, Effects& effects);
  // As many tokens as were asked for are delivered: nothing is missing but a last word.
  bool whole() const;
  void Retry(RetryStage stage, RetryReason reason, absl::Status status, absl::Time now,
             Effects& effects);
  void Requeue(absl::Time now, Effects& effects);
  // How far the attempt is, `from` having failed.
  RetryStage StageAt(NodeId from) const;
  // The attempt's next token: delivers it, or swallows what was delivered before. False: it is
  // another than that, and the sequence has failed.
  bool Take(const proto::Token& token, absl::Time now, Effects& effects);
  void Append(TokenId token);
  void Differs(absl::string_view now_is, Effects& effects);
  // The attempt has come to where an earlier one broke off, if one did.
  void Resumed(absl::Time now, Effects& effects);
  void CancelAttempt(Effects& effects);
  void ForgetAttempt();
  void ForgetNode(NodeId node);
  // The output position from which on the node that it moves to speaks.
  int64_t MovePlace() const;
  void EndMove(MoveResult result, Effects& effects);
  void Switch(absl::Time now, Effects& effects);
  // Its node is lost while it moves, and may have handed it over: true.
  bool AwaitMove(const std::string& why, absl::Time now);
  // Delivers what is in order, ends when everything is in, and watches the hole otherwise.
  void Advance(absl::Time now, Effects& effects);

  const SequenceRequest request_;
  const Options& options_;
  SequenceState state_ = SequenceState::kQueued;
  int retries_ = 0;
  bool work_begun_ = false;
  bool share_prefix_ = true;
  absl::Time queue_until_;  // For the queue; a node that is busy does not move it.
  absl::Time wait_until_;   // For whatever the state waits for.
  absl::Time gap_until_ = absl::InfiniteFuture();
  std::vector<TokenId> output_;
  bool begun_ = false;
  bool repeats_ = false;  // Of the attempt in which it began, or of the present one.
  absl::Time broke_at_ = absl::InfinitePast();
  std::string broke_why_;
  size_t progress_ = 0;  // Tokens since the last retry, or since one was forgiven.
  std::set<NodeId> avoid_;
  std::set<NodeId> too_small_;

  // The present attempt.
  uint64_t wire_id_ = 0;
  NodeId decode_ = 0;
  NodeId prefill_ = 0;
  bool resumes_ = false;
  size_t starts_at_ = 0;  // The output position of its first token, ...
  size_t next_ = 0;       // ... and of the one that it is to tell next.
  bool granted_ = false;
  proto::GrantInfo grant_;
  std::set<NodeId> prefill_refused_;
  std::string prefill_lost_;   // Why, once it vanished before the hand-off was confirmed.
  bool decode_spoke_ = false;  // Decode has sent tokens: it has the sequence.
  bool handed_off_ = false;
  std::map<uint32_t, proto::Token> held_;    // By output position; all past the next one.
  std::optional<proto::Terminal> finished_;  // Came; something before it may still be missing.
  bool finished_by_decode_ = false;
  Times times_;
  std::optional<Move> move_;
  struct Former {
    NodeId node = 0;
    uint64_t wire_id = 0;
    int64_t place = 0;  // Output position behind its last token.
  };
  std::optional<Former> former_;  // While some of its tokens are missing.
  std::string decode_lost_;       // Why, while the node that it moves to may have it.
  absl::Time last_token_ = absl::InfinitePast();
  bool asked_to_leave_ = false;  // Its node, of this move or one that has ended.
  bool moved_ = false;           // And no token came since.
};

}  // namespace lynx::router
