#include "services/prefill/prefill_node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/model/model_spec.h"
#include "common/node/group_status.h"
#include "common/node/request_log.h"
#include "common/node/sampling_wire.h"
#include "common/proto/step_time_wire.h"
#include "common/telemetry/log.h"
#include "services/prefill/scheduler/replica_choice.h"

namespace lynx::prefill {
namespace {

proto::Terminal TerminalOf(proto::Terminal::Kind kind) {
  proto::Terminal terminal;
  terminal.set_kind(kind);
  return terminal;
}

}  // namespace

PrefillNode::PrefillNode(const Options& options, engine::Engine& engine, handoff::KvSender& sender,
                         node::StepExecutor& executor, EventLoop& loop, rpc::Channel& channel,
                         node::NodeMetrics& metrics, node::MoeMetrics& moe_metrics)
    : options_(options),
      engine_(engine),
      sender_(sender),
      executor_(executor),
      loop_(loop),
      metrics_(metrics),
      moe_metrics_(moe_metrics),
      control_({.incarnation = options.incarnation, .router_timeout = options.router_timeout}, loop,
               channel, *this),
      step_time_(options.scheduler.step_rows * engine.options().replicas) {
  for (int32_t i = 0; i < engine.options().replicas; ++i) {
    Replica& replica =
        *replicas_.emplace_back(std::make_unique<Replica>(i, engine.pool(i), options.scheduler));
    if (options.prefix_cache) replica.prefixes.emplace(replica.pool, &prefixes_);
  }
}

PrefillNode::~PrefillNode() {
  for (auto& [id, job] : jobs_) loop_.CancelTimer(job.deadline_timer);
}

void PrefillNode::Start() {
  metrics_.SetCapacityBlocks(engine_.pool().capacity_blocks() * std::ssize(replicas_));
  metrics_.SetState(proto::NODE_STATE_READY);
  control_.Start();
}

void PrefillNode::Drain() {
  draining_ = true;
  metrics_.SetState(proto::NODE_STATE_DRAINING);
  control_.BroadcastStatus();
}

void PrefillNode::CutOff() {
  std::vector<SequenceId> ids;
  for (const auto& [id, job] : jobs_) ids.push_back(id);
  for (const SequenceId id : ids) {  // A hand-off's end may take others along.
    auto it = jobs_.find(id);
    if (it == jobs_.end() || it->second.ended) continue;
    Fail(it->second, absl::UnavailableError("the node has shut down"));
  }
}

proto::NodeStatus PrefillNode::Status() {
  proto::NodeStatus status;
  status.set_role(proto::ROLE_PREFILL);
  status.set_state(draining_ ? proto::NODE_STATE_DRAINING : proto::NODE_STATE_READY);
  status.set_model_name(options_.model_name);
  status.set_compatibility_hash(engine_.runner().compatibility_hash());
  status.set_numeric_class(engine_.runner().numeric_class());
  status.set_transfer_address(sender_.engine().LocalAddress());
  status.set_transport(sender_.engine().TransportName());
  status.set_vocab_size(engine_.options().vocab_size);
  status.set_max_context_tokens(options_.max_context_tokens);
  status.set_experts(engine_.runner().spec().experts);
  status.set_experts_per_token(engine_.runner().spec().experts_per_token);
  std::vector<int64_t> free;
  int32_t waiting = 0;
  int64_t queued_tokens = 0;
  for (const auto& replica : replicas_) {
    free.push_back(replica->pool.free_blocks());
    waiting += replica->scheduler.waiting();
    queued_tokens += replica->scheduler.queued_tokens();
  }
  node::DescribeBlocks(engine_.pool().capacity_blocks(), free, status);
  node::DescribeGroups(engine_.pool().groups(), options_.scheduler.step_rows, status);
  status.set_running_sequences(static_cast<int32_t>(jobs_.size()) - waiting);
  status.set_waiting_sequences(waiting);
  status.set_queued_prompt_tokens(queued_tokens);
  StepTimeToWire(step_time_.Get(), *status.mutable_step_time());
  status.set_drains_on_request(true);
  node::DescribeTotals(computed_tokens_, moe_metrics_.totals(), status);
  return status;
}

void PrefillNode::OnRequest(Incarnation router, const proto::Envelope& envelope) {
  switch (envelope.body_case()) {
    case proto::Envelope::kPrefill:
      OnPrefill(router, envelope.prefill());
      return;
    case proto::Envelope::kCancel: {
      auto it = jobs_.find(envelope.cancel().sequence());
      if (it != jobs_.end() && it->second.router == router) Cancel(it->first);
      return;
    }
    case proto::Envelope::kHandOff:
      Refuse(router, envelope.hand_off().sequence(), proto::Refused::REASON_INVALID,
             "a prefill node hands prompts over by itself");
      return;
    case proto::Envelope::kDrain:
      telemetry::LogInfo("asked to drain", {{"router", HexId(router)}});
      options_.ask_to_end ? options_.ask_to_end() : Drain();
      return;
    default:
      Refuse(router, envelope.reserve().sequence(), proto::Refused::REASON_INVALID,
             "a prefill node grants no room");
  }
}

void PrefillNode::OnPrefill(Incarnation router, const proto::Prefill& request) {
  using proto::Refused;
  const SequenceId id = request.sequence();
  if (jobs_.contains(id)) {
    return Refuse(router, id, Refused::REASON_DUPLICATE, "the sequence is already here");
  }
  if (draining_) return Refuse(router, id, Refused::REASON_NOT_READY, "draining");
  if (request.grant().compatibility_hash() != engine_.runner().compatibility_hash()) {
    return Refuse(router, id, Refused::REASON_INCOMPATIBLE,
                  absl::StrCat("the grant is for KV ", request.grant().compatibility_hash(),
                               ", this node makes ", engine_.runner().compatibility_hash()));
  }
  auto params = node::SamplingFromWire(request.sampling());
  if (request.output_size() > 0) params.prompt_logprobs = false;  // They were reported.
  const bool all_logits = params.prompt_logprobs;
  auto sequence = engine::Sequence::Create(
      {request.tokens().begin(), request.tokens().end()}, std::move(params),
      {.vocab_size = engine_.options().vocab_size,
       .max_context_tokens = options_.max_context_tokens},
      std::span(request.output().data(), static_cast<size_t>(request.output_size())));
  absl::Status created = sequence.status();
  if (created.ok() && (*sequence)->finished()) {
    created = absl::InvalidArgumentError("the output so far ends the sequence");
  }
  if (!created.ok()) {
    return Refuse(router, id, Refused::REASON_INVALID, std::string(created.message()));
  }
  const int32_t tokens = request.tokens_size() + request.output_size();
  // What is pushed and committed later must lie within the grant.
  const int32_t held = request.grant().held_prefix_tokens();
  if (held < 0 || held >= tokens || held % kv::kBlockTokens != 0 ||
      request.grant().blocks() < kv::BlocksFor(tokens)) {
    return Refuse(router, id, Refused::REASON_INVALID,
                  absl::StrCat("a grant of ", request.grant().blocks(), " blocks, ", held,
                               " tokens held, does not take ", tokens, " prompt tokens"));
  }
  if (request.cache_salt().size() > kv::kMaxSaltBytes) {
    return Refuse(router, id, Refused::REASON_INVALID,
                  absl::StrCat("a cache salt of ", request.cache_salt().size(), " bytes"));
  }
  const int64_t blocks = engine_.pool().groups().MostBlocks(tokens, options_.scheduler.step_rows);
  if (blocks > engine_.pool().capacity_blocks()) {
    return Refuse(router, id, Refused::REASON_TOO_LARGE,
                  absl::StrCat(tokens, " prompt tokens need ", blocks, " KV blocks, this node has ",
                               engine_.pool().capacity_blocks()));
  }
  const absl::Duration allowed =
      std::min(absl::Milliseconds(request.deadline_ms()), options_.max_prefill_time);
  const absl::Time deadline = loop_.Now() + allowed;
  Replica& replica = ChooseReplicaFor(request, **sequence);
  const absl::Status queued = replica.scheduler.Add({.id = id,
                                                     .tokens = tokens,
                                                     .deadline = deadline,
                                                     .all_logits = all_logits,
                                                     .priority = request.priority(),
                                                     .tenant = request.tenant()});
  if (!queued.ok()) {
    return Refuse(router, id, Refused::REASON_BUSY, std::string(queued.message()));
  }

  Job& job = jobs_[id];
  job.id = id;
  job.replica = &replica;
  job.replica->jobs += 1;
  job.router = router;
  job.sequence = *std::move(sequence);
  job.tokens = tokens;
  job.sequence->PlaceOn(replica.number);
  job.grant = request.grant();
  job.sampling = request.sampling();
  job.cache_salt = request.cache_salt();
  job.arrived = loop_.Now();
  job.deadline = deadline;
  job.deadline_timer = loop_.RunAfter(allowed, [this, id] {
    auto it = jobs_.find(id);
    if (it == jobs_.end() || it->second.ended) return;
    Fail(it->second, absl::DeadlineExceededError("the prompt was not handed off in time"));
    EraseIfDone(id);
  });
  node::LogTaken("prompt taken", id, request.names());
  MaybeStep();
}

void PrefillNode::Refuse(Incarnation router, SequenceId id, proto::Refused::Reason reason,
                         const std::string& message) {
  proto::Envelope envelope;
  proto::Refused& refused = *envelope.mutable_refused();
  refused.set_sequence(id);
  refused.set_reason(reason);
  refused.set_message(message);
  control_.Send(router, std::move(envelope));
}

PrefillNode::Replica& PrefillNode::ChooseReplicaFor(const proto::Prefill& request,
                                                    const engine::Sequence& sequence) {
  if (replicas_.size() == 1) return *replicas_[0];
  std::vector<ReplicaOffer> offers;
  for (const auto& replica : replicas_) {
    ReplicaOffer& offer = offers.emplace_back();
    offer.queued_tokens = replica->scheduler.queued_tokens();
    offer.free_blocks = replica->pool.free_blocks();
    if (!replica->prefixes.has_value() || sequence.params().prompt_logprobs) continue;
    offer.held_tokens = replica->prefixes
                            ->Find(kv::RootPrefix(request.cache_salt()), sequence.tokens(),
                                   /*lossy_too=*/false)
                            .blocks.capacity_tokens();
  }
  return *replicas_[ChooseReplica(offers)];
}

// Leases the blocks of a prompt, those that are computed already as far as they are here.
absl::Status PrefillNode::LeaseBlocks(Job& job) {
  engine::Sequence& sequence = *job.sequence;
  Replica& replica = *job.replica;
  // All that it will ever take: a prompt under way never waits for others.
  const auto reserve = [&] {
    return sequence.ReserveBlocks(replica.pool, job.tokens, options_.scheduler.step_rows);
  };
  // Log-probabilities of a prompt need logits of all its rows.
  if (!replica.prefixes.has_value() || sequence.params().prompt_logprobs) return reserve();
  kv::BlockTable held =
      replica.prefixes->Find(kv::RootPrefix(job.cache_salt), sequence.tokens(), /*lossy_too=*/false)
          .blocks;
  if (held.empty()) return reserve();
  job.cached_tokens = static_cast<int32_t>(held.capacity_tokens());
  sequence.AdoptKv(std::move(held), job.cached_tokens);
  absl::Status leased = reserve();
  if (leased.ok()) return leased;
  sequence.Preempt();  // Whoever waits holds nothing.
  job.cached_tokens = 0;
  return absl::IsOutOfRange(leased) ? reserve() : leased;
}

// Leases the prompt's blocks and opens its hand-off; how many of its tokens are computed already.
// Nothing: no room yet. Called while the scheduler plans, so a hand-off that cannot be opened is
// only noted; MaybeStep ends the job.
std::optional<int32_t> PrefillNode::StartJob(SequenceId id) {
  Job& job = jobs_.at(id);
  if (!LeaseBlocks(job).ok()) return std::nullopt;
  metrics_.prompt_tokens_cached.Increment(job.cached_tokens);
  metrics_.queue_seconds.Observe(absl::ToDoubleSeconds(loop_.Now() - job.arrived));
  auto handoff = sender_.Begin(
      job.grant, job.deadline,
      [this, id](const absl::Status& status) { OnHandoffDone(id, status); }, job.replica->number);
  if (!handoff.ok()) {
    job.start_status = handoff.status();
    return job.cached_tokens;
  }
  job.handoff = *handoff;
  job.handoff_open = true;
  return job.cached_tokens;
}

std::vector<PrefillScheduler::Chunk> PrefillNode::PlanChunks(Replica& replica) {
  std::vector<PrefillScheduler::Chunk> chunks;
  bool failed = false;
  do {
    chunks = replica.scheduler.Next(loop_.Now(), step_time_.Get(),
                                    [this](SequenceId id) { return StartJob(id); });
    failed = std::erase_if(chunks, [this](const PrefillScheduler::Chunk& chunk) {
               Job& job = jobs_.at(chunk.id);
               if (job.start_status.ok()) return false;
               Fail(job, job.start_status);
               EraseIfDone(chunk.id);
               return true;
             }) > 0;
  } while (chunks.empty() && failed);  // Those behind the failed ones have their turn now.
  return chunks;
}

void PrefillNode::MaybeStep() {
  if (stepping_) return;
  chunks_.clear();
  for (const auto& replica : replicas_) {
    const auto chunks = PlanChunks(*replica);
    chunks_.insert(chunks_.end(), chunks.begin(), chunks.end());
    replica->rows = 0;
  }
  ReportLoad();
  if (chunks_.empty()) return;

  items_.clear();
  for (const PrefillScheduler::Chunk& chunk : chunks_) {
    Job& job = jobs_.at(chunk.id);
    job.in_step = true;
    PushCached(job);
    const absl::Status room =
        job.sequence->EnsureBlocks(job.replica->pool, int64_t{chunk.start} + chunk.rows);
    LYNX_CHECK_MSG(room.ok(), std::string(room.message()));  // It was reserved.
    items_.push_back({job.sequence.get(), chunk.rows});
  }
  stepping_ = true;
  pushed_layers_ = 0;
  step_began_ = loop_.Now();
  executor_.Run([this] { step_status_ = engine_.Step(items_, this); }, [this] { OnStepDone(); });
}

void PrefillNode::OnLayerDone(int32_t layer, std::span<const engine::WorkItem>) {
  // Where there are several, what this rank has seen the end of another replica may be behind in.
  // They meet in layers with experts, and at the step's end.
  const auto& feed_forward = engine_.runner().spec().feed_forward;
  if (replicas_.size() > 1 &&
      feed_forward[static_cast<size_t>(layer)] != model::FeedForwardKind::kMoe) {
    return;
  }
  loop_.Post([this, layer] { PushLayers(layer + 1); });
}

void PrefillNode::OnLeft(engine::Sequence& sequence) {
  loop_.Post([this, left = &sequence] {
    const auto item = std::ranges::find(items_, left, &engine::WorkItem::sequence);
    const SequenceId id = chunks_[static_cast<size_t>(item - items_.begin())].id;
    jobs_.at(id).in_step = false;
    EraseIfDone(id);
  });
}

// What an earlier prompt has computed goes out at once.
void PrefillNode::PushCached(Job& job) {
  if (std::exchange(job.cached_pushed, true)) return;
  for (int32_t layer = 0; layer < engine_.runner().spec().layers; ++layer) {
    PushBlocks(job, layer, 0, job.cached_tokens / kv::kBlockTokens);
  }
}

// A chunk's full blocks go out as soon as a layer of it is done; the block it leaves half full goes
// with the chunk that fills it, or with the last one. What no row behind the prompt attends to
// stays here; nothing else is given back while the prompt is computed.
void PrefillNode::PushLayers(int32_t past) {
  for (; pushed_layers_ < past; ++pushed_layers_) {
    for (const PrefillScheduler::Chunk& chunk : chunks_) {
      const auto job = jobs_.find(chunk.id);
      if (job == jobs_.end() || !job->second.in_step) continue;  // It has left the step.
      const int32_t end = chunk.start + chunk.rows;
      PushBlocks(job->second, pushed_layers_, chunk.start / kv::kBlockTokens,
                 chunk.last ? static_cast<int32_t>(kv::BlocksFor(end)) : end / kv::kBlockTokens);
    }
  }
}

void PrefillNode::PushBlocks(Job& job, int32_t layer, int32_t first, int32_t past) {
  if (job.ended || !job.handoff_open) return;
  const kv::KvGroups& groups = engine_.pool().groups();
  const int32_t group = groups.group_of(layer);
  first = std::max({first, job.grant.held_prefix_tokens() / kv::kBlockTokens,
                    groups.FirstBlock(group, job.tokens)});
  if (past <= first) return;
  const absl::Status pushed =
      sender_.Push(job.handoff, layer, first,
                   job.sequence->blocks().group(group).subspan(static_cast<size_t>(first),
                                                               static_cast<size_t>(past - first)));
  // NotFound: the hand-off has just ended, and its Done says why.
  if (!pushed.ok() && !absl::IsNotFound(pushed)) Fail(job, pushed);
}

void PrefillNode::OnStepDone() {
  stepping_ = false;
  if (step_status_.ok()) PushLayers(engine_.runner().spec().layers);
  const std::vector<PrefillScheduler::Chunk> chunks = std::move(chunks_);
  chunks_.clear();
  int64_t rows = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto it = jobs_.find(chunks[i].id);
    if (it == jobs_.end() || !it->second.in_step) continue;  // It has left the step.
    Job& job = it->second;
    job.in_step = false;
    rows += chunks[i].rows;
    job.replica->rows += chunks[i].rows;
    if (job.ended) {
      // Ended while the step ran; its blocks wait for the hand-off only.
    } else if (!step_status_.ok()) {
      Fail(job, step_status_);
    } else if (const engine::ItemResult& result = engine_.results()[i]; !result.status.ok()) {
      if (absl::IsInternal(result.status)) metrics_.bad_logits.Increment();
      Fail(job, result.status);
    } else {
      metrics_.prompt_tokens_computed.Increment(chunks[i].rows);
      computed_tokens_ += chunks[i].rows;
      OnPromptDone(job, result);
    }
  }
  if (step_status_.ok()) {
    const absl::Duration took = loop_.Now() - step_began_;
    metrics_.OnStep(static_cast<int64_t>(chunks.size()), rows, absl::ToDoubleSeconds(took));
    step_time_.Add(rows, took);
    for (const auto& replica : replicas_) metrics_.OnReplicaRows(replica->number, replica->rows);
    moe_metrics_.OnStep(engine_.runner().stats());
  }
  for (const PrefillScheduler::Chunk& chunk : chunks) EraseIfDone(chunk.id);
  MaybeStep();
}

