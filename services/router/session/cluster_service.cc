#include "services/router/session/cluster_service.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mix.h"
#include "common/base/status_macros.h"
#include "common/kv/kv_layout.h"
#include "common/telemetry/log.h"
#include "services/router/placement/local_prefill.h"
#include "services/router/placement/predicted_time.h"

namespace lynx::router {
namespace {

// Blocks of `tokens` tokens in every group of layers, of each at most what `bound` says.
template <typename Bound>
int64_t SumGroups(const proto::NodeStatus& node, int64_t tokens, Bound bound) {
  const int64_t whole = kv::BlocksFor(tokens);
  if (node.kv_groups().empty()) return whole;
  int64_t blocks = 0;
  for (const proto::KvGroup& group : node.kv_groups()) {
    const int64_t most = bound(group);
    blocks += most > 0 ? std::min(whole, most) : whole;
  }
  return blocks;
}

int64_t TotalTokens(const SequenceRequest& request) {
  return static_cast<int64_t>(request.prompt.size()) + request.sampling.max_new_tokens();
}

// The most blocks that one sequence can have on a node.
int64_t SequenceBlocks(const proto::NodeStatus& node) {
  return node.kv_blocks_sequence() > 0 ? node.kv_blocks_sequence() : node.kv_blocks_total();
}

// The most blocks that a sequence of so many tokens ever holds on a node, ...
int64_t MostBlocks(const proto::NodeStatus& node, int64_t tokens) {
  return SumGroups(node, tokens, [](const proto::KvGroup& group) { return group.most_blocks(); });
}

// ... and what decode needs free to take a hand-off: what is known of it and room for the next
// token. Of a sequence that fits, no more than there is: a node that has everything free is asked.
int64_t BlocksNow(const proto::NodeStatus& decode, const SequenceSession& session) {
  const int64_t blocks =
      SumGroups(decode, session.known_tokens() + 1,
                [](const proto::KvGroup& group) { return group.granted_blocks(); });
  const int64_t total = SequenceBlocks(decode);
  return total > 0 ? std::min(blocks, total) : blocks;
}

// Whether the sequence would be exact on that decode node, so that its bits must not depend on
// where it is placed.
bool Exact(const SequenceRequest& request, const Member& decode) {
  const std::string& policy = request.sampling.policy();
  return policy.empty() ? !decode.status.remaps() : policy == "exact";
}

std::vector<kv::PrefixHash> Hashes(const SequenceSession& session) {
  std::vector<TokenId> tokens = session.request().prompt;
  tokens.insert(tokens.end(), session.given().begin(), session.given().end());
  tokens.pop_back();
  return kv::PrefixHashes(session.request().cache_salt, tokens);
}

// Where exact sequences go. Null: no pair is ready.
const ClassPair* FirstReady(const std::vector<ClassPair>& pairs) {
  const auto it = std::find_if(pairs.begin(), pairs.end(), [](auto& pair) { return pair.ready(); });
  return it != pairs.end() ? &*it : nullptr;
}

// Log-probabilities of a prompt need all of it computed; they are told once, with the first token.
bool ScoresPrompt(const SequenceSession& session) {
  return session.request().sampling.prompt_logprobs() && !session.begun();
}

// A move that fails is tried again so often, later and with more time to come to its place.
constexpr int kMaxFailedMoves = 6;
constexpr absl::Duration kMoveDelay = absl::Milliseconds(100);
// What it may take to reserve room and to have the node hear of it; and its bounds in tokens.
constexpr absl::Duration kMoveNotice = absl::Milliseconds(50);
constexpr int64_t kLeastNotice = 4;
constexpr int64_t kMostNotice = 512;

// How many tokens a sequence will have on a node before it can leave it.
int64_t MoveNotice(const proto::NodeStatus& node, int failed) {
  const double step =
      node.step_time().base_seconds() + node.step_time().row_seconds() * node.running_sequences();
  const double tokens = step > 0 ? absl::ToDoubleSeconds(kMoveNotice) / step : 0;
  return std::clamp(static_cast<int64_t>(std::min(tokens, 1e6)), kLeastNotice, kMostNotice)
         << failed;
}

// The weight of one sequence in what is said of those lately.
constexpr double kNews = 1.0 / 64;

// A node that does not tell a limit (0) is not limited by it.
bool Within(int64_t need, int64_t limit) { return limit <= 0 || need <= limit; }

uint32_t Milliseconds(absl::Duration duration) {
  return static_cast<uint32_t>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 1, UINT32_MAX));
}

// Asks a decode node for a sequence of which it is to take so many tokens. The prefixes that it may
// hold already are the caller's to add.
proto::Reserve ReserveOf(const SequenceRequest& request, uint64_t wire_id, int64_t tokens,
                         absl::Duration lease) {
  proto::Reserve reserve;
  reserve.set_sequence(wire_id);
  reserve.set_prompt_tokens(static_cast<int32_t>(tokens));
  reserve.set_max_new_tokens(static_cast<int32_t>(TotalTokens(request) - tokens));
  reserve.set_lease_ms(Milliseconds(lease));
  reserve.set_policy(request.sampling.policy());
  reserve.set_priority(request.priority);
  reserve.set_tenant(request.tenant);
  *reserve.mutable_names() = request.names;
  return reserve;
}

}  // namespace

