#include "services/router/session/sequence_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lynx::router {
namespace {

SequenceSession::Effects Ignored() {
  SequenceSession::Effects effects;
  effects.ignored = true;
  return effects;
}

// Codes that speak of the node itself rather than of its peers or of a bound on time.
bool SpeaksOfTheNode(absl::StatusCode code) {
  return code == absl::StatusCode::kInternal || code == absl::StatusCode::kDataLoss ||
         code == absl::StatusCode::kUnknown;
}

// Codes with which another attempt could fare better.
bool MayRetry(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kFailedPrecondition:
      return false;
    default:
      return true;
  }
}

absl::Status StatusOf(const proto::Terminal& terminal, const char* role) {
  if (terminal.kind() == proto::Terminal::KIND_CANCELLED) {
    return absl::AbortedError(
        absl::StrCat(role, " cancelled the sequence unasked: ", terminal.message()));
  }
  // A code from the wire: 1 to 16, or it is not a status.
  const uint32_t code = terminal.status_code();
  return absl::Status(
      code >= 1 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kInternal,
      absl::StrCat(role, " failed: ", terminal.message()));
}

}  // namespace

const char* Name(SequenceState state) {
  switch (state) {
    case SequenceState::kQueued:
      return "queued";
    case SequenceState::kReserving:
      return "reserving";
    case SequenceState::kPrefilling:
      return "prefilling";
    case SequenceState::kDecoding:
      return "decoding";
    case SequenceState::kDone:
      return "done";
  }
  return "?";
}

const char* Name(RetryStage stage) {
  switch (stage) {
    case RetryStage::kReserve:
      return "reserve";
    case RetryStage::kPrefill:
      return "prefill";
    case RetryStage::kHandoff:
      return "kv_transfer";
    case RetryStage::kDecode:
      return "decode";
  }
  return "?";
}

const char* Name(RetryReason reason) {
  switch (reason) {
    case RetryReason::kNodeGone:
      return "node_gone";
    case RetryReason::kTimeout:
      return "timeout";
    case RetryReason::kNodeError:
      return "node_error";
    case RetryReason::kRefused:
      return "refused";
    case RetryReason::kLostMessage:
      return "lost_message";
  }
  return "?";
}

const char* Name(MoveResult result) {
  switch (result) {
    case MoveResult::kMoved:
      return "moved";
    case MoveResult::kNoNode:
      return "no_node";
    case MoveResult::kRefused:
      return "refused";
    case MoveResult::kPassed:
      return "passed";
    case MoveResult::kStayed:
      return "stayed";
    case MoveResult::kLost:
      return "lost";
    case MoveResult::kTimeout:
      return "timeout";
    case MoveResult::kEnded:
      return "ended";
  }
  return "?";
}

SequenceSession::SequenceSession(SequenceRequest request, const Options& options, absl::Time now)
    : request_(std::move(request)), options_(options) {
  queue_until_ = wait_until_ = now + options_.queue_timeout;
  times_.queued = now;
}

SequenceSession::Effects SequenceSession::OnReserveSent(NodeId decode, uint64_t wire_id,
                                                        absl::Time now, bool repeats) {
  LYNX_CHECK(state_ == SequenceState::kQueued && wire_id_ == 0);
  state_ = SequenceState::kReserving;
  decode_ = decode;
  wire_id_ = wire_id;
  if (!begun_) repeats_ = repeats;
  resumes_ = begun_;
  next_ = starts_at_ = given().size();
  wait_until_ = now + options_.reserve_timeout;
  times_.reserved = now;
  return {};
}

SequenceSession::Effects SequenceSession::OnGranted(NodeId from, const proto::GrantInfo& grant,
                                                    absl::Time now) {
  if (move_.has_value() && from == move_->node && !move_->asked) {
    move_->grant = grant;
    Effects effects;
    effects.hand_over = true;
    return effects;
  }
  if (state_ != SequenceState::kReserving || from != decode_ || granted_) return Ignored();
  granted_ = true;
  grant_ = grant;
  times_.granted = now;
  Effects effects;
  effects.place_prefill = true;
  return effects;
}

SequenceSession::Effects SequenceSession::OnPrefillSent(NodeId prefill, absl::Time now) {
  LYNX_CHECK(granted_ && prefill_ == 0);
  state_ = SequenceState::kPrefilling;
  prefill_ = prefill;
  wait_until_ = now + options_.first_token_timeout;
  times_.prefill_sent = now;
  work_begun_ = true;
  return {};
}