void PrefillNode::OnPromptDone(Job& job, const engine::ItemResult& result) {
  for (const engine::SampledToken& token : result.prompt_logprobs) {
    *job.first.add_prompt() = node::TokenToWire(token);
  }
  if (!result.has_token) return;
  if (job.replica->prefixes.has_value()) {
    job.replica->prefixes->Keep(kv::RootPrefix(job.cache_salt),
                                job.sequence->tokens().first(static_cast<size_t>(job.tokens)),
                                job.tokens, job.sequence->blocks());
  }
  metrics_.output_tokens.Increment();
  job.sequence->ReleaseUnneeded();  // The hand-off reads the rest.
  job.pinned_blocks = job.sequence->blocks().held_blocks();
  pinned_blocks_ += job.pinned_blocks;
  const bool stopped = job.sequence->finish_reason() == engine::FinishReason::kStop;
  const proto::Token token = node::TokenToWire(result.token);
  proto::Envelope envelope;
  proto::FirstToken& first = *envelope.mutable_first_token();
  first = std::move(job.first);
  first.set_sequence(job.id);
  first.set_cached_tokens(job.cached_tokens);
  const std::span<const TokenId> output = job.sequence->output();
  first.set_position(static_cast<uint32_t>(output.size() - 1));
  if (!stopped) *first.mutable_token() = token;
  control_.Send(job.router, std::move(envelope));

  if (job.sequence->finished()) {
    proto::Terminal terminal = TerminalOf(proto::Terminal::KIND_FINISHED);
    terminal.set_finish_reason(stopped ? proto::Terminal::FINISH_REASON_STOP
                                       : proto::Terminal::FINISH_REASON_LENGTH);
    metrics_.OnFinished(stopped ? node::NodeMetrics::FinishReason::kStop
                                : node::NodeMetrics::FinishReason::kLength);
    End(job, terminal);
    return;
  }
  proto::CommitBody body;
  body.set_sequence(job.id);
  body.mutable_prompt()->Assign(job.sequence->prompt().begin(), job.sequence->prompt().end());
  *body.mutable_sampling() = job.sampling;
  body.mutable_output()->Assign(output.begin(), output.end() - 1);
  *body.mutable_first_token() = token;
  body.set_router(job.router);
  body.set_cache_salt(job.cache_salt);
  body.set_blocks(static_cast<int32_t>(kv::BlocksFor(job.tokens)));
  const absl::Status committed = sender_.Commit(job.handoff, body);
  if (!committed.ok() && !absl::IsNotFound(committed)) Fail(job, committed);
}

