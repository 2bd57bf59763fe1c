#include "services/decode/decode_node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/node/group_status.h"
#include "common/node/request_log.h"
#include "common/node/sampling_wire.h"
#include "common/proto/step_time_wire.h"
#include "common/telemetry/log.h"
#include "services/decode/scheduler/replica_choice.h"

namespace lynx::decode {

using node::NodeMetrics;

namespace {

constexpr int32_t kAllExact = std::numeric_limits<int32_t>::max();

DecodeScheduler::Options WithGroups(DecodeScheduler::Options options, engine::Engine& engine) {
  options.groups = engine.pool().groups();
  return options;
}

}  // namespace

DecodeNode::DecodeNode(const Options& options, const StepPolicy& policy, QualityWatch& quality,
                       engine::Engine& engine, node::StepExecutor& executor, EventLoop& loop,
                       rpc::Channel& channel, NodeMetrics& metrics, node::MoeMetrics& moe_metrics)
    : options_(options),
      engine_(engine),
      executor_(executor),
      loop_(loop),
      metrics_(metrics),
      moe_metrics_(moe_metrics),
      control_({.incarnation = options.incarnation, .router_timeout = options.router_timeout}, loop,
               channel, *this),
      step_time_(options.scheduler.max_batch * engine.options().replicas),
      policy_(policy),
      quality_(quality) {
  for (int32_t i = 0; i < engine.options().replicas; ++i) {
    Replica& replica = *replicas_.emplace_back(
        std::make_unique<Replica>(i, engine.pool(i), WithGroups(options.scheduler, engine)));
    if (options.prefix_cache) replica.prefixes.emplace(replica.pool, &prefixes_);
  }
}

DecodeNode::~DecodeNode() = default;

void DecodeNode::Start(KvReceiver& receiver, handoff::KvSender& sender) {
  receiver_ = &receiver;
  sender_ = &sender;
  metrics_.SetCapacityBlocks(engine_.pool().capacity_blocks() * std::ssize(replicas_));
  metrics_.SetState(proto::NODE_STATE_READY);
  control_.Start();
}

void DecodeNode::Drain() {
  draining_ = true;
  metrics_.SetState(proto::NODE_STATE_DRAINING);
  control_.BroadcastStatus();
}

void DecodeNode::CutOff() {
  const absl::Status status = absl::UnavailableError("the node has shut down");
  for (const auto& [id, grant] : grants_) SendFailure(grant.router, id, status, 0);
  for (const auto& [id, stream] : streams_) SendFailure(stream.router, id, status, 0);
}

proto::NodeStatus DecodeNode::Status() {
  proto::NodeStatus status;
  status.set_role(proto::ROLE_DECODE);
  status.set_state(draining_ ? proto::NODE_STATE_DRAINING : proto::NODE_STATE_READY);
  status.set_model_name(options_.model_name);
  status.set_compatibility_hash(engine_.runner().compatibility_hash());
  status.set_numeric_class(engine_.runner().numeric_class());
  status.set_transfer_address(receiver_->engine().LocalAddress());
  status.set_transport(receiver_->engine().TransportName());
  status.set_vocab_size(engine_.options().vocab_size);
  status.set_max_context_tokens(options_.max_context_tokens);
  status.set_experts(engine_.runner().spec().experts);
  status.set_experts_per_token(engine_.runner().spec().experts_per_token);
  std::vector<int64_t> room;
  int64_t queued_tokens = 0;
  for (const auto& replica : replicas_) {
    room.push_back(replica->room());
    queued_tokens += replica->scheduler.queued_tokens();
  }
  node::DescribeBlocks(engine_.pool().capacity_blocks(), room, status);
  node::DescribeGroups(engine_.pool().groups(), options_.scheduler.step_rows, status);
  status.set_running_sequences(static_cast<int32_t>(streams_.size()));
  status.set_waiting_sequences(static_cast<int32_t>(grants_.size()));
  status.set_queued_prompt_tokens(queued_tokens);
  if (options_.takes_prompts) {
    status.set_prompt_rows(std::min(options_.scheduler.chunk_rows, options_.scheduler.step_rows));
  }
  StepTimeToWire(step_time_.Get(), *status.mutable_step_time());
  status.set_remaps(policy_.own().lossy());
  status.set_moves_sequences(true);
  status.set_drains_on_request(true);
  node::DescribeTotals(sampled_tokens_, moe_metrics_.totals(), status);
  return status;
}

void DecodeNode::OnRequest(Incarnation router, const proto::Envelope& envelope) {
  switch (envelope.body_case()) {
    case proto::Envelope::kReserve:
      OnReserve(router, envelope.reserve());
      return;
    case proto::Envelope::kCancel:
      Cancel(envelope.cancel().sequence(), router);
      return;
    case proto::Envelope::kHandOff:
      OnHandOff(router, envelope.hand_off());
      return;
    case proto::Envelope::kDrain:
      telemetry::LogInfo("asked to drain", {{"router", HexId(router)}});
      options_.ask_to_end ? options_.ask_to_end() : Drain();
      return;
    default:
      OnPrefill(router, envelope.prefill());
  }
}

void DecodeNode::OnReserve(Incarnation router, const proto::Reserve& request) {
  using proto::Refused;
  const SequenceId id = request.sequence();
  proto::Envelope reply;
  reply.mutable_grant()->set_sequence(id);
  if (auto grant = receiver_->FindGrant(id);
      grant && grants_.contains(id) && grants_[id].router == router) {
    *reply.mutable_grant()->mutable_grant() = *std::move(grant);
    control_.Send(router, std::move(reply));
    return;
  }
  if (streams_.contains(id) || grants_.contains(id)) {
    return Refuse(router, id, Refused::REASON_DUPLICATE, "the sequence is already here");
  }
  if (draining_) return Refuse(router, id, Refused::REASON_NOT_READY, "draining");
  const int64_t total = int64_t{request.prompt_tokens()} + request.max_new_tokens();
  if (request.prompt_tokens() <= 0 || request.max_new_tokens() <= 0 ||
      total > options_.max_context_tokens) {
    return Refuse(
        router, id, Refused::REASON_INVALID,
        absl::StrCat(request.prompt_tokens(), " prompt and ", request.max_new_tokens(),
                     " new tokens do not fit a context of ", options_.max_context_tokens));
  }
  // What the sequence may grow to must fit alone, or it could never finish. The last token is
  // sampled but its KV is never written.
  const int32_t capacity = engine_.pool().capacity_blocks();
  if (MostBlocks(total) > capacity) {
    return Refuse(router, id, Refused::REASON_TOO_LARGE,
                  absl::StrCat(total, " tokens need ", MostBlocks(total),
                               " KV blocks, this node has ", capacity));
  }
  if (int64_t{request.prefix_hashes_size()} * kv::kBlockTokens >= request.prompt_tokens()) {
    return Refuse(router, id, Refused::REASON_INVALID,
                  absl::StrCat(request.prefix_hashes_size(), " hashes of whole blocks do not fit ",
                               request.prompt_tokens(), " prompt tokens"));
  }
  const auto sequences = static_cast<int32_t>(streams_.size() + grants_.size());
  if (sequences >= options_.max_sequences) {
    return Refuse(router, id, Refused::REASON_BUSY,
                  absl::StrCat(sequences, " sequences are here, the limit"));
  }
  const kv::KvGroups& groups = engine_.pool().groups();
  int64_t end_block =
      std::min(kv::BlocksFor(request.prompt_tokens()) + 1, kv::BlocksFor(total - 1));
  if (groups.BlocksHeld(request.prompt_tokens(), end_block) > capacity) {
    // Of many groups the spare block may be what is too much.
    end_block = std::min(kv::BlocksFor(request.prompt_tokens() + 1), kv::BlocksFor(total - 1));
  }
  const int64_t needed = groups.BlocksHeld(request.prompt_tokens(), end_block);
  std::vector<kv::PrefixCache::Found> prefixes;
  std::vector<ReplicaOffer> offers;
  for (const auto& replica : replicas_) {
    const int32_t free = replica->pool.free_blocks();
    const int64_t room = replica->room();
    kv::PrefixCache::Found& found = prefixes.emplace_back(FindPrefix(*replica, request));
    found.blocks.ReleaseBefore(request.prompt_tokens());
    offers.push_back(
        {.free_blocks = room,
         .taken_blocks = free - replica->pool.free_blocks() + needed - found.blocks.held_blocks(),
         .held_blocks = std::ssize(found.tokens) / kv::kBlockTokens,
         .sequences = replica->sequences()});
  }
  const std::optional<size_t> chosen = ChooseReplica(offers);
  if (!chosen.has_value()) {
    const auto most = std::ranges::max_element(offers, {}, [](const ReplicaOffer& offer) {
      return offer.free_blocks - offer.taken_blocks;
    });
    return Refuse(router, id, Refused::REASON_BUSY,
                  absl::StrCat(most->taken_blocks, " KV blocks asked, ", most->free_blocks,
                               " free besides those kept for running sequences"));
  }
  Replica& replica = *replicas_[*chosen];
  kv::PrefixCache::Found found = std::move(prefixes[*chosen]);
  prefixes.clear();  // What the others hold is free again.
  const auto held_tokens = static_cast<int32_t>(found.tokens.size());
  kv::BlockTable lease = std::move(found.blocks);
  const absl::Status leased = lease.Extend(replica.pool, end_block * kv::kBlockTokens);
  LYNX_CHECK(leased.ok());  // This loop is the only taker, and it has just looked.
  const int64_t taken = offers[*chosen].taken_blocks;
  const absl::Duration lease_time =
      std::min(absl::Milliseconds(request.lease_ms()), options_.max_lease);
  auto grant = receiver_->Reserve({.sequence = id,
                                   .router = router,
                                   .prompt_tokens = request.prompt_tokens(),
                                   .held_prefix = std::move(found.tokens),
                                   .lease_time = lease_time,
                                   .lease = std::move(lease),
                                   .replica = replica.number});
  if (!grant.ok()) {
    return Refuse(
        router, id,
        absl::IsInvalidArgument(grant.status()) ? Refused::REASON_INVALID : Refused::REASON_BUSY,
        std::string(grant.status().message()));
  }
  grants_[id] = {.replica = &replica,
                 .router = router,
                 .prompt_tokens = request.prompt_tokens(),
                 .blocks = taken,
                 .lease = lease_time,
                 .held_tokens = held_tokens,
                 .exact_tokens = found.exact_tokens,
                 .claim = {.priority = request.priority(), .tenant = request.tenant()}};
  replica.grants += 1;
  replica.granted_blocks += taken;
  ReportLoad();
  *reply.mutable_grant()->mutable_grant() = *std::move(grant);
  control_.Send(router, std::move(reply));
  node::LogTaken("room granted", id, request.names());
}

// What the grant holds goes back and comes again as a preempted sequence's does: nobody else is
// granted it meanwhile, it is headroom.
void DecodeNode::OnPrefill(Incarnation router, const proto::Prefill& request) {
  using proto::Refused;
  const SequenceId id = request.sequence();
  if (streams_.contains(id)) {
    return Refuse(router, id, Refused::REASON_DUPLICATE, "the sequence is already here");
  }
  if (!options_.takes_prompts) {
    return Refuse(router, id, Refused::REASON_INVALID, "this decode node takes no prompts");
  }
  const auto grant = grants_.find(id);
  if (grant == grants_.end() || grant->second.router != router) {
    return Refuse(router, id, Refused::REASON_NOT_READY, "nothing is granted to the sequence here");
  }
  const int32_t tokens = request.tokens_size() + request.output_size();
  if (tokens != grant->second.prompt_tokens) {
    return Refuse(
        router, id, Refused::REASON_INVALID,
        absl::StrCat("granted for ", grant->second.prompt_tokens, " prompt tokens, not ", tokens));
  }
  if (request.cache_salt().size() > kv::kMaxSaltBytes) {
    return Refuse(router, id, Refused::REASON_INVALID,
                  absl::StrCat("a cache salt of ", request.cache_salt().size(), " bytes"));
  }
  Replica& replica = *grant->second.replica;
  auto stream = NewStream(
      replica, router, {request.tokens().begin(), request.tokens().end()}, request.sampling(),
      std::span(request.output().data(), static_cast<size_t>(request.output_size())),
      request.cache_salt());
  absl::Status status = stream.status();
  if (status.ok() && stream->sequence->finished()) {
    status = absl::InvalidArgumentError("the output so far ends the sequence");
  }
  if (!status.ok()) {
    return Refuse(router, id, Refused::REASON_INVALID, std::string(status.message()));
  }
  const Claim claim = EndGrant(grant).claim;
  stream->claim = claim;
  receiver_->Cancel(id);
  metrics_.local_prefills.Increment();
  stream->first = std::make_unique<proto::FirstToken>();
  stream->first_due =
      loop_.Now() + std::min(absl::Milliseconds(request.deadline_ms()), options_.max_prefill_time);
  replica.scheduler.AddPrompt(id, tokens, stream->sequence->params().prompt_logprobs, claim);
  streams_.emplace(id, *std::move(stream));
  node::LogTaken("prompt taken", id, request.names());
  MaybeStep();
}

void DecodeNode::OnHandOff(Incarnation router, const proto::HandOff& request) {
  using proto::Refused;
  const SequenceId id = request.sequence();
  const auto it = streams_.find(id);
  if (it == streams_.end() || it->second.router != router) {
    return Refuse(router, id, Refused::REASON_NOT_READY, "the sequence is not here");
  }
  Stream& stream = it->second;
  if (stream.sequence->cancelled()) return;  // Its last word follows.
  if (stream.leaving != nullptr) {
    return Refuse(router, id, Refused::REASON_DUPLICATE, "the sequence is leaving already");
  }
  if (absl::Status wrong = CheckHandOff(stream, request); !wrong.ok()) {
    const auto reason = absl::IsInvalidArgument(wrong)      ? Refused::REASON_INVALID
                        : absl::IsFailedPrecondition(wrong) ? Refused::REASON_INCOMPATIBLE
                                                            : Refused::REASON_BUSY;
    return Refuse(router, id, reason, std::string(wrong.message()));
  }
  stream.leaving = std::make_unique<Leaving>();
  stream.leaving->request = request;
  stream.leaving->deadline =
      loop_.Now() + std::min(absl::Milliseconds(request.deadline_ms()), options_.max_leave_time);
  leaving_ += 1;
  if (!MayLeaveNow(stream)) return;
  Leave(id);
  MaybeStep();
}

absl::Status DecodeNode::CheckHandOff(const Stream& stream, const proto::HandOff& request) const {
  const engine::Sequence& sequence = *stream.sequence;
  const proto::GrantInfo& grant = request.grant();
  const int32_t tokens = request.tokens();
  const int32_t held = grant.held_prefix_tokens();
  if (tokens <= static_cast<int32_t>(sequence.prompt().size()) || held < 0 || held >= tokens ||
      held % kv::kBlockTokens != 0 || grant.blocks() < kv::BlocksFor(tokens)) {
    return absl::InvalidArgumentError(absl::StrCat("a grant of ", grant.blocks(), " blocks, ", held,
                                                   " tokens held, does not take a sequence of ",
                                                   tokens, " tokens"));
  }
  if (grant.compatibility_hash() != engine_.runner().compatibility_hash()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the grant is for KV ", grant.compatibility_hash(), ", this node's is ",
                     engine_.runner().compatibility_hash()));
  }
  if (stream.first != nullptr) {
    return absl::UnavailableError("its prompt is still to be computed");
  }
  if (static_cast<int32_t>(sequence.tokens().size()) - 1 > tokens) {
    return absl::UnavailableError(absl::StrCat("it has ", sequence.tokens().size(),
                                               " tokens already, and was to leave with ", tokens));
  }
  if (leaving_ >= options_.max_leaving) {
    return absl::UnavailableError(absl::StrCat(leaving_, " sequences are leaving, the limit"));
  }
  return absl::OkStatus();
}