SequenceSession::Effects SequenceSession::OnNoPrefill(absl::Time now) {
  LYNX_CHECK(granted_ && prefill_ == 0);
  Effects effects;
  Requeue(now, effects);
  return effects;
}

SequenceSession::Effects SequenceSession::OnRefused(NodeId from, const proto::Refused& refused,
                                                    absl::Time now) {
  if (move_.has_value() && (from == move_->node || (from == decode_ && move_->asked))) {
    // Duplicates answer messages that came twice.
    if (refused.reason() == proto::Refused::REASON_DUPLICATE) return Ignored();
    if (from == move_->node && move_->asked) return Ignored();
    Effects effects;
    EndMove(from == move_->node ? MoveResult::kRefused : MoveResult::kStayed, effects);
    return effects;
  }
  const bool by_decode = state_ == SequenceState::kReserving && from == decode_ && !granted_;
  const bool by_prefill = state_ == SequenceState::kPrefilling && from == prefill_;
  if ((!by_decode && !by_prefill) || refused.reason() == proto::Refused::REASON_DUPLICATE) {
    return Ignored();
  }
  Effects effects;
  const char* role = by_decode ? "decode" : "prefill";
  (by_decode ? decode_ : prefill_) = 0;  // It has nothing of ours.
  const auto reason = refused.reason();
  if (reason == proto::Refused::REASON_INVALID) {
    Fail(absl::InternalError(
             absl::StrCat(role, " refused the request as malformed: ", refused.message())),
         effects);
    return effects;
  }
  if (reason == proto::Refused::REASON_TOO_LARGE) too_small_.insert(from);
  if (by_prefill) {
    prefill_refused_.insert(from);
    effects.place_prefill = true;
    return effects;
  }
  if (reason == proto::Refused::REASON_BUSY || reason == proto::Refused::REASON_NOT_READY ||
      reason == proto::Refused::REASON_TOO_LARGE) {
    Requeue(now, effects);
  } else {
    avoid_.insert(from);
    Retry(RetryStage::kReserve, RetryReason::kRefused,
          absl::UnavailableError(absl::StrCat("decode refused: ", refused.message())), now,
          effects);
  }
  return effects;
}

SequenceSession::Effects SequenceSession::OnFirstToken(NodeId from, const proto::FirstToken& first,
                                                       absl::Time now) {
  if (state_ != SequenceState::kPrefilling || from != prefill_) return Ignored();
  Effects effects;
  if (first.position() != starts_at_) {
    avoid_.insert(from);
    effects.failed = from;
    Retry(RetryStage::kPrefill, RetryReason::kNodeError,
          absl::InternalError(absl::StrCat("prefill told token ", first.position(),
                                           " of the answer, asked was ", starts_at_)),
          now, effects);
    return effects;
  }
  state_ = SequenceState::kDecoding;
  times_.first_token = now;
  wait_until_ = now + options_.token_timeout;
  gap_until_ = absl::InfiniteFuture();
  if (!std::exchange(begun_, true)) {
    effects.first = first;
    if (first.has_token()) Append(first.token().id());
  } else if (first.has_token()) {
    if (!Take(first.token(), now, effects)) return effects;
  } else if (next_ == output_.size()) {
    Resumed(now, effects);
  }
  Advance(now, effects);
  return effects;
}

SequenceSession::Effects SequenceSession::OnTokens(NodeId from,
                                                   const proto::TokenBatch::Entry& entry,
                                                   absl::Time now) {
  Effects effects;
  if (move_.has_value() && from == move_->node && move_->asked) Switch(now, effects);
  const bool by_former = former_.has_value() && from == former_->node;
  if ((state_ != SequenceState::kPrefilling && state_ != SequenceState::kDecoding) || from == 0 ||
      (from != decode_ && !by_former)) {
    return Ignored();
  }
  if (move_.has_value() && int64_t{entry.position()} + entry.tokens_size() > MovePlace()) {
    EndMove(MoveResult::kPassed, effects);
  }
  bool news = false;
  int64_t limit = request_.sampling.max_new_tokens();
  if (by_former) limit = std::min(limit, former_->place);
  int64_t position = entry.position();
  for (const proto::Token& token : entry.tokens()) {
    const int64_t at = position++;
    // The attempt's first token is prefill's to tell.
    if (at <= static_cast<int64_t>(starts_at_) || at >= limit || at < static_cast<int64_t>(next_)) {
      continue;
    }
    if (state_ == SequenceState::kDecoding && at == static_cast<int64_t>(next_)) {
      if (!Take(token, now, effects)) return effects;
      news = true;
    } else if (held_.emplace(static_cast<uint32_t>(at), token).second) {
      news = true;
    }
  }
  if (!news) {
    if (!effects.moved.has_value()) return Ignored();
    return effects;
  }
  if (from == decode_ && std::exchange(moved_, false)) effects.move_pause = now - last_token_;
  last_token_ = now;
  if (!std::exchange(decode_spoke_, true)) effects.worked = {prefill_, decode_};
  if (times_.handed_off == absl::InfinitePast()) times_.handed_off = now;
  if (times_.second_token == absl::InfinitePast()) times_.second_token = now;
  // Progress, even while it is the first token that is missing.
  if (state_ == SequenceState::kDecoding) wait_until_ = now + options_.token_timeout;
  Advance(now, effects);
  return effects;
}