ClusterService::Entry::Entry(SequenceRequest request, const SequenceSession::Options& options,
                             absl::Time now, SequenceSink& its_sink)
    : session(std::move(request), options, now),
      prefix(Hashes(session)),
      sink(its_sink),
      arrived(now) {}

ClusterService::ClusterService(Options options, EventLoop& loop, NodeRegistry& nodes,
                               std::unique_ptr<PlacementPolicy> policy,
                               telemetry::Registry& metrics, std::function<uint64_t()> draw_id)
    : options_(std::move(options)),
      loop_(loop),
      nodes_(nodes),
      policy_(std::move(policy)),
      metrics_(metrics),
      draw_id_(std::move(draw_id)),
      admission_(options_.admission),
      retries_(options_.retries, loop.Now()),
      breakers_(options_.breakers) {}

ClusterService::~ClusterService() {
  LYNX_CHECK_MSG(entries_.empty(), "sequences left: call Shutdown first");
  *alive_ = false;
  loop_.CancelTimer(timer_);
}

absl::StatusOr<SequenceId> ClusterService::Start(SequenceRequest request, SequenceSink& sink) {
  LYNX_CHECK(!request.prompt.empty() && request.sampling.max_new_tokens() > 0);
  const absl::Time now = loop_.Now();
  const auto reject = [&](Rejection reason, absl::Status status) {
    metrics_.Rejected(reason);
    metrics_.Ended(SequenceOutcome::kRejected);
    return status;
  };
  if (draining_) {
    return reject(Rejection::kDraining, absl::UnavailableError("this router is shutting down"));
  }
  if (!nodes_.ready()) {
    return reject(Rejection::kNotReady, absl::UnavailableError(nodes_.not_ready_reason()));
  }
  request.deadline = std::min(request.deadline, now + options_.max_duration);
  auto entry = std::make_unique<Entry>(std::move(request), options_.session, now, sink);
  if (Pairs(entry->session).empty()) {
    return reject(Rejection::kTooLarge, TooLarge(entry->session.request()));
  }
  if (options_.refuse_late) {
    const absl::Duration predicted = PredictedTtft(*entry);
    if (predicted > options_.slo_ttft) {
      return reject(Rejection::kLate,
                    absl::ResourceExhaustedError(absl::StrCat(
                        "the first token would take about ",
                        absl::FormatDuration(absl::Ceil(predicted, absl::Milliseconds(10))),
                        ", the limit is ", absl::FormatDuration(options_.slo_ttft))));
    }
  }
  const SequenceId id = draw_id_();
  LYNX_CHECK(!entries_.contains(id));
  const SequenceRequest& its = entry->session.request();
  std::optional<SequenceId> displaced;
  if (absl::Status entered = admission_.Enter({.id = id,
                                               .priority = its.priority,
                                               .tenant = its.tenant,
                                               .tokens = static_cast<int64_t>(its.prompt.size())},
                                              now, entry->ticket, displaced);
      !entered.ok()) {
    return reject(Rejection::kQueueFull, std::move(entered));
  }
  retries_.OnRequest(now);
  Watch(id, *entries_.emplace(id, std::move(entry)).first->second);
  if (displaced.has_value()) Displace(*displaced);
  Pump();
  UpdateGauges();
  return id;
}

void ClusterService::Displace(SequenceId id) {
  SequenceSession& session = entries_.at(id)->session;
  metrics_.LeftQueue(QueueOutcome::kDisplaced, loop_.Now() - session.times().queued);
  metrics_.Rejected(Rejection::kDisplaced);
  Apply(id, session.OnDisplaced(absl::ResourceExhaustedError(
                "the queue is full, and of requests that go before this one")));
}

void ClusterService::Cancel(SequenceId id) {
  auto it = entries_.find(id);
  if (it == entries_.end()) return;
  Entry& entry = *it->second;
  if (entry.session.state() == SequenceState::kQueued) {
    metrics_.LeftQueue(QueueOutcome::kCancelled, loop_.Now() - entry.session.times().queued);
  }
  const Effects effects = entry.session.OnCancel();
  if (effects.moved.has_value()) metrics_.Moved(*effects.moved);
  const uint64_t wire_id = entry.wire_id;
  std::set<NodeId> nodes;
  for (const Effects::Message& cancel : effects.cancels) {
    SendCancel(cancel.node, cancel.wire_id, "the client left");
    if (cancel.wire_id == wire_id) nodes.insert(cancel.node);
  }
  if (!nodes.empty()) releases_.Begin(wire_id, std::move(nodes), loop_.Now());
  metrics_.Ended(SequenceOutcome::kCancelled);
  Forget(id);
}

ClusterView ClusterService::View() const {
  ClusterView view;
  if (draining_) {
    view.reason = "this router is shutting down";
    return view;
  }
  view.ready = nodes_.ready();
  if (!view.ready) view.reason = nodes_.not_ready_reason();
  return view;
}

void ClusterService::Drain() { draining_ = true; }

void ClusterService::Shutdown() {
  Drain();
  while (!entries_.empty()) {
    const SequenceId id = entries_.begin()->first;
    Effects effects = entries_.begin()->second->session.OnCancel();
    effects.end = SequenceEnd{absl::UnavailableError("this router is shutting down")};
    Apply(id, std::move(effects));
  }
}