bool DecodeNode::MayLeaveNow(const Stream& stream) const {
  const engine::Sequence& sequence = *stream.sequence;
  return !stream.in_step && !sequence.cancelled() && sequence.pending_tokens() == 1 &&
         sequence.computed_tokens() == stream.leaving->request.tokens();
}

void DecodeNode::Leave(SequenceId id) {
  Stream& stream = streams_.at(id);
  stream.replica->scheduler.Remove(id);
  auto handoff = sender_->Begin(
      stream.leaving->request.grant(), stream.leaving->deadline,
      [this, id](const absl::Status& status) { OnHandedOff(id, status); }, stream.replica->number);
  if (!handoff.ok()) return Return(id, handoff.status());
  stream.leaving->handoff = *handoff;
  stream.sequence->ReleaseUnneeded();
  const absl::Status sent = SendKv(stream);
  if (!sent.ok() && !absl::IsNotFound(sent)) {
    sender_->Abort(*handoff, std::string(sent.message()));
  }
}

absl::Status DecodeNode::SendKv(Stream& stream) {
  const engine::Sequence& sequence = *stream.sequence;
  const proto::HandOff& request = stream.leaving->request;
  const handoff::KvSender::HandoffId handoff = *stream.leaving->handoff;
  const kv::KvGroups& groups = engine_.pool().groups();
  const auto past = static_cast<int32_t>(kv::BlocksFor(request.tokens()));
  for (int32_t layer = 0; layer < engine_.runner().spec().layers; ++layer) {
    const int32_t group = groups.group_of(layer);
    const int32_t first = std::max(request.grant().held_prefix_tokens() / kv::kBlockTokens,
                                   groups.FirstBlock(group, request.tokens()));
    if (past <= first) continue;
    LYNX_RETURN_IF_ERROR(
        sender_->Push(handoff, layer, first,
                      sequence.blocks().group(group).subspan(static_cast<size_t>(first),
                                                             static_cast<size_t>(past - first))));
  }
  proto::CommitBody body;
  body.set_sequence(request.granted_sequence());
  body.set_router(stream.router);
  body.mutable_prompt()->Assign(sequence.prompt().begin(), sequence.prompt().end());
  const std::span<const TokenId> output = sequence.output();
  body.mutable_output()->Assign(output.begin(), output.end() - 1);
  body.mutable_first_token()->set_id(output.back());
  *body.mutable_sampling() = stream.sampling;
  body.set_cache_salt(stream.cache_salt);
  body.set_blocks(past);
  body.set_exact_tokens(stream.exact_tokens);
  body.set_foreign_prompt(stream.foreign_prompt);
  return sender_->Commit(handoff, body);
}