SequenceSession::Effects SequenceSession::OnTerminal(NodeId from, const proto::Terminal& terminal,
                                                     absl::Time now) {
  Effects effects;
  if (move_.has_value() && from == move_->node && state_ == SequenceState::kDecoding) {
    if (terminal.kind() != proto::Terminal::KIND_FINISHED) {
      avoid_.insert(from);
      if (decode_ == 0) {
        Retry(RetryStage::kDecode, RetryReason::kNodeGone, absl::UnavailableError(decode_lost_),
              now, effects);
      } else {
        EndMove(MoveResult::kLost, effects);
      }
      return effects;
    }
    if (!move_->asked) return Ignored();
    Switch(now, effects);
  }
  const bool by_decode = from != 0 && from == decode_;
  const bool by_prefill = from != 0 && from == prefill_;
  if ((!by_decode && !by_prefill) || state_ == SequenceState::kDone) return Ignored();
  switch (terminal.kind()) {
    case proto::Terminal::KIND_HANDED_OFF:
      if (by_decode && move_.has_value() && move_->asked) {
        Switch(now, effects);
        Advance(now, effects);
        return effects;
      }
      if (by_decode) {
        if (!asked_to_leave_ || finished_.has_value()) return Ignored();
        // To a node that was told to forget it.
        ForgetNode(from);
        Retry(RetryStage::kDecode, RetryReason::kTimeout,
              absl::UnavailableError("decode handed the sequence over too late"), now, effects);
        return effects;
      }
      if (handed_off_) return Ignored();
      handed_off_ = true;
      if (times_.handed_off == absl::InfinitePast()) times_.handed_off = now;
      Advance(now, effects);
      return effects;
    case proto::Terminal::KIND_FINISHED:
      if (finished_.has_value()) return Ignored();
      if (by_decode && state_ == SequenceState::kReserving) {
        Retry(RetryStage::kReserve, RetryReason::kNodeError,
              absl::InternalError("decode finished a sequence it was not given yet"), now, effects);
        return effects;
      }
      finished_ = terminal;
      finished_by_decode_ = by_decode;
      Advance(now, effects);
      return effects;
    case proto::Terminal::KIND_CANCELLED:
    case proto::Terminal::KIND_FAILED: {
      // Once decode has the sequence, prefill's troubles are its own.
      if (by_prefill && !by_decode && (decode_spoke_ || handed_off_)) return Ignored();
      if (finished_.has_value()) return Ignored();
      absl::Status status = StatusOf(terminal, by_decode ? "decode" : "prefill");
      if (by_decode && AwaitMove(std::string(status.message()), now)) return effects;
      avoid_.insert(from);
      if (SpeaksOfTheNode(status.code())) effects.failed = from;
      const RetryStage stage = StageAt(from);
      ForgetNode(from);
      Retry(stage, RetryReason::kNodeError, std::move(status), now, effects);
      return effects;
    }
    default:
      return Ignored();
  }
}