bool ClusterService::Idle() const {
  return entries_.empty() && wires_.empty() && at_decode_.empty() && deadlines_.empty() &&
         loads_.empty() && admission_.queued() == 0 && admission_.in_flight() == 0;
}

void ClusterService::OnNodeGone(NodeId node, const std::string& why) {
  resting_.erase(node);
  breakers_.OnGone(node);
  releases_.OnNodeGone(node);
  // In the queue's order, so that who comes first is placed again first.
  std::map<AdmissionQueue::Ticket, SequenceId> touched;
  for (const auto& [id, entry] : entries_) {
    if (entry->session.decode() == node || entry->session.prefill() == node ||
        entry->session.other_node() == node) {
      touched.emplace(entry->ticket, id);
    }
  }
  for (const auto& [ticket, id] : touched) {
    auto it = entries_.find(id);
    if (it != entries_.end()) Apply(id, it->second->session.OnNodeGone(node, why, loop_.Now()));
  }
  loads_.OnGone(node);
  prefixes_.OnGone(node);
  metrics_.indexed_prefixes.Set(static_cast<double>(prefixes_.size()));
  SchedulePump();
}

void ClusterService::OnNodeStatus(NodeId node) {
  loads_.OnStatus(node);
  resting_.erase(node);
  SchedulePump();
  MoveAway(node);
}

void ClusterService::MoveAway(NodeId node) {
  const Member* const from = nodes_.nodes().Find(node);
  const auto at = at_decode_.find(node);
  if (from == nullptr || from->state != MemberState::kDraining || at == at_decode_.end() ||
      !from->status.moves_sequences()) {
    return;
  }
  int room = options_.max_moves;
  std::vector<SequenceId> waiting;
  for (const uint64_t wire_id : at->second) {
    const auto& [id, entry] = wires_.at(wire_id);
    if (entry->session.move().has_value()) {
      --room;
    } else if (entry->failed_moves < kMaxFailedMoves && entry->move_not_before <= loop_.Now()) {
      waiting.push_back(id);
    }
  }
  for (const SequenceId id : waiting) {
    if (room <= 0) return;
    if (TryMove(id, *entries_.at(id), *from)) --room;
  }
}

bool ClusterService::TryMove(SequenceId id, Entry& entry, const Member& from) {
  SequenceSession& session = entry.session;
  const SequenceRequest& request = session.request();
  const absl::Time now = loop_.Now();
  const int64_t tokens = session.told_tokens() + MoveNotice(from.status, entry.failed_moves);
  if (!session.MayMove(tokens)) return false;
  PlacementRequest placement = Placement(entry);
  std::vector<DecodeCandidate> candidates;
  for (const Member* to :
       nodes_.nodes().ReadyNodes(proto::ROLE_DECODE, from.status.compatibility_hash())) {
    if (to->id == from.id || !to->status.moves_sequences() ||
        to->status.numeric_class() != from.status.numeric_class() || !Fits(*to, session) ||
        resting_.contains(to->id) || session.avoid().contains(to->id) ||
        breakers_.Open(to->id, now)) {
      continue;
    }
    candidates.push_back(Decode(*to, entry));
    placement.blocks_now =
        std::max(placement.blocks_now, static_cast<int32_t>(BlocksNow(to->status, session)));
  }
  const std::optional<NodeId> to = policy_->PickDecode(candidates, placement);
  if (!to.has_value()) {
    if (!std::exchange(entry.no_move_told, true)) metrics_.Moved(MoveResult::kNoNode);
    return false;
  }
  const uint64_t wire_id = draw_id_();
  proto::Envelope envelope;
  proto::Reserve& reserve = *envelope.mutable_reserve();
  reserve = ReserveOf(request, wire_id, tokens, options_.grant_lease);
  // What else was touched by lossy plans than its own KV has other bits.
  if (Exact(request, from) && entry.classes.has_value() &&
      entry.classes->prefill == entry.classes->decode) {
    reserve.mutable_prefix_hashes()->Add(entry.prefix.begin(), entry.prefix.end());
  }
  if (!nodes_.Send(*to, std::move(envelope)).ok()) {
    resting_.insert(*to);
    return false;
  }
  Apply(id, entry, session.OnMoveReserveSent(*to, wire_id, static_cast<int32_t>(tokens), now));
  return true;
}

void ClusterService::AskHandOff(SequenceId id) {
  Entry& entry = *entries_.at(id);
  const SequenceSession::Move& move = *entry.session.move();
  proto::Envelope envelope;
  proto::HandOff& hand_off = *envelope.mutable_hand_off();
  hand_off.set_sequence(entry.session.wire_id());
  *hand_off.mutable_grant() = move.grant;
  hand_off.set_granted_sequence(move.wire_id);
  hand_off.set_tokens(move.tokens);
  hand_off.set_deadline_ms(Milliseconds(options_.session.move_timeout));
  const bool sent = nodes_.Send(entry.session.decode(), std::move(envelope)).ok();
  Apply(id, entry, entry.session.OnHandOffSent(sent, loop_.Now()));
}

void ClusterService::ListSequences(NodeId node, proto::Ping& ping) {
  if (policy_->wants_prefixes()) ping.set_prefixes_seen(prefixes_.Seen(node));
  const auto it = at_decode_.find(node);
  if (it == at_decode_.end()) return;
  ping.mutable_sequences()->Add(it->second.begin(), it->second.end());
}