void DecodeNode::OnHandedOff(SequenceId id, const absl::Status& status) {
  Stream& stream = streams_.at(id);
  if (stream.sequence->cancelled()) {
    Erase(id);
    return MaybeStep();
  }
  if (!status.ok()) {
    Return(id, status);
    return MaybeStep();
  }
  metrics_.OnFinished(NodeMetrics::FinishReason::kHandOff);
  proto::Terminal terminal;
  terminal.set_kind(proto::Terminal::KIND_HANDED_OFF);
  terminal.set_output_tokens(static_cast<uint32_t>(stream.sequence->output().size()));
  SendTerminal(stream.router, id, std::move(terminal));
  KeepPrefix(stream);
  Forget(id);
  MaybeStep();
}

// The other node may have adopted it all the same, if its answer is what was lost: the router hears
// of that, and listens to one of the two.
void DecodeNode::Return(SequenceId id, const absl::Status& why) {
  Stream& stream = streams_.at(id);
  telemetry::LogWarning("a sequence stays, its hand-off failed",
                        {{"sequence", HexId(id)}, {"status", std::string(why.ToString())}});
  const auto tokens = static_cast<int32_t>(stream.sequence->tokens().size());
  stream.replica->scheduler.Add(id, tokens, stream.sequence->blocks().end_block(),
                                options_.prefix_cache ? (tokens - 1) / kv::kBlockTokens : 0,
                                stream.claim);
  Stay(id, std::string(why.message()));
}