SequenceSession::Effects SequenceSession::OnNodeGone(NodeId node, const std::string& why,
                                                     absl::Time now) {
  Effects effects;
  if (node == 0 || state_ == SequenceState::kDone) return effects;
  if (former_.has_value() && node == former_->node) former_.reset();
  if (move_.has_value() && node == move_->node) {
    if (decode_ == 0) {
      Retry(RetryStage::kDecode, RetryReason::kNodeGone, absl::UnavailableError(decode_lost_), now,
            effects);
    } else {
      EndMove(MoveResult::kLost, effects);
    }
    return effects;
  }
  if (finished_.has_value() && (node == decode_ || node == prefill_)) {
    // The answer is complete; what is missing of it is on its way here or lost.
    ForgetNode(node);
  } else if (node == decode_ && AwaitMove(why, now)) {
    return effects;
  } else if (node == decode_) {
    const RetryStage stage = StageAt(node);
    ForgetNode(node);
    Retry(stage, RetryReason::kNodeGone, absl::UnavailableError(why), now, effects);
  } else if (node == prefill_) {
    prefill_ = 0;
    if (state_ == SequenceState::kPrefilling) {
      Retry(RetryStage::kPrefill, RetryReason::kNodeGone, absl::UnavailableError(why), now,
            effects);
    } else if (!handed_off_ && !decode_spoke_) {
      // Whether decode had everything by then, only decode knows.
      prefill_lost_ = why;
      wait_until_ = std::min(wait_until_, now + options_.handoff_timeout);
    }
  }
  return effects;
}

SequenceSession::Effects SequenceSession::OnDeadline(const absl::Status& queue_status,
                                                     absl::Time now) {
  Effects effects;
  if (now < deadline()) return effects;
  if (now >= request_.deadline) {
    Fail(absl::DeadlineExceededError(
             absl::StrCat("the request's deadline passed while ", Name(state_))),
         effects);
    return effects;
  }
  if (now >= gap_until_) {
    Retry(state_ == SequenceState::kDecoding && decode_spoke_ ? RetryStage::kDecode
                                                              : RetryStage::kHandoff,
          RetryReason::kLostMessage,
          absl::DataLossError(absl::StrCat("token ", next_, " of the answer was lost")), now,
          effects);
    return effects;
  }
  if (move_.has_value() && now >= move_->until) {
    if (decode_ != 0) {
      avoid_.insert(move_->node);
      EndMove(MoveResult::kTimeout, effects);
    } else {
      Retry(RetryStage::kDecode, RetryReason::kNodeGone, absl::UnavailableError(decode_lost_), now,
            effects);
    }
    return effects;
  }
  switch (state_) {
    case SequenceState::kQueued:
      Fail(broken()
               ? absl::UnavailableError(absl::StrCat(broke_why_, ", and no other node went on: ",
                                                     std::string(queue_status.message())))
               : queue_status,
           effects);
      break;
    case SequenceState::kReserving:
      avoid_.insert(decode_);
      effects.failed = decode_;
      Retry(RetryStage::kReserve, RetryReason::kTimeout,
            absl::UnavailableError(absl::StrCat("decode did not answer a reservation within ",
                                                absl::FormatDuration(options_.reserve_timeout))),
            now, effects);
      break;
    case SequenceState::kPrefilling:
      avoid_.insert(prefill_);
      effects.failed = prefill_;
      Retry(
          RetryStage::kPrefill, RetryReason::kTimeout,
          absl::UnavailableError(absl::StrCat("prefill sent no first token within ",
                                              absl::FormatDuration(options_.first_token_timeout))),
          now, effects);
      break;
    case SequenceState::kDecoding:
      if (!prefill_lost_.empty()) {
        Retry(RetryStage::kHandoff, RetryReason::kNodeGone,
              absl::UnavailableError(
                  absl::StrCat(prefill_lost_, ", and decode did not take the sequence over")),
              now, effects);
        break;
      }
      avoid_.insert(decode_);
      effects.failed = decode_;
      Retry(StageAt(decode_), RetryReason::kTimeout,
            absl::UnavailableError(absl::StrCat("decode sent no token for ",
                                                absl::FormatDuration(options_.token_timeout))),
            now, effects);
      break;
    case SequenceState::kDone:
      break;
  }
  return effects;
}

SequenceSession::Effects SequenceSession::OnDisplaced(absl::Status status) {
  LYNX_CHECK(state_ == SequenceState::kQueued);
  Effects effects;
  Fail(std::move(status), effects);
  return effects;
}

SequenceSession::Effects SequenceSession::OnCancel() {
  Effects effects;
  CancelAttempt(effects);
  ForgetAttempt();
  state_ = SequenceState::kDone;
  return effects;
}

absl::Time SequenceSession::deadline() const {
  if (state_ == SequenceState::kDone) return absl::InfiniteFuture();
  return std::min({request_.deadline, wait_until_, gap_until_,
                   move_.has_value() ? move_->until : absl::InfiniteFuture()});
}