void ClusterService::OnNodeMessage(NodeId from, proto::Envelope& envelope) {
  const absl::Time now = loop_.Now();
  switch (envelope.body_case()) {
    case proto::Envelope::kGrant:
      OnSequence(from, envelope.grant().sequence(), true, [&](SequenceSession& session) {
        return session.OnGranted(from, envelope.grant().grant(), now);
      });
      return;
    case proto::Envelope::kRefused: {
      const proto::Refused& refused = envelope.refused();
      bool rests = false;
      OnSequence(from, refused.sequence(), false, [&](SequenceSession& session) {
        Effects effects = session.OnRefused(from, refused, now);
        rests = !effects.ignored && (refused.reason() == proto::Refused::REASON_BUSY ||
                                     refused.reason() == proto::Refused::REASON_NOT_READY);
        // Before Apply, which looks for another prefill node.
        if (rests) resting_.insert(from);
        return effects;
      });
      // And after it: that a refused sequence leaves the node is no sign of room there.
      if (rests) resting_.insert(from);
      return;
    }
    case proto::Envelope::kFirstToken:
      OnSequence(from, envelope.first_token().sequence(), true, [&](SequenceSession& session) {
        return session.OnFirstToken(from, envelope.first_token(), now);
      });
      return;
    case proto::Envelope::kTokenBatch:
      for (const proto::TokenBatch::Entry& entry : envelope.token_batch().entries()) {
        OnSequence(from, entry.sequence(), true,
                   [&](SequenceSession& session) { return session.OnTokens(from, entry, now); });
      }
      return;
    case proto::Envelope::kTerminal:
      if (const auto took = releases_.OnTerminal(envelope.terminal().sequence(), from, now)) {
        metrics_.release_seconds.Observe(absl::ToDoubleSeconds(*took));
      }
      // The usual answer to our Cancel: nothing to count.
      if (envelope.terminal().kind() == proto::Terminal::KIND_CANCELLED &&
          !wires_.contains(envelope.terminal().sequence())) {
        return;
      }
      OnSequence(from, envelope.terminal().sequence(), false, [&](SequenceSession& session) {
        return session.OnTerminal(from, envelope.terminal(), now);
      });
      return;
    case proto::Envelope::kPrefixReport:
      metrics_.Reported(prefixes_.OnReport(from, envelope.prefix_report()));
      metrics_.indexed_prefixes.Set(static_cast<double>(prefixes_.size()));
      return;
    default:
      metrics_.ignored_unexpected.Increment();
      return;
  }
}

template <typename Handle>
void ClusterService::OnSequence(NodeId from, uint64_t wire_id, bool cancel_unknown, Handle handle) {
  auto wire = wires_.find(wire_id);
  if (wire == wires_.end()) {
    metrics_.ignored_unknown_sequence.Increment();
    if (cancel_unknown) SendCancel(from, wire_id, "unknown to the router");
    return;
  }
  const auto [id, entry] = wire->second;
  Apply(id, *entry, handle(entry->session));
}

void ClusterService::Apply(SequenceId id, Entry& entry, Effects effects) {
  if (effects.ignored) {
    metrics_.ignored_unexpected.Increment();
    return;
  }
  const SequenceRequest& request = entry.session.request();
  for (const Effects::Message& cancel : effects.cancels) {
    SendCancel(cancel.node, cancel.wire_id, "given up by the router");
  }
  if (effects.failed != 0) breakers_.OnFailure(effects.failed, loop_.Now());
  for (const NodeId node : effects.worked) breakers_.OnSuccess(node);
  if (effects.retry.has_value()) {
    metrics_.Retried(effects.retry->first, effects.retry->second);
    telemetry::LogWarning("sequence starts over",
                          {{"request_id", request.request_id},
                           {"stage", Name(effects.retry->first)},
                           {"reason", Name(effects.retry->second)},
                           {"delivered", absl::StrCat(entry.session.output().size())}});
  }
  if (effects.gave_up.has_value()) metrics_.StageTook(Stage::kGivenUp, *effects.gave_up);
  if (effects.requeue) {
    admission_.Requeue(entry.ticket, id);
    if (effects.retry.has_value()) Delay(entry);
    SchedulePump();
  }
  if (effects.resumed.has_value()) {
    metrics_.FailedOver(/*resumed=*/true);
    metrics_.failover_seconds.Observe(absl::ToDoubleSeconds(*effects.resumed));
  }
  if (effects.moved.has_value()) {
    metrics_.Moved(*effects.moved);
    entry.failed_moves = *effects.moved == MoveResult::kMoved ? 0 : entry.failed_moves + 1;
    entry.move_not_before = loop_.Now() + kMoveDelay * entry.failed_moves;
    entry.no_move_told = false;
  }
  if (effects.move_pause.has_value()) {
    metrics_.move_pause_seconds.Observe(absl::ToDoubleSeconds(*effects.move_pause));
  }
  Measure(entry);
  Settle(id, entry);
  UpdateGauges();
  if (effects.place_prefill) {
    PlacePrefill(id);
    return;
  }
  if (effects.hand_over) {
    AskHandOff(id);
    return;
  }

  const size_t got =
      effects.tokens.size() + (effects.first.has_value() && effects.first->has_token() ? 1 : 0);
  if (got > 0) admission_.Used(request.tenant, static_cast<int64_t>(got));

  // Everything is consistent from here on, as a sink may call back into this object.
  if (effects.resumed.has_value()) entry.sink.OnResumed();
  if (effects.first.has_value()) {
    entry.sink.OnFirstToken(*effects.first);
    if (!entries_.contains(id)) return;
  }
  if (!effects.tokens.empty()) {
    entry.sink.OnTokens(effects.tokens);
  }
  if (!effects.end.has_value() || !entries_.contains(id)) return;
  effects.end->retry_after = admission_.RetryAfter();
  effects.end->work_begun = entry.session.work_begun();
  if (effects.end->status.ok()) {
    metrics_.Ended(SequenceOutcome::kFinished);
    const auto tokens = static_cast<double>(entry.session.output().size());
    answer_tokens_ += (tokens - answer_tokens_) * kNews;
  } else {
    metrics_.Ended(SequenceOutcome::kFailed);
    if (entry.session.begun() && !absl::IsDeadlineExceeded(effects.end->status)) {
      metrics_.FailedOver(/*resumed=*/false);
    }
    telemetry::LogWarning("sequence failed", {{"request_id", request.request_id},
                                              {"status", effects.end->status.ToString()}});
  }
  SequenceSink& sink = entry.sink;
  Forget(id);
  sink.OnEnd(*effects.end);
}