void DecodeNode::Stay(SequenceId id, const std::string& why) {
  Stream& stream = streams_.at(id);
  stream.leaving = nullptr;
  leaving_ -= 1;
  Refuse(stream.router, id, proto::Refused::REASON_BUSY, why);
}

DecodeNode::Granted DecodeNode::EndGrant(std::map<SequenceId, Granted>::iterator grant) {
  const Granted ended = grant->second;
  ended.replica->grants -= 1;
  ended.replica->granted_blocks -= ended.blocks;
  grants_.erase(grant);
  return ended;
}

kv::PrefixCache::Found DecodeNode::FindPrefix(Replica& replica, const proto::Reserve& request) {
  if (!replica.prefixes.has_value()) return {};
  const auto asked = policy_.Asked(request.policy());
  const std::span<const kv::PrefixHash> hashes(request.prefix_hashes().data(),
                                               static_cast<size_t>(request.prefix_hashes_size()));
  return replica.prefixes->Find(hashes, asked.ok() && MayBeLossy(*asked));
}

bool DecodeNode::MayBeLossy(const std::optional<moe::Policy>& asked) const {
  return asked.has_value() ? asked->lossy() : policy_.own().lossy();
}

void DecodeNode::Refuse(Incarnation router, SequenceId id, proto::Refused::Reason reason,
                        const std::string& message) {
  proto::Envelope envelope;
  proto::Refused& refused = *envelope.mutable_refused();
  refused.set_sequence(id);
  refused.set_reason(reason);
  refused.set_message(message);
  control_.Send(router, std::move(envelope));
}