bool SequenceSession::MayMove(int64_t tokens) const {
  return state_ == SequenceState::kDecoding && decode_ != 0 && !move_.has_value() &&
         !former_.has_value() && !finished_.has_value() &&
         (local() || decode_spoke_ || handed_off_) && tokens > told_tokens() - 1 &&
         // Behind the tokens whose KV is handed over there is one, and the other node adds one.
         tokens + 2 <=
             static_cast<int64_t>(request_.prompt.size()) + request_.sampling.max_new_tokens();
}

SequenceSession::Effects SequenceSession::OnMoveReserveSent(NodeId to, uint64_t wire_id,
                                                            int32_t tokens, absl::Time now) {
  LYNX_CHECK(MayMove(tokens) && to != decode_);
  move_ = {
      .node = to, .wire_id = wire_id, .tokens = tokens, .until = now + options_.reserve_timeout};
  return {};
}

SequenceSession::Effects SequenceSession::OnHandOffSent(bool sent, absl::Time now) {
  LYNX_CHECK(move_.has_value() && !move_->asked);
  Effects effects;
  if (!sent) {
    EndMove(MoveResult::kStayed, effects);
    return effects;
  }
  move_->asked = asked_to_leave_ = true;
  move_->until = now + options_.move_timeout;
  return effects;
}

int64_t SequenceSession::MovePlace() const {
  return int64_t{move_->tokens} + 1 - static_cast<int64_t>(request_.prompt.size());
}

void SequenceSession::EndMove(MoveResult result, Effects& effects) {
  effects.cancels.push_back({move_->node, move_->wire_id});
  effects.moved = result;
  move_.reset();
}

void SequenceSession::Switch(absl::Time now, Effects& effects) {
  const int64_t place = MovePlace();
  if (decode_ != 0 && static_cast<int64_t>(next_) < place) {
    former_ = {.node = decode_, .wire_id = wire_id_, .place = place};
  }
  decode_ = move_->node;
  wire_id_ = move_->wire_id;
  grant_ = move_->grant;
  prefill_ = 0;
  decode_spoke_ = handed_off_ = true;
  prefill_lost_.clear();
  decode_lost_.clear();
  move_.reset();
  asked_to_leave_ = false;
  moved_ = true;
  wait_until_ = now + options_.token_timeout;
  effects.moved = MoveResult::kMoved;
}

bool SequenceSession::AwaitMove(const std::string& why, absl::Time now) {
  if (!move_.has_value() || !move_->asked || static_cast<int64_t>(next_) < MovePlace()) {
    return false;
  }
  move_->until = std::min(move_->until, now + options_.handoff_timeout);
  ForgetNode(decode_);
  decode_lost_ = why;
  return true;
}

bool SequenceSession::whole() const {
  return state_ == SequenceState::kDecoding &&
         static_cast<int64_t>(output_.size()) >= request_.sampling.max_new_tokens();
}

RetryStage SequenceSession::StageAt(NodeId from) const {
  if (state_ == SequenceState::kReserving) return RetryStage::kReserve;
  if (state_ == SequenceState::kDecoding && decode_spoke_) return RetryStage::kDecode;
  return from == prefill_ ? RetryStage::kPrefill : RetryStage::kHandoff;
}

bool SequenceSession::Take(const proto::Token& token, absl::Time now, Effects& effects) {
  gap_until_ = absl::InfiniteFuture();
  if (next_ == output_.size()) {
    Resumed(now, effects);
    Append(token.id());
    effects.tokens.push_back(&token);
    return true;
  }
  if (token.id() == output_[next_]) {
    ++next_;
    return true;
  }
  Differs(absl::StrCat("token ", next_, " is now ", token.id()), effects);
  return false;
}

void SequenceSession::Differs(absl::string_view now_is, Effects& effects) {
  Fail(absl::DataLossError(absl::StrCat(
           broke_why_, ", and other nodes of its numeric classes gave another answer: ", now_is)),
       effects);
}

void SequenceSession::Resumed(absl::Time now, Effects& effects) {
  if (broken()) effects.resumed = now - std::exchange(broke_at_, absl::InfinitePast());
}

void SequenceSession::Append(TokenId token) {
  output_.push_back(token);
  next_ = output_.size();
  if (++progress_ < options_.forgive_tokens) return;
  progress_ = 0;
  retries_ = std::max(retries_ - 1, 0);
}