void ClusterService::Delay(Entry& entry) {
  const absl::Time now = loop_.Now();
  entry.prefix = Hashes(entry.session);
  entry.not_before =
      retries_.Take(now) + RetryJitter(entry.session.retries(), SplitMix(draw_id_()));
  loop_.RunAfter(entry.not_before - now, [this, alive = alive_] {
    if (*alive) SchedulePump();
  });
}

PlacementRequest ClusterService::Placement(const Entry& entry) const {
  const SequenceRequest& request = entry.session.request();
  return {.prompt_tokens = entry.session.known_tokens(),
          .prompt = request.prompt,
          .ttft_left = entry.arrived + options_.slo_ttft - loop_.Now(),
          .tpot_limit = options_.slo_tpot,
          .answer_tokens = answer_tokens_,
          .transfer_per_token = transfer_per_token_};
}

DecodeCandidate ClusterService::Decode(const Member& member, const Entry& entry) const {
  DecodeCandidate candidate = loads_.Decode(member);
  if (entry.session.share_prefix()) {
    candidate.held_tokens = prefixes_.HeldTokens(member.id, entry.prefix);
  }
  return candidate;
}

PrefillCandidate ClusterService::Prefill(const Member& member, const Entry& entry) const {
  PrefillCandidate candidate = loads_.Prefill(member);
  if (!ScoresPrompt(entry.session)) {
    candidate.held_tokens = prefixes_.HeldTokens(member.id, entry.prefix);
  }
  return candidate;
}

absl::Duration ClusterService::PredictedTtft(const Entry& entry) const {
  const SequenceSession& session = entry.session;
  const PlacementRequest request = Placement(entry);
  absl::Duration prefill = absl::InfiniteDuration();
  absl::Duration local = absl::InfiniteDuration();  // Where no prefill node is.
  const std::vector<ClassPair> pairs = Pairs(session);
  const ClassPair* home = FirstReady(pairs);
  for (const ClassPair& pair : pairs) {
    if (&pair != home && Exact(session.request(), *pair.decode.front())) continue;
    for (const Member* member : pair.prefill) {
      if (member->state != MemberState::kReady) continue;
      prefill = std::min(prefill, FirstTokenTime(Prefill(*member, entry), request));
    }
    for (const Member* member : pair.decode) {
      if (member->state != MemberState::kReady || !pair.Local(*member)) continue;
      local = std::min(local, FirstTokenTime(Decode(*member, entry), request));
    }
  }
  return admission_.ExpectedWait() + (prefill < absl::InfiniteDuration() ? prefill : local);
}

DecodeCandidate ClusterService::Granted(const Member& decode, const Entry& entry) const {
  DecodeCandidate candidate = loads_.Decode(decode);
  candidate.load = std::max<int64_t>(candidate.load - 1, 0);
  if (!ScoresPrompt(entry.session)) {
    candidate.held_tokens = entry.session.grant().held_prefix_tokens();
  }
  return candidate;
}

bool ClusterService::MayPrefillLocally(const Entry& entry, const Member* decode) const {
  return decode != nullptr && decode->status.prompt_rows() > 0 &&
         !entry.session.prefill_refused().contains(decode->id) &&
         (!entry.classes.has_value() || entry.classes->prefill == decode->status.numeric_class());
}