void DecodeNode::OnAdopt(Adopted adopted) {
  const SequenceId id = adopted.sequence;
  auto grant = grants_.find(id);
  LYNX_CHECK(grant != grants_.end() && !streams_.contains(id));
  const Granted granted = EndGrant(grant);

  std::vector<TokenId> output(adopted.body.output().begin(), adopted.body.output().end());
  output.push_back(adopted.body.first_token().id());
  const int32_t prompt_tokens = adopted.body.prompt_size() + adopted.body.output_size();
  auto stream = NewStream(*granted.replica, adopted.router,
                          {adopted.body.prompt().begin(), adopted.body.prompt().end()},
                          adopted.body.sampling(), output, adopted.body.cache_salt());
  absl::Status status = stream.status();
  if (status.ok() && stream->sequence->finished()) {
    status = absl::InvalidArgumentError("a finished sequence was handed off");
  }
  // What else was held for it than what was asked for when it was, or by a node of another numeric
  // class, is not what that node would have computed.
  const bool same_class = adopted.same_class && !adopted.body.foreign_prompt();
  const bool held_exact = granted.exact_tokens == granted.held_tokens;
  if (status.ok() && granted.held_tokens > 0 && !MayBeLossy(stream->policy) &&
      !(held_exact && same_class)) {
    status = absl::AbortedError(absl::StrCat("the sequence is to be exact, and of the ",
                                             granted.held_tokens, " tokens held for it ",
                                             same_class ? granted.exact_tokens : 0, " are"));
  }
  if (!status.ok()) {
    SendFailure(adopted.router, id, status, static_cast<int64_t>(output.size()));
    ReportLoad();
    return;
  }
  const int32_t end_block = adopted.lease.end_block();
  stream->sequence->AdoptKv(std::move(adopted.lease), prompt_tokens);
  metrics_.prompt_tokens_transferred.Increment(prompt_tokens - granted.held_tokens);
  metrics_.prompt_tokens_held.Increment(granted.held_tokens);
  granted.replica->scheduler.Add(id, prompt_tokens + 1, end_block,
                                 options_.prefix_cache ? prompt_tokens / kv::kBlockTokens : 0,
                                 granted.claim);
  stream->claim = granted.claim;
  if (!held_exact || !same_class) stream->exact_tokens = granted.exact_tokens;
  if (adopted.body.has_exact_tokens()) {
    stream->exact_tokens = std::min(stream->exact_tokens, std::max(0, adopted.body.exact_tokens()));
  }
  stream->foreign_prompt = !same_class && !MayBeLossy(stream->policy);
  KeepPrefix(*stream);
  streams_.emplace(id, *std::move(stream));
  MaybeStep();
}

absl::StatusOr<DecodeNode::Stream> DecodeNode::NewStream(Replica& replica, Incarnation router,
                                                         std::vector<TokenId> prompt,
                                                         const proto::SamplingParams& sampling,
                                                         std::span<const TokenId> output,
                                                         const std::string& cache_salt) {
  Stream stream;
  stream.replica = &replica;
  stream.router = router;
  stream.root_prefix = kv::RootPrefix(cache_salt);
  stream.sampling = sampling;
  stream.cache_salt = cache_salt;
  stream.adopted = loop_.Now();
  const int64_t most = std::min(static_cast<int64_t>(prompt.size()) + sampling.max_new_tokens(),
                                int64_t{options_.max_context_tokens});
  engine::SamplingParams params = node::SamplingFromWire(sampling);
  if (!output.empty()) params.prompt_logprobs = false;  // Prefill has reported them.
  LYNX_ASSIGN_OR_RETURN(
      stream.sequence, engine::Sequence::Create(std::move(prompt), std::move(params),
                                                {.vocab_size = engine_.options().vocab_size,
                                                 .max_context_tokens = options_.max_context_tokens},
                                                output));
  stream.sequence->PlaceOn(replica.number);
  // The reservation was checked for room, the parameters come later: a sequence that may outgrow
  // the pool would wait for blocks for ever, and those behind it too.
  if (MostBlocks(most) > engine_.pool().capacity_blocks()) {
    return absl::InvalidArgumentError(absl::StrCat("it may grow to ", most,
                                                   " tokens, this node has ",
                                                   engine_.pool().capacity_blocks(), " KV blocks"));
  }
  auto policy = policy_.Asked(sampling.policy());
  if (!policy.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("policy '", sampling.policy().substr(0, 256),
                                                   "': ", std::string(policy.status().message())));
  }
  stream.policy = *std::move(policy);
  return stream;
}

void DecodeNode::OnFailed(uint64_t sequence, Incarnation router, const absl::Status& status) {
  auto grant = grants_.find(sequence);
  LYNX_CHECK(grant != grants_.end());
  EndGrant(grant);
  SendFailure(router, sequence, status, 0);
  ReportLoad();
}

void DecodeNode::Cancel(SequenceId id, Incarnation router) {
  if (auto grant = grants_.find(id); grant != grants_.end() && grant->second.router == router) {
    const absl::Time began = loop_.Now();
    EndGrant(grant);
    receiver_->Cancel(id);
    metrics_.release_seconds.Observe(absl::ToDoubleSeconds(loop_.Now() - began));
    metrics_.OnFinished(NodeMetrics::FinishReason::kAbort);
    proto::Terminal terminal;
    terminal.set_kind(proto::Terminal::KIND_CANCELLED);
    SendTerminal(router, id, std::move(terminal));
    ReportLoad();
    return;
  }
  auto it = streams_.find(id);
  if (it == streams_.end() || it->second.router != router) return;
  Stream& stream = it->second;
  if (stream.sequence->cancelled()) return;
  stream.sequence->Cancel();
  stream.cancelled = loop_.Now();
  if (stream.leaving != nullptr && stream.leaving->handoff.has_value()) {
    sender_->Abort(*stream.leaving->handoff,
                   "the sequence was cancelled");  // OnHandedOff() follows.
    return;
  }
  if (!stream.in_step) {
    Erase(id);
    MaybeStep();
  }
}

void DecodeNode::OnRouterAlive(Incarnation router, std::span<const uint64_t> sequences) {
  for (SequenceId id : sequences) {
    auto grant = grants_.find(id);
    if (grant == grants_.end() || grant->second.router != router) continue;
    receiver_->Extend(id, grant->second.lease);
  }
}

void DecodeNode::OnRouterLost(Incarnation router) {
  std::vector<SequenceId> lost;
  for (const auto& [id, grant] : grants_) {
    if (grant.router == router) lost.push_back(id);
  }
  for (const auto& [id, stream] : streams_) {
    if (stream.router == router) lost.push_back(id);
  }
  for (SequenceId id : lost) Cancel(id, router);
}