void PrefillNode::OnHandoffDone(SequenceId id, const absl::Status& status) {
  Job& job = jobs_.at(id);
  job.handoff_open = false;
  if (!job.ended) {
    if (status.ok()) {
      metrics_.OnFinished(node::NodeMetrics::FinishReason::kHandOff);
      End(job, TerminalOf(proto::Terminal::KIND_HANDED_OFF));
    } else {
      Fail(job, status);
    }
  }
  EraseIfDone(id);
  MaybeStep();
}

void PrefillNode::Cancel(SequenceId id) {
  Job& job = jobs_.at(id);
  if (job.ended) return;
  job.cancelled = loop_.Now();
  metrics_.OnFinished(node::NodeMetrics::FinishReason::kAbort);
  Stop(job);  // The router hears of it when the blocks are back.
  EraseIfDone(id);
  MaybeStep();
}

void PrefillNode::OnRouterLost(Incarnation router) {
  std::vector<SequenceId> lost;
  for (const auto& [id, job] : jobs_) {
    if (job.router == router) lost.push_back(id);
  }
  for (SequenceId id : lost) {
    if (jobs_.contains(id)) Cancel(id);
  }
}

void PrefillNode::Stop(Job& job) {
  LYNX_CHECK(!job.ended);
  job.ended = true;
  job.sequence->Cancel();  // A running step need not finish for it.
  job.replica->scheduler.Remove(job.id);
  loop_.CancelTimer(job.deadline_timer);
  if (job.handoff_open) sender_.Abort(job.handoff, "the sequence ended on the prefill node");
}