void SequenceSession::Finish(proto::Terminal::FinishReason reason, Effects& effects) {
  if (!decode_spoke_) effects.worked = {prefill_};
  CancelAttempt(effects);
  ForgetAttempt();
  state_ = SequenceState::kDone;
  effects.end = SequenceEnd{.status = absl::OkStatus(), .finish_reason = reason};
}

void SequenceSession::Fail(absl::Status status, Effects& effects) {
  if (whole()) return Finish(proto::Terminal::FINISH_REASON_LENGTH, effects);
  CancelAttempt(effects);
  ForgetAttempt();
  state_ = SequenceState::kDone;
  effects.end = SequenceEnd{std::move(status)};
}

void SequenceSession::Retry(RetryStage stage, RetryReason reason, absl::Status status,
                            absl::Time now, Effects& effects) {
  if (grant_.held_prefix_tokens() > 0 && !decode_spoke_) share_prefix_ = false;
  if (whole() || retries_ >= options_.max_retries || !MayRetry(status.code())) {
    Fail(std::move(status), effects);
    return;
  }
  ++retries_;
  progress_ = 0;
  effects.retry = {stage, reason};
  if (begun_ && !broken()) broke_at_ = now;
  if (begun_) broke_why_ = std::string(status.message());
  queue_until_ = now + (begun_ ? options_.resume_timeout : options_.queue_timeout);
  Requeue(now, effects);
}

void SequenceSession::Requeue(absl::Time now, Effects& effects) {
  CancelAttempt(effects);
  ForgetAttempt();
  state_ = SequenceState::kQueued;
  wait_until_ = queue_until_;
  if (!begun_) effects.gave_up = now - times_.reserved;
  times_ = Times{};
  times_.queued = now;
  effects.requeue = true;
}

void SequenceSession::CancelAttempt(Effects& effects) {
  const bool finished = finished_.has_value();
  if (decode_ != 0 && !(finished && finished_by_decode_)) {
    effects.cancels.push_back({decode_, wire_id_});
  }
  if (move_.has_value()) EndMove(MoveResult::kEnded, effects);
  if (prefill_ != 0 && !local() && !finished && !handed_off_ && !decode_spoke_) {
    effects.cancels.push_back({prefill_, wire_id_});
  }
}

void SequenceSession::ForgetNode(NodeId node) {
  if (decode_ == node) decode_ = 0;
  if (prefill_ == node) prefill_ = 0;
}

void SequenceSession::ForgetAttempt() {
  wire_id_ = 0;
  decode_ = prefill_ = 0;
  granted_ = false;
  grant_.Clear();
  prefill_refused_.clear();
  prefill_lost_.clear();
  decode_spoke_ = handed_off_ = finished_by_decode_ = false;
  held_.clear();
  finished_.reset();
  gap_until_ = absl::InfiniteFuture();
  move_.reset();
  former_.reset();
  decode_lost_.clear();
  asked_to_leave_ = moved_ = false;
}

void SequenceSession::Advance(absl::Time now, Effects& effects) {
  if (state_ == SequenceState::kDecoding) {
    for (auto it = held_.begin(); it != held_.end() && it->first <= next_; it = held_.erase(it)) {
      if (it->first < next_) continue;
      if (!Take(effects.held.emplace_back(std::move(it->second)), now, effects)) return;
    }
    if (finished_.has_value()) {
      // A stop id counts as sampled but is not sent: it is not part of the answer.
      const bool stop = finished_->finish_reason() == proto::Terminal::FINISH_REASON_STOP;
      if (next_ + (stop ? 1 : 0) >= finished_->output_tokens()) {
        if (next_ < output_.size()) {
          return Differs(absl::StrCat("it ends before token ", next_), effects);
        }
        Resumed(now, effects);
        return Finish(finished_->finish_reason(), effects);
      }
    }
  }
  if (former_.has_value() && static_cast<int64_t>(next_) >= former_->place) {
    former_.reset();
  }
  const bool hole = !held_.empty() || former_.has_value() || finished_.has_value() || whole() ||
                    (handed_off_ && state_ == SequenceState::kPrefilling);
  if (!hole) {
    gap_until_ = absl::InfiniteFuture();
  } else if (gap_until_ == absl::InfiniteFuture()) {
    gap_until_ = now + options_.gap_timeout;
  }
}

}  // namespace lynx::router