void DecodeNode::FailLate() {
  std::vector<SequenceId> late;
  for (const auto& [id, stream] : streams_) {
    if (stream.first != nullptr && stream.first_due <= loop_.Now()) late.push_back(id);
  }
  for (const SequenceId id : late) {
    SendFailure(streams_.at(id).router, id,
                absl::DeadlineExceededError("the prompt was not computed in time"), 0);
    Forget(id);
  }
  if (leaving_ == 0) return;
  late.clear();
  for (const auto& [id, stream] : streams_) {
    const Leaving* leaving = stream.leaving.get();
    if (leaving == nullptr || leaving->handoff.has_value()) continue;
    if (leaving->deadline <= loop_.Now()) late.push_back(id);
  }
  for (const SequenceId id : late) Stay(id, "it did not come to where it was to leave in time");
}

void DecodeNode::MaybeStep() {
  if (stepping_) return;
  FailLate();
  std::vector<DecodeScheduler::Work> step;  // Of all replicas.
  for (const auto& replica : replicas_) {
    const auto plan = replica->scheduler.Next(replica->pool.free_blocks(), *this);
    for (const DecodeScheduler::Work& work : plan.work) {
      // The plan has counted what this takes as free.
      const absl::Status room = streams_.at(work.id).sequence->EnsureBlocks(
          replica->pool, int64_t{work.start} + work.rows);
      LYNX_CHECK_MSG(room.ok(), std::string(room.message()));
    }
    step.insert(step.end(), plan.work.begin(), plan.work.end());
  }
  ReportLoad();
  if (step.empty()) return;
  step_ids_.clear();
  items_.clear();
  const moe::Policy* automatic = quality_.AutoPolicy();
  for (const auto& replica : replicas_) replica->rows = 0;
  for (const DecodeScheduler::Work& work : step) {
    Stream& stream = streams_.at(work.id);
    stream.in_step = true;
    if (std::exchange(stream.waits, false)) {
      metrics_.queue_seconds.Observe(absl::ToDoubleSeconds(loop_.Now() - stream.adopted));
    }
    step_ids_.push_back(work.id);
    items_.push_back(
        {.sequence = stream.sequence.get(),
         .tokens = work.rows,
         // The newest token's row is one of decoding, also where all before it came back.
         .policy = work.recompute && (work.rows > 1 || stream.first != nullptr)
                       ? nullptr
                       : policy_.Choose(stream.policy, automatic)});
  }
  shadow_ = quality_.BeginStep(items_);
  backed_off_ = quality_.took_policies();
  stepping_ = true;
  step_began_ = loop_.Now();
  executor_.Run([this] { step_status_ = engine_.Step(items_, this, shadow_); },
                [this] { OnStepDone(); });
}

int64_t DecodeNode::Preempt(SequenceId id) {
  Stream& stream = streams_.at(id);
  metrics_.preemptions.Increment();
  KeepPrefix(stream);
  SwapOut(stream);
  const kv::BlockPool& pool = stream.replica->pool;
  const int32_t free = pool.free_blocks();
  stream.sequence->Preempt();
  return pool.free_blocks() - free;
}

void DecodeNode::SwapOut(Stream& stream) {
  const engine::Sequence& sequence = *stream.sequence;
  kv::KvArena& kv = engine_.runner().kv();
  const int32_t position = sequence.computed_tokens();
  const int64_t bytes = kv::SwappedKv::BytesOf(kv.layout(), position);
  int64_t space = options_.swap_space - bytes;
  for (const auto& [id, other] : streams_) {
    if (other.swapped != nullptr && other.replica == stream.replica) {
      space -= other.swapped->bytes();
    }
  }
  if (position == 0 || space < 0) return;
  if (!stream.foreign_prompt && !swap_cost_.CopyIsCheaper(step_time_.Get(), bytes, position)) {
    return;
  }
  const absl::Time began = loop_.Now();
  auto copy =
      NodeKvCopy::Make(kv, options_.ranks, stream.replica->number, sequence.blocks(), position);
  if (!copy.ok()) {
    telemetry::LogError("cannot copy KV, it will be computed again",
                        {{"status", std::string(copy.status().ToString())}});
    return;
  }
  stream.swapped = *std::move(copy);
  // Other replicas' ranks copy later, each for itself; a copy costs them what it costs here.
  if (stream.replica->number == 0) {
    swap_cost_.OnCopy(stream.swapped->bytes(), loop_.Now() - began);
  }
  metrics_.swapped_out_bytes.Increment(static_cast<double>(stream.swapped->bytes()));
}

int32_t DecodeNode::SwapIn(Stream& stream) {
  engine::Sequence& sequence = *stream.sequence;
  Replica& replica = *stream.replica;
  const kv::KvGroups& groups = replica.pool.groups();
  const int32_t position = stream.swapped->position();
  kv::BlockTable table;
  // What is here of it still, with the same bits or as good, is shared again. In windows that could
  // take more than the plan has counted.
  if (replica.prefixes.has_value() && groups.count() == 1 && !groups.reach(0).bounded()) {
    const bool lossy_too = MayBeLossy(stream.policy);
    kv::PrefixCache::Found found = replica.prefixes->Find(
        stream.root_prefix, sequence.tokens().first(static_cast<size_t>(position) + 1), lossy_too);
    const auto held = static_cast<int32_t>(found.blocks.capacity_tokens());
    if (lossy_too || held <= stream.exact_tokens) {
      if (found.exact_tokens < held) {
        stream.exact_tokens = std::min(stream.exact_tokens, found.exact_tokens);
      }
      table = std::move(found.blocks);
    }
  }
  const int32_t held_blocks = table.end_block();
  table.ReleaseBefore(position);
  const absl::Status leased = table.Extend(replica.pool, position);
  LYNX_CHECK_MSG(leased.ok(), std::string(leased.message()));
  const absl::Status restored = stream.swapped->Restore(table, held_blocks);
  stream.swapped.reset();
  if (!restored.ok()) {
    telemetry::LogError("cannot copy KV back, it is computed again",
                        {{"status", std::string(restored.ToString())}});
    return 0;
  }
  sequence.AdoptKv(std::move(table), position);
  return position;
}