void ClusterService::PlacePrefill(SequenceId id) {
  Entry& entry = *entries_.at(id);
  SequenceSession& session = entry.session;
  const absl::Time now = loop_.Now();
  const Member* decode = nodes_.nodes().Find(session.decode());
  const std::string hash = !session.grant().compatibility_hash().empty()
                               ? session.grant().compatibility_hash()
                           : decode != nullptr ? decode->status.compatibility_hash()
                                               : std::string();
  const PlacementRequest request = Placement(entry);
  for (;;) {
    std::vector<PrefillCandidate> preferred;
    std::vector<PrefillCandidate> others;
    for (const Member* member : nodes_.nodes().ReadyNodes(proto::ROLE_PREFILL, hash)) {
      if (decode == nullptr || !Fits(*member, session) || resting_.contains(member->id) ||
          session.prefill_refused().contains(member->id) ||
          (entry.classes.has_value() && entry.classes->prefill != member->status.numeric_class())) {
        continue;
      }
      const bool shun = session.avoid().contains(member->id) || breakers_.Open(member->id, now);
      (shun ? others : preferred).push_back(Prefill(*member, entry));
    }
    if (preferred.empty()) preferred.swap(others);
    NodeId node = 0;
    if (!preferred.empty()) node = policy_->PickPrefill(preferred, request);
    const auto picked = std::find_if(preferred.begin(), preferred.end(),
                                     [&](const auto& candidate) { return candidate.node == node; });
    if (MayPrefillLocally(entry, decode) &&
        (node == 0 || (policy_->weighs_local_prefill() &&
                       CheaperLocally(Granted(*decode, entry), *picked, request)))) {
      node = decode->id;
    }
    if (node == 0) {
      Apply(id, session.OnNoPrefill(now));
      return;
    }
    proto::Envelope envelope;
    proto::Prefill& prefill = *envelope.mutable_prefill();
    prefill.set_sequence(session.wire_id());
    prefill.mutable_tokens()->Add(session.request().prompt.begin(), session.request().prompt.end());
    prefill.mutable_output()->Add(session.given().begin(), session.given().end());
    *prefill.mutable_sampling() = session.request().sampling;
    prefill.mutable_sampling()->set_prompt_logprobs(ScoresPrompt(session));
    *prefill.mutable_grant() = session.grant();
    prefill.set_cache_salt(session.request().cache_salt);
    prefill.set_deadline_ms(Milliseconds(
        std::min(session.request().deadline - now, options_.session.first_token_timeout)));
    prefill.set_priority(session.request().priority);
    prefill.set_tenant(session.request().tenant);
    *prefill.mutable_names() = session.request().names;
    const bool local = node == session.decode();
    if (!nodes_.Send(node, std::move(envelope)).ok()) {
      resting_.insert(node);
      if (local) decode = nullptr;
      continue;
    }
    (local ? metrics_.local : metrics_.disaggregated).Increment();
    Apply(id, session.OnPrefillSent(node, now));
    return;
  }
}

void ClusterService::SchedulePump() {
  if (pump_scheduled_ || admission_.queued() == 0) return;
  pump_scheduled_ = true;
  loop_.Post([this, alive = alive_] {
    if (!*alive) return;
    pump_scheduled_ = false;
    Pump();
    UpdateGauges();
  });
}

void ClusterService::Pump() {
  // Strictly in the queue's order, so that no size of request starves; but one that fits no ready
  // pair at all waits aside, or it would hold up everyone until its time is over. So does one whose
  // retry is to wait.
  auto next = admission_.queue().begin();
  while (admission_.may_dispatch() && next != admission_.queue().end()) {
    const auto [ticket, id] = *next++;
    if (entries_.at(id)->not_before > loop_.Now()) continue;
    bool can_wait = false;
    if (!TryDispatch(id, *entries_.at(id), can_wait) && can_wait) return;
  }
}

bool ClusterService::TryDispatch(SequenceId id, Entry& entry, bool& can_wait) {
  SequenceSession& session = entry.session;
  const SequenceRequest& request = session.request();
  const absl::Time now = loop_.Now();
  for (;;) {
    PlacementRequest placement = Placement(entry);  // Of the blocks, the candidates decide.
    const std::vector<ClassPair> pairs = Pairs(session);
    const ClassPair* home = Home(pairs, entry);
    can_wait = home != nullptr && home->ready();
    std::vector<DecodeCandidate> all;
    std::vector<DecodeCandidate> preferred;
    std::set<NodeId> seen;  // Some are in several pairs.
    const auto free = [&](const Member* member) {
      return member->state == MemberState::kReady && !resting_.contains(member->id);
    };
    placement.local_only = true;
    for (const ClassPair& pair : pairs) {
      const bool prefills = std::any_of(pair.prefill.begin(), pair.prefill.end(), free);
      if (prefills) placement.local_only = false;
      for (const Member* decode : pair.decode) {
        // Exact answers have a home; one that is repeated was exact.
        const bool elsewhere = Exact(request, *decode) ? &pair != home : session.repeats();
        if (!free(decode) || elsewhere) continue;
        if (!prefills && !pair.Local(*decode)) continue;
        if (!seen.insert(decode->id).second) continue;
        all.push_back(Decode(*decode, entry));
        placement.blocks_now = std::max(placement.blocks_now,
                                        static_cast<int32_t>(BlocksNow(decode->status, session)));
        if (!session.avoid().contains(decode->id) && !breakers_.Open(decode->id, now)) {
          preferred.push_back(all.back());
        }
      }
    }
    std::optional<NodeId> node = policy_->PickDecode(preferred, placement);
    if (!node.has_value()) node = policy_->PickDecode(all, placement);
    if (!node.has_value()) return false;

    const uint64_t wire_id = draw_id_();
    proto::Envelope envelope;
    proto::Reserve& reserve = *envelope.mutable_reserve();
    reserve = ReserveOf(request, wire_id, session.known_tokens(), options_.grant_lease);
    const bool exact = Exact(request, *nodes_.nodes().Find(*node));
    // Of another class than the prompt's, what decode holds could not be used.
    const bool unlike = exact && home->prefill_class != home->decode_class;
    if (session.share_prefix() && !unlike) {
      reserve.mutable_prefix_hashes()->Add(entry.prefix.begin(), entry.prefix.end());
    }
    if (!nodes_.Send(*node, std::move(envelope)).ok()) {
      resting_.insert(*node);
      continue;
    }
    metrics_.LeftQueue(QueueOutcome::kDispatched, now - session.times().queued);
    if (!session.begun()) metrics_.StageTook(Stage::kQueue, now - session.times().queued);
    admission_.Dispatch(entry.ticket, now);
    entry.classes.reset();
    if (exact) entry.classes = home->names();
    // Of a pair of two classes, neither gives what was decoded the bits that it had on decode when
    // it computes it with the prompt.
    session.OnReserveSent(*node, wire_id, now, /*repeats=*/unlike);
    Settle(id, entry);
    return true;
  }
}