void PrefillNode::End(Job& job, const proto::Terminal& terminal) {
  Stop(job);
  SendTerminal(job, terminal);
}

void PrefillNode::SendTerminal(const Job& job, proto::Terminal terminal) {
  proto::Envelope envelope;
  *envelope.mutable_terminal() = std::move(terminal);
  envelope.mutable_terminal()->set_sequence(job.id);
  envelope.mutable_terminal()->set_output_tokens(
      static_cast<uint32_t>(job.sequence->output().size()));
  control_.Send(job.router, std::move(envelope));
}

void PrefillNode::Fail(Job& job, const absl::Status& status) {
  // Aborted: decode has given the hand-off up, mostly since the client has left.
  telemetry::Log(
      absl::IsAborted(status) ? telemetry::LogLevel::kInfo : telemetry::LogLevel::kWarning,
      "prefill failed", {{"sequence", HexId(job.id)}, {"status", std::string(status.ToString())}});
  metrics_.OnFinished(node::NodeMetrics::FinishReason::kError);
  proto::Terminal terminal = TerminalOf(proto::Terminal::KIND_FAILED);
  terminal.set_status_code(static_cast<uint32_t>(status.code()));
  terminal.set_message(std::string(status.message()));
  End(job, terminal);
}

void PrefillNode::EraseIfDone(SequenceId id) {
  auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  const Job& job = it->second;
  if (!job.ended || job.in_step || job.handoff_open) return;
  if (job.cancelled != absl::InfiniteFuture()) {
    metrics_.release_seconds.Observe(absl::ToDoubleSeconds(loop_.Now() - job.cancelled));
  }
  pinned_blocks_ -= job.pinned_blocks;
  job.sequence->Preempt();
  if (job.cancelled != absl::InfiniteFuture()) {
    SendTerminal(job, TerminalOf(proto::Terminal::KIND_CANCELLED));
  }
  job.replica->jobs -= 1;
  jobs_.erase(it);
  ReportLoad();
}

void PrefillNode::ReportLoad() {
  control_.LoadChanged();
  int64_t free = 0;
  int64_t held = 0;
  int64_t cached = 0;
  int64_t waiting = 0;
  for (const auto& replica : replicas_) {
    const kv::BlockPool& pool = replica->pool;
    free += pool.free_blocks();
    held += pool.capacity_blocks() - pool.free_blocks();
    cached += pool.cached_blocks();
    waiting += replica->scheduler.waiting();
    metrics_.SetReplica(replica->number, replica->jobs, pool.free_blocks());
  }
  const int64_t pinned = std::min(pinned_blocks_, held);  // Prompts that begin alike share some.
  metrics_.SetBlocks(free, held - pinned, pinned);
  metrics_.SetCachedBlocks(cached);
  metrics_.SetLoad(static_cast<int64_t>(jobs_.size()) - waiting, waiting);
}

}  // namespace lynx::prefill