int32_t DecodeNode::TakePrefix(Stream& stream, int64_t free_blocks) {
  stream.exact_tokens = kAllExact;  // Recomputed rows are.
  engine::Sequence& sequence = *stream.sequence;
  // Log-probabilities of a prompt need logits of all its rows.
  std::optional<kv::PrefixCache>& prefixes = stream.replica->prefixes;
  if (!prefixes.has_value() || sequence.params().prompt_logprobs) return 0;
  const kv::BlockPool& pool = stream.replica->pool;
  const int32_t free = pool.free_blocks();
  kv::PrefixCache::Found found =
      prefixes->Find(stream.root_prefix, sequence.tokens(), MayBeLossy(stream.policy));
  if (found.blocks.empty()) return 0;
  const auto held = static_cast<int32_t>(found.blocks.capacity_tokens());
  // As ReserveBlocks() will lease.
  const int64_t missing = pool.groups().MostBlocks(static_cast<int64_t>(sequence.tokens().size()),
                                                   options_.scheduler.step_rows) +
                          found.blocks.shared_in_windows() - found.blocks.held_blocks();
  if (free - pool.free_blocks() + std::max<int64_t>(missing, 0) > free_blocks) return 0;
  if (found.exact_tokens < held) stream.exact_tokens = found.exact_tokens;
  sequence.AdoptKv(std::move(found.blocks), held);
  return held;
}

DecodeScheduler::Leases::Resumed DecodeNode::Resume(SequenceId id, int64_t free_blocks) {
  Stream& stream = streams_.at(id);
  engine::Sequence& sequence = *stream.sequence;
  kv::BlockPool& pool = stream.replica->pool;
  const int32_t free = pool.free_blocks();
  const int32_t back = stream.swapped != nullptr ? SwapIn(stream) : TakePrefix(stream, free_blocks);
  const absl::Status reserved = sequence.ReserveBlocks(
      pool, static_cast<int64_t>(sequence.tokens().size()), options_.scheduler.step_rows);
  LYNX_CHECK_MSG(reserved.ok(), std::string(reserved.message()));
  if (stream.first != nullptr && stream.waits) {
    stream.first->set_cached_tokens(back);
    metrics_.prompt_tokens_cached.Increment(back);
  }
  return {.tokens = back, .taken = free - pool.free_blocks()};
}

void DecodeNode::KeepPrefix(const Stream& stream) {
  std::optional<kv::PrefixCache>& prefixes = stream.replica->prefixes;
  if (!prefixes.has_value()) return;
  const engine::Sequence& sequence = *stream.sequence;
  prefixes->Keep(stream.root_prefix,
                 sequence.tokens().first(static_cast<size_t>(sequence.computed_tokens())),
                 stream.exact_tokens, sequence.blocks());
}

int64_t DecodeNode::MostBlocks(int64_t tokens) const {
  return engine_.pool().groups().MostBlocks(tokens - 1, options_.scheduler.step_rows);
}

void DecodeNode::OnLeft(engine::Sequence& sequence) {
  loop_.Post([this, left = &sequence] {
    const auto item = std::ranges::find(items_, left, &engine::WorkItem::sequence);
    const SequenceId id = step_ids_[static_cast<size_t>(item - items_.begin())];
    streams_.at(id).in_step = false;
    Erase(id);
  });
}

void DecodeNode::OnStepDone() {
  stepping_ = false;
  const absl::Duration took = loop_.Now() - step_began_;
  quality_.EndStep(step_status_, engine_.results(), engine_.runner().stats(), took, loop_.Now());
  std::map<Incarnation, proto::Envelope> batches;
  std::vector<std::pair<SequenceId, proto::Terminal>> finished;
  std::vector<SequenceId> leaving;
  int64_t rows = 0;
  const auto& plans = engine_.runner().stats().plans;
  const bool remapped = std::any_of(plans.begin(), plans.end(), [](const moe::PlanStats& plan) {
    return plan.bypass == moe::Bypass::kNone;
  });
  for (size_t i = 0; i < step_ids_.size(); ++i) {
    const SequenceId id = step_ids_[i];
    const auto it = streams_.find(id);
    if (it == streams_.end() || !it->second.in_step) continue;  // It has left the step.
    Stream& stream = it->second;
    stream.in_step = false;
    rows += items_[i].tokens;
    stream.replica->rows += items_[i].tokens;
    if (remapped && items_[i].policy != nullptr && items_[i].policy->lossy()) {
      stream.exact_tokens = std::min(stream.exact_tokens, stream.sequence->computed_tokens() - 1);
    }
    if (stream.sequence->cancelled()) {
      Erase(id);
      continue;
    }
    absl::Status status = step_status_;
    if (status.ok()) status = engine_.results()[i].status;
    if (!status.ok()) {
      if (absl::IsInternal(status)) metrics_.bad_logits.Increment();
      SendFailure(stream.router, id, status,
                  static_cast<int64_t>(stream.sequence->output().size()));
      Forget(id);
      continue;
    }
    const engine::ItemResult& result = engine_.results()[i];
    if (stream.first != nullptr) {
      metrics_.prompt_tokens_computed.Increment(items_[i].tokens);
      for (const engine::SampledToken& token : result.prompt_logprobs) {
        *stream.first->add_prompt() = node::TokenToWire(token);
      }
    }
    if (!result.has_token) continue;
    metrics_.output_tokens.Increment();
    ++sampled_tokens_;
    const engine::Sequence& sequence = *stream.sequence;
    const bool stopped = sequence.finish_reason() == engine::FinishReason::kStop;
    if (stream.first != nullptr) {
      SendFirstToken(id, stream, result);
    } else if (!stopped) {
      auto& entry = *batches[stream.router].mutable_token_batch()->add_entries();
      entry.set_sequence(id);
      entry.set_position(static_cast<uint32_t>(sequence.output().size() - 1));
      *entry.add_tokens() = node::TokenToWire(result.token);
    }
    if (!sequence.finished()) {
      stream.replica->scheduler.OnToken(id);
      if (stream.leaving != nullptr) leaving.push_back(id);
      continue;
    }
    proto::Terminal terminal;
    terminal.set_kind(proto::Terminal::KIND_FINISHED);
    terminal.set_finish_reason(stopped ? proto::Terminal::FINISH_REASON_STOP
                                       : proto::Terminal::FINISH_REASON_LENGTH);
    terminal.set_output_tokens(static_cast<uint32_t>(sequence.output().size()));
    finished.emplace_back(id, std::move(terminal));
    metrics_.OnFinished(stopped ? NodeMetrics::FinishReason::kStop
                                : NodeMetrics::FinishReason::kLength);
  }
  if (step_status_.ok()) {
    metrics_.OnStep(static_cast<int64_t>(step_ids_.size()), rows, absl::ToDoubleSeconds(took));
    step_time_.Add(rows, took);
    for (const auto& replica : replicas_) metrics_.OnReplicaRows(replica->number, replica->rows);
    last_stats_ = engine_.runner().stats();
  }
  // A sequence's last tokens go out before its last word.
  for (auto& [router, envelope] : batches) control_.Send(router, std::move(envelope));
  for (auto& [id, terminal] : finished) {
    SendTerminal(streams_.at(id).router, id, std::move(terminal));
    KeepPrefix(streams_.at(id));
    Forget(id);
  }
  for (const SequenceId id : leaving) {
    Stream& stream = streams_.at(id);
    if (MayLeaveNow(stream)) {
      Leave(id);
    } else if (stream.sequence->computed_tokens() > stream.leaving->request.tokens()) {
      Stay(id, "it has come past where it was to leave");
    }
  }
  const bool completed = step_status_.ok();
  const bool backed_off = backed_off_;
  MaybeStep();
  // A series or more per layer: counted while the next step runs.
  if (completed) moe_metrics_.OnStep(last_stats_, backed_off);
}