bool ClusterService::Fits(const Member& node, const SequenceSession& session) const {
  const int64_t tokens =
      node.role == proto::ROLE_PREFILL ? session.known_tokens() : TotalTokens(session.request());
  return Within(MostBlocks(node.status, tokens), SequenceBlocks(node.status)) &&
         Within(tokens, node.status.max_context_tokens()) && !session.too_small().contains(node.id);
}

std::vector<ClassPair> ClusterService::Pairs(const SequenceSession& session) const {
  return ClassPairs(nodes_.nodes(), [&](const Member& node) { return Fits(node, session); });
}

const ClassPair* ClusterService::Home(const std::vector<ClassPair>& pairs, const Entry& entry) {
  if (!entry.session.begun() || !entry.classes.has_value()) return FirstReady(pairs);
  const auto it = std::find_if(pairs.begin(), pairs.end(), [&](const ClassPair& pair) {
    return pair.names() == *entry.classes;
  });
  return it != pairs.end() ? &*it : nullptr;
}

absl::Status ClusterService::NotPlaced(const Entry& entry, absl::Duration waited,
                                       Rejection& rejection) const {
  rejection = Rejection::kNotReady;
  if (!nodes_.ready()) return absl::UnavailableError(nodes_.not_ready_reason());
  const std::vector<ClassPair> pairs = Pairs(entry.session);
  if (FirstReady(pairs) == nullptr) {
    rejection = Rejection::kTooLarge;
    return TooLarge(entry.session.request());
  }
  if (const ClassPair* home = Home(pairs, entry); home == nullptr || !home->ready()) {
    return absl::UnavailableError("no nodes of the numeric class that its answer began with");
  }
  rejection = Rejection::kQueueTimeout;
  return absl::ResourceExhaustedError(
      absl::StrCat("no node had room within ", absl::FormatDuration(waited)));
}

absl::Status ClusterService::TooLarge(const SequenceRequest& request) const {
  int64_t decode_blocks = 0;
  int64_t prefill_blocks = 0;
  int64_t needed = kv::BlocksFor(TotalTokens(request));
  for (const auto& [endpoint, member] : nodes_.nodes().members()) {
    if (member.id == 0) continue;
    int64_t& most = member.role == proto::ROLE_DECODE ? decode_blocks : prefill_blocks;
    if (SequenceBlocks(member.status) <= most) continue;
    most = SequenceBlocks(member.status);
    if (member.role == proto::ROLE_DECODE) needed = MostBlocks(member.status, TotalTokens(request));
  }
  return absl::OutOfRangeError(absl::StrCat(
      "the prompt's ", request.prompt.size(), " tokens and ", request.sampling.max_new_tokens(),
      " new ones need ", needed, " blocks of KV memory; the largest decode node has ",
      decode_blocks,
      prefill_blocks > 0
          ? absl::StrCat(", the largest prefill node ", prefill_blocks, " for the prompt")
          : ""));
}

void ClusterService::SendCancel(NodeId node, uint64_t wire_id, const char* reason) {
  proto::Envelope envelope;
  envelope.mutable_cancel()->set_sequence(wire_id);
  envelope.mutable_cancel()->set_reason(reason);
  // A node that cannot be reached cancels by itself once it misses our heartbeats.
  nodes_.Send(node, std::move(envelope)).IgnoreError();
}

void ClusterService::Settle(SequenceId id, Entry& entry) {
  const SequenceSession& session = entry.session;
  if (entry.listed_at != session.decode() || entry.wire_id != session.wire_id()) {
    if (entry.listed_at != 0) {
      auto at = at_decode_.find(entry.listed_at);
      at->second.erase(entry.wire_id);
      if (at->second.empty()) at_decode_.erase(at);
    }
    if (session.decode() != 0) at_decode_[session.decode()].insert(session.wire_id());
    entry.listed_at = session.decode();
  }
  if (entry.wire_id != session.wire_id() || entry.other_wire_id != session.other_wire_id()) {
    for (const uint64_t wire_id : {entry.wire_id, entry.other_wire_id}) {
      if (wire_id != 0) wires_.erase(wire_id);
    }
    entry.wire_id = session.wire_id();
    entry.other_wire_id = session.other_wire_id();
    for (const uint64_t wire_id : {entry.wire_id, entry.other_wire_id}) {
      if (wire_id != 0) LYNX_CHECK(wires_.emplace(wire_id, std::pair(id, &entry)).second);
    }
  }
  if (entry.charged_decode != 0 && entry.charged_decode != session.decode()) {
    loads_.Released(entry.charged_decode, entry.charged_blocks, entry.charged_as_granted);
    // Blocks that were granted return, so the node may have room again. A refused reservation
    // returns nothing: asking at once would only be refused again.
    if (entry.charged_as_granted) resting_.erase(entry.charged_decode);
    entry.charged_decode = 0;
    entry.charged_as_granted = false;
    SchedulePump();
  }
  if (session.decode() != 0 && entry.charged_decode == 0) {
    const Member* decode = nodes_.nodes().Find(session.decode());
    entry.charged_blocks =
        BlocksNow(decode != nullptr ? decode->status : proto::NodeStatus(), session);
    loads_.Reserving(session.decode(), entry.charged_blocks);
    entry.charged_decode = session.decode();
  }
  if (entry.charged_decode != 0 && session.granted() && !entry.charged_as_granted) {
    loads_.Granted(entry.charged_decode, entry.charged_blocks);
    entry.charged_as_granted = true;
  }
  const NodeId prefill = session.state() == SequenceState::kPrefilling ? session.prefill() : 0;
  if (entry.charged_prefill != 0 && entry.charged_prefill != prefill) {
    loads_.PromptDone(entry.charged_prefill, entry.charged_tokens);
    entry.charged_prefill = 0;
  }
  if (prefill != 0 && entry.charged_prefill == 0) {
    entry.charged_tokens = session.known_tokens();
    if (const Member* member = nodes_.nodes().Find(prefill); member != nullptr) {
      entry.charged_tokens -= Prefill(*member, entry).held_tokens;
    }
    loads_.PromptSent(prefill, entry.charged_tokens);
    entry.charged_prefill = prefill;
  }
  Watch(id, entry);
}

void ClusterService::Watch(SequenceId id, Entry& entry) {
  const absl::Time due = entry.session.deadline();
  // Deadlines mostly move later, with every token: the old one may fire and look again.
  if (due >= entry.watched && entry.session.state() != SequenceState::kDone) return;
  if (entry.watched != absl::InfiniteFuture()) deadlines_.erase({entry.watched, id});
  entry.watched = due;
  if (due == absl::InfiniteFuture()) return;
  deadlines_.insert({due, id});
  ArmTimer();
}

void ClusterService::Forget(SequenceId id) {
  auto it = entries_.find(id);
  Settle(id, *it->second);
  admission_.Leave(it->second->ticket);
  entries_.erase(it);
  UpdateGauges();
  SchedulePump();
}

void ClusterService::Measure(Entry& entry) {
  const SequenceSession::Times& t = entry.session.times();
  const absl::Time past = absl::InfinitePast();
  if (t.first_token == past) {
    entry.measured = 0;
    return;
  }
  if (entry.session.resumes()) return;  // The times are those to an answer's second token.
  if (entry.measured == 0) {
    entry.measured = 1;
    metrics_.StageTook(Stage::kReserve, t.granted - t.reserved);
    metrics_.StageTook(Stage::kPrefill, t.first_token - t.prefill_sent);
  }
  if (entry.measured == 1 && t.second_token != past) {
    entry.measured = 2;
    const absl::Time taken_over =
        entry.session.local() ? t.first_token : std::max(t.handed_off, t.first_token);
    metrics_.StageTook(Stage::kKvTransfer, taken_over - t.first_token);
    const int64_t sent = entry.session.known_tokens() - entry.session.grant().held_prefix_tokens();
    if (sent > 0 && !entry.session.local()) {
      transfer_per_token_ += ((taken_over - t.first_token) / sent - transfer_per_token_) * kNews;
    }
    metrics_.StageTook(Stage::kDecodeWait, std::max(t.second_token, taken_over) - taken_over);
  }
}

void ClusterService::OnTimer() {
  timer_due_ = absl::InfiniteFuture();
  const absl::Time now = loop_.Now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const SequenceId id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    Entry& entry = *entries_.at(id);
    entry.watched = absl::InfiniteFuture();
    SequenceSession& session = entry.session;
    const bool queued = session.state() == SequenceState::kQueued;
    const bool broken = session.broken();
    const absl::Duration waited = now - session.times().queued;
    absl::Status queue_status;
    Rejection rejection = Rejection::kQueueTimeout;
    if (queued) queue_status = NotPlaced(entry, waited, rejection);
    Effects effects = session.OnDeadline(queue_status, now);
    if (queued && effects.end.has_value()) {
      metrics_.LeftQueue(QueueOutcome::kTimeout, waited);
      if (!broken) metrics_.Rejected(rejection);
    }
    Apply(id, std::move(effects));
  }
  ArmTimer();
}

void ClusterService::ArmTimer() {
  if (deadlines_.empty() || deadlines_.begin()->first >= timer_due_) return;
  loop_.CancelTimer(timer_);
  timer_due_ = deadlines_.begin()->first;
  timer_ = loop_.RunAfter(timer_due_ - loop_.Now(), [this] { OnTimer(); });
}

void ClusterService::UpdateGauges() {
  metrics_.queued.Set(static_cast<double>(admission_.queued()));
  metrics_.in_flight.Set(static_cast<double>(admission_.in_flight()));
  metrics_.open_circuits.Set(breakers_.tripped());
}

}  // namespace lynx::router