void DecodeNode::SendFirstToken(SequenceId id, Stream& stream, const engine::ItemResult& result) {
  proto::Envelope envelope;
  proto::FirstToken& first = *envelope.mutable_first_token();
  first = std::move(*std::exchange(stream.first, nullptr));
  first.set_sequence(id);
  first.set_position(static_cast<uint32_t>(stream.sequence->output().size() - 1));
  if (stream.sequence->finish_reason() != engine::FinishReason::kStop) {
    *first.mutable_token() = node::TokenToWire(result.token);
  }
  control_.Send(stream.router, std::move(envelope));
  KeepPrefix(stream);
}

void DecodeNode::SendTerminal(Incarnation router, SequenceId id, proto::Terminal terminal) {
  proto::Envelope envelope;
  *envelope.mutable_terminal() = std::move(terminal);
  envelope.mutable_terminal()->set_sequence(id);
  control_.Send(router, std::move(envelope));
}

void DecodeNode::SendFailure(Incarnation router, SequenceId id, const absl::Status& status,
                             int64_t output_tokens) {
  telemetry::LogWarning("sequence failed",
                        {{"sequence", HexId(id)}, {"status", std::string(status.ToString())}});
  metrics_.OnFinished(NodeMetrics::FinishReason::kError);
  proto::Terminal terminal;
  terminal.set_kind(proto::Terminal::KIND_FAILED);
  terminal.set_status_code(static_cast<uint32_t>(status.code()));
  terminal.set_message(std::string(status.message()));
  terminal.set_output_tokens(static_cast<uint32_t>(output_tokens));
  SendTerminal(router, id, std::move(terminal));
}

void DecodeNode::Forget(SequenceId id) {
  const auto it = streams_.find(id);
  it->second.replica->scheduler.Remove(id);
  if (it->second.leaving != nullptr) leaving_ -= 1;
  streams_.erase(it);
}

// Ends a cancelled stream that is in no step: its blocks return here.
void DecodeNode::Erase(SequenceId id) {
  auto it = streams_.find(id);
  proto::Terminal terminal;
  terminal.set_kind(proto::Terminal::KIND_CANCELLED);
  terminal.set_output_tokens(static_cast<uint32_t>(it->second.sequence->output().size()));
  const Incarnation router = it->second.router;
  const absl::Time cancelled = it->second.cancelled;
  KeepPrefix(it->second);
  Forget(id);
  metrics_.release_seconds.Observe(absl::ToDoubleSeconds(loop_.Now() - cancelled));
  metrics_.OnFinished(NodeMetrics::FinishReason::kAbort);
  SendTerminal(router, id, std::move(terminal));
  ReportLoad();
}

void DecodeNode::ReportLoad() {
  control_.LoadChanged();
  int64_t free = 0;
  int64_t used = 0;
  int64_t granted = 0;
  int64_t cached = 0;
  int64_t running = 0;
  int64_t waiting = 0;
  for (const auto& replica : replicas_) {
    const kv::BlockPool& pool = replica->pool;
    free += pool.free_blocks();
    used += pool.capacity_blocks() - pool.free_blocks() - replica->granted_blocks;
    granted += replica->granted_blocks;
    cached += pool.cached_blocks();
    running += replica->scheduler.running();
    waiting += replica->scheduler.sequences() - replica->scheduler.running();
    metrics_.SetReplica(replica->number, replica->sequences(), pool.free_blocks());
  }
  metrics_.SetBlocks(free, used, granted);
  metrics_.SetCachedBlocks(cached);
  metrics_.SetLoad(running, waiting);
}

}  // namespace lynx::decode
