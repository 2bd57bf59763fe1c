#include "tests/support/sim_cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/engine/local_generator.h"
#include "common/model/model_spec.h"
#include "common/node/sampling_wire.h"
#include "common/node/transfer_identity.h"
#include "gtest/gtest.h"
#include "services/router/placement/least_load.h"

namespace lynx::testing {
namespace {

// Addresses in tests are numeric: nothing to look up.
class LiteralResolver final : public router::Resolver {
 public:
  explicit LiteralResolver(EventLoop& loop) : loop_(loop) {}
  void Resolve(const std::string& host, Callback done) override {
    loop_.Post([host, done = std::move(done)] { done(std::vector<std::string>{host}); });
  }

 private:
  EventLoop& loop_;
};

template <typename T>
T Ok(absl::StatusOr<T> result) {
  LYNX_CHECK_MSG(result.ok(), std::string(result.status().message()));
  return *std::move(result);
}

}  // namespace

MortalLoop::Task MortalLoop::Guard(Task task, std::shared_ptr<TimerId> id) {
  return [state = state_, task = std::move(task), id = std::move(id)]() mutable {
    if (!state->alive) return;
    if (!state->frozen && state->waiting.empty()) return task();
    state->waiting.emplace_back(id != nullptr ? *id : 0, std::move(task));
  };
}

void MortalLoop::Thaw() {
  state_->frozen = false;
  loop_.Post([state = state_] {
    while (state->alive && !state->frozen && !state->waiting.empty()) {
      const Task task = std::move(state->waiting.front().second);
      state->waiting.pop_front();
      task();
    }
  });
}

void MortalLoop::CancelTimer(TimerId id) {
  loop_.CancelTimer(id);
  if (id != 0) std::erase_if(state_->waiting, [id](auto& task) { return task.first == id; });
}

void RecordingSink::OnFirstToken(const proto::FirstToken& first) {
  LYNX_CHECK(!ended && tokens.empty());
  prompt.assign(first.prompt().begin(), first.prompt().end());
  if (first.has_token()) tokens.push_back(first.token());
  cached_tokens = first.cached_tokens();
  prompt_logprobs = first.prompt_size();
}

void RecordingSink::OnTokens(std::span<const proto::Token* const> more) {
  LYNX_CHECK(!ended);
  for (const proto::Token* token : more) tokens.push_back(*token);
}

void RecordingSink::OnEnd(const router::SequenceEnd& its_end) {
  LYNX_CHECK(!ended);
  ended = true;
  end = its_end;
}

std::vector<TokenId> RecordingSink::ids() const {
  std::vector<TokenId> ids;
  for (const proto::Token& token : tokens) ids.push_back(token.id());
  return ids;
}

namespace {

std::unique_ptr<model::ModelRunner> LoadRunner(const SimCluster::Options& options,
                                               std::optional<kernels::Isa> isa = std::nullopt) {
  return Ok(model::ModelRunner::Load({.model_dir = options.model_dir,
                                      .compute_dtype = options.compute_dtype,
                                      .kv_dtype = options.compute_dtype,
                                      .kv_blocks = options.kv_blocks,
                                      .max_step_rows = options.step_rows,
                                      .max_step_logits = options.step_rows,
                                      .threads = 1,
                                      .isa = isa,
                                      .remap_mixed_steps = options.remap_mixed_steps}));
}

std::unique_ptr<engine::Engine> NewEngine(const SimCluster::Options& options,
                                          std::unique_ptr<model::ModelRunner> runner,
                                          int32_t replicas = 1) {
  const int32_t vocab_size = runner->spec().vocab_size;
  return std::make_unique<engine::Engine>(
      std::move(runner), engine::EngineOptions{.vocab_size = vocab_size,
                                               .max_step_rows = options.step_rows,
                                               .max_step_logits = options.step_rows,
                                               .replicas = replicas});
}

}  // namespace

// The ranks of a node tell each other by tasks of its loop, so in order with its steps.
class SimCluster::RankLinks {
 public:
  class Rank0 final : public node::RankChannel {
   public:
    explicit Rank0(RankLinks& links) : links_(links) {}
    int others() const override { return static_cast<int>(links_.workers.size()); }
    void Tell(const proto::RankMessage& message) override {
      for (node::RankWorker* worker : links_.workers) {
        links_.loop_.Post([worker, message] { worker->OnMessage(message); });
      }
    }

   private:
    RankLinks& links_;
  };
  class Other final : public node::RankChannel {
   public:
    Other(RankLinks& links, int rank) : links_(links), rank_(rank) {}
    int others() const override { return 1; }
    void Tell(const proto::RankMessage& message) override {
      links_.loop_.Post([this, message] { links_.hear(rank_, message); });
    }

   private:
    RankLinks& links_;
    const int rank_;
  };

  explicit RankLinks(EventLoop& loop) : loop_(loop) {}
  Other& Add(int rank) { return *others_.emplace_back(std::make_unique<Other>(*this, rank)); }

  Rank0 rank0{*this};
  std::vector<node::RankWorker*> workers;
  std::function<void(int, const proto::RankMessage&)> hear;

 private:
  EventLoop& loop_;
  std::vector<std::unique_ptr<Other>> others_;
};

SimCluster::Node::Node() = default;
SimCluster::Node::~Node() = default;

node::RankWorkerParts SimCluster::RankParts(Node& node, const std::string& name,
                                            Incarnation incarnation, int32_t rank,
                                            int32_t replicas) {
  model::ModelRunner& own = node.models->replica(static_cast<size_t>(rank));
  node.rank_registries.push_back(std::make_unique<telemetry::Registry>());
  std::unique_ptr<transfer::TransferEngine> engine = Ok(transfer::LoopbackEngine::Create(
      fabric_, absl::StrCat(name, "/", incarnation, "/", rank), *node.loop));
  if (options_.wrap_transfer) {
    engine = options_.wrap_transfer(name, *node.loop, std::move(engine));
  }
  return {.identity = node::TransferIdentity(incarnation, own, {.dp = replicas}, rank),
          .kv = own.kv(),
          .engine = std::move(engine),
          .loop = *node.loop,
          .registry = *node.rank_registries.back(),
          .rank0 = node.links->Add(rank)};
}

std::unique_ptr<transfer::TransferEngine> SimCluster::SendEngine(const std::string& name,
                                                                 Incarnation incarnation,
                                                                 int32_t rank, EventLoop& loop) {
  std::unique_ptr<transfer::TransferEngine> engine = Ok(transfer::LoopbackEngine::Create(
      fabric_, absl::StrCat(name, "/", incarnation, "/", rank, "/send"), loop));
  return options_.wrap_transfer ? options_.wrap_transfer(name, loop, std::move(engine))
                                : std::move(engine);
}

std::unique_ptr<engine::Engine> LoadEngine(const SimCluster::Options& options) {
  return NewEngine(options, LoadRunner(options));
}

LoneEngine::LoneEngine(SimCluster::Options options) {
  options.kv_blocks = 256;
  engine_ = LoadEngine(options);
}

std::vector<TokenId> LoneEngine::Answer(const std::vector<TokenId>& prompt,
                                        const proto::SamplingParams& sampling) {
  const engine::GenerateRequest request = {prompt, node::SamplingFromWire(sampling)};
  auto result = engine::Generate(*engine_, std::span(&request, 1),
                                 {.max_context_tokens = 2048,
                                  .max_chunk_tokens = engine_->options().max_step_rows,
                                  .max_sequences = 1});
  EXPECT_TRUE(result.ok()) << result.status();
  std::vector<TokenId> ids;
  for (const engine::SampledToken& token : result->front().output) ids.push_back(token.id);
  return ids;
}

proto::SamplingParams PlainSampling(int32_t max_new_tokens) {
  proto::SamplingParams sampling;
  sampling.set_temperature(0);
  sampling.set_top_p(1);
  sampling.set_repetition_penalty(1);
  sampling.set_max_new_tokens(max_new_tokens);
  sampling.set_top_logprobs(engine::kNoLogprobs);
  return sampling;
}

SimCluster::SimCluster(const Options& options) : options_(options) {
  router::NodeRegistry::Options registry;
  int port = 9000;
  for (int i = 0; i < options.prefill; ++i) {
    const std::string name = absl::StrCat("prefill-", i);
    endpoints_[name] = absl::StrCat("127.0.0.1:", ++port);
    registry.prefill.push_back(endpoints_[name]);
    Start(name);
  }
  for (int i = 0; i < options.decode; ++i) {
    const std::string name = absl::StrCat("decode-", i);
    endpoints_[name] = absl::StrCat("127.0.0.1:", ++port);
    registry.decode.push_back(endpoints_[name]);
    Start(name);
  }
  resolver_ = std::make_unique<LiteralResolver>(loop_);
  for (int i = 0; i < options.routers; ++i) StartRouter(registry);
  LYNX_CHECK(RunUntil([this] {
    return std::all_of(routers_.begin(), routers_.end(),
                       [](const auto& router) { return router->service->View().ready; });
  }));
}

void SimCluster::StartRouter(router::NodeRegistry::Options registry) {
  const uint64_t number = routers_.size();
  const std::string name = number == 0 ? "router" : absl::StrCat("router-", number);
  auto router = std::make_unique<Router>();
  registry.incarnation = 1 + number;
  router->channel = Ok(rpc::InProcChannel::Create(network_, {}, loop_, router->metrics));
  if (options_.wrap_channel) {
    router->channel = options_.wrap_channel(name, loop_, std::move(router->channel));
  }
  router->registry = Ok(router::NodeRegistry::Create(std::move(registry), loop_, *router->channel,
                                                     *resolver_, router->metrics));
  std::unique_ptr<router::PlacementPolicy> placement = std::make_unique<router::LeastLoad>();
  if (options_.make_placement) placement = options_.make_placement();
  router->service = std::make_unique<router::ClusterService>(
      router::ClusterService::Options{.session = options_.session,
                                      .admission = options_.admission,
                                      .slo_ttft = options_.slo_ttft,
                                      .slo_tpot = options_.slo_tpot,
                                      .refuse_late = options_.refuse_late},
      loop_, *router->registry, std::move(placement), router->metrics,
      [id = (number + 1) << 40]() mutable { return ++id; });
  router->registry->Start(*router->service);
  routers_.push_back(std::move(router));
}

SimCluster::~SimCluster() {
  for (auto& router : routers_) router->service->Shutdown();
  for (auto& router : routers_) {
    router->service.reset();
    router->registry.reset();
    router->channel.reset();
  }
  for (auto& [name, endpoint] : endpoints_) Kill(name);
}

void SimCluster::Start(const std::string& name) {
  LYNX_CHECK(!nodes_.contains(name));
  auto node = std::make_unique<Node>();
  node->loop = std::make_shared<MortalLoop>(loop_);
  loops_.push_back(node->loop);
  EventLoop& loop = *node->loop;
  const uint64_t incarnation = ++next_incarnation_;
  const bool prefill = name.starts_with("prefill");
  const int32_t replicas = prefill ? options_.prefill_replicas : options_.decode_replicas;
  const auto load = [&] {
    return LoadRunner(options_, prefill ? std::nullopt : options_.decode_isa);
  };
  auto model = options_.make_runner ? options_.make_runner() : load();
  if (replicas > 1) {
    std::vector<std::unique_ptr<model::ModelRunner>> models;
    models.push_back(std::move(model));
    while (std::ssize(models) < replicas) models.push_back(load());
    auto runner = std::make_unique<ReplicasRunner>(std::move(models));
    node->models = runner.get();
    model = std::move(runner);
    node->links = std::make_unique<RankLinks>(loop);
  }
  if (options_.wrap_runner) model = options_.wrap_runner(name, std::move(model));
  if (options_.layer_time > absl::ZeroDuration()) {
    node->layered_steps = std::make_unique<LayeredSteps>(loop, options_.layer_time);
    model = LayeredSteps::Wrap(*node->layered_steps, std::move(model));
  }
  node->engine = NewEngine(options_, std::move(model), replicas);
  node->metrics = std::make_unique<node::NodeMetrics>(
      node->registry, prefill ? "prefill" : "decode", "lynx-tiny-moe", replicas);
  decode::StepPolicy policy =
      Ok(decode::StepPolicy::Create(options_.lynx_policy, node->engine->runner().spec(),
                                    "lynx-tiny-moe", !options_.quality.ladder.empty()));
  node->moe_metrics = std::make_unique<node::MoeMetrics>(
      node->registry, node->engine->runner().spec(), prefill ? moe::Policy{} : policy.own());
  node->channel =
      Ok(rpc::InProcChannel::Create(network_, {.bind = endpoints_.at(name)}, loop, node->registry));
  if (options_.wrap_channel) {
    node->channel = options_.wrap_channel(name, loop, std::move(node->channel));
  }
  node->whole_steps =
      std::make_unique<node::InlineStepExecutor>(loop, [this, &model = node->engine->runner()] {
        return options_.step_time ? options_.step_time(model.stats()) : absl::Milliseconds(1);
      });
  node::StepExecutor& executor = node->layered_steps != nullptr
                                     ? static_cast<node::StepExecutor&>(*node->layered_steps)
                                     : *node->whole_steps;
  std::unique_ptr<transfer::TransferEngine> transfer =
      Ok(transfer::LoopbackEngine::Create(fabric_, absl::StrCat(name, "/", incarnation), loop));
  if (options_.wrap_transfer) transfer = options_.wrap_transfer(name, loop, std::move(transfer));

  model::ModelRunner& runner = node->engine->runner();
  const transfer::NodeIdentity identity = node::TransferIdentity(incarnation, runner);
  decode::ReceiverRanks ranks;
  for (int32_t rank = 0; rank < replicas && replicas > 1; ++rank) {
    proto::RankEndpoint& endpoint = ranks.endpoints.emplace_back();
    endpoint.set_head_end(identity.layout.kv_heads_total());
    if (rank == 0) continue;
    node::RankWorkerParts parts = RankParts(*node, name, incarnation, rank, replicas);
    endpoint.set_transfer_address(parts.engine->LocalAddress());
    if (prefill) {
      node->links->workers.push_back(node->rank_senders
                                         .emplace_back(std::make_unique<handoff::RankSender>(
                                             std::move(parts), handoff::KvSender::Options{}))
                                         .get());
    } else {
      parts.send_engine = SendEngine(name, incarnation, rank, loop);
      node->links->workers.push_back(node->decode_ranks
                                         .emplace_back(std::make_unique<decode::DecodeRank>(
                                             std::move(parts), decode::DecodeRank::Options{}))
                                         .get());
    }
  }
  if (node->links != nullptr) ranks.channel = &node->links->rank0;
  if (prefill) {
    node->sender = std::make_unique<handoff::KvSender>(identity, runner.kv(), std::move(transfer),
                                                       loop, node->registry,
                                                       handoff::KvSender::Options{}, ranks.channel);
    node->prefill = std::make_unique<prefill::PrefillNode>(
        prefill::PrefillNode::Options{
            .incarnation = incarnation,
            .model_name = "lynx-tiny-moe",
            .max_context_tokens = runner.spec().max_positions,
            .prefix_cache = options_.prefix_cache,
            .scheduler = {.step_rows = options_.step_rows, .step_logits = options_.step_rows}},
        *node->engine, *node->sender, executor, loop, *node->channel, *node->metrics,
        *node->moe_metrics);
    node->prefill->Start();
  } else {
    node->quality = std::make_unique<decode::QualityWatch>(
        options_.quality, runner.spec().vocab_size, node->registry);
    node->decode = std::make_unique<decode::DecodeNode>(
        decode::DecodeNode::Options{
            .incarnation = incarnation,
            .model_name = "lynx-tiny-moe",
            .max_context_tokens = runner.spec().max_positions,
            .prefix_cache = options_.prefix_cache,
            .scheduler = {.max_batch = options_.max_batch,
                          .step_rows = options_.step_rows,
                          .chunk_rows =
                              options_.prompt_rows > 0 ? options_.prompt_rows : options_.step_rows,
                          .pool_blocks = options_.kv_blocks},
            .swap_space = options_.swap_blocks * runner.kv().layout().BlockLayerBytes() *
                          runner.kv().layout().layers / runner.kv().layout().groups.count(),
            .ranks = ranks.channel,
            .takes_prompts = options_.prompt_rows > 0,
        },
        policy, *node->quality, *node->engine, executor, loop, *node->channel, *node->metrics,
        *node->moe_metrics);
    node->receiver = std::make_unique<decode::KvReceiver>(
        identity, runner.kv(), std::move(transfer), loop, node->registry, *node->decode,
        decode::KvReceiver::Options{}, std::move(ranks));
    node->sender = std::make_unique<handoff::KvSender>(
        identity, runner.kv(), SendEngine(name, incarnation, 0, loop), loop, node->registry,
        handoff::KvSender::Options{}, node->links != nullptr ? &node->links->rank0 : nullptr);
    node->decode->Start(*node->receiver, *node->sender);
  }
  if (node->links != nullptr) {
    node->links->hear = [sender = node->sender.get(), receiver = node->receiver.get()](
                            int rank, const proto::RankMessage& message) {
      if (sender != nullptr) sender->OnRankMessage(rank, message);
      if (receiver != nullptr) receiver->OnRankMessage(rank, message);
    };
  }
  nodes_[name] = std::move(node);
}

void SimCluster::Kill(const std::string& name) {
  auto it = nodes_.find(name);
  if (it == nodes_.end()) return;
  Node& node = *it->second;
  node.loop->Die();
  if (node.layered_steps != nullptr) node.layered_steps->Finish();
  node.prefill.reset();
  node.sender.reset();
  node.receiver.reset();
  node.decode.reset();
  node.decode_ranks.clear();
  node.rank_senders.clear();
  nodes_.erase(it);
}

void SimCluster::Drain(const std::string& name) {
  Node& node = *nodes_.at(name);
  node.prefill != nullptr ? node.prefill->Drain() : node.decode->Drain();
}

bool SimCluster::idle(const std::string& name) const {
  const Node& node = *nodes_.at(name);
  return node.prefill != nullptr ? node.prefill->idle() : node.decode->idle();
}

bool SimCluster::RunUntil(const std::function<bool()>& done, absl::Duration limit) {
  const absl::Time end = clock_.Now() + limit;
  while (!done()) {
    if (clock_.Now() >= end) return false;
    loop_.Advance(absl::Milliseconds(10));
  }
  return true;
}

router::SequenceId SimCluster::Submit(std::vector<TokenId> prompt, proto::SamplingParams sampling,
                                      RecordingSink& sink) {
  return Ok(service().Start({.prompt = std::move(prompt), .sampling = std::move(sampling)}, sink));
}

bool SimCluster::Idle() const {
  for (const auto& router : routers_) {
    if (!router->service->Idle()) return false;
  }
  for (const auto& [name, node] : nodes_) {
    for (int32_t replica = 0; replica < node->engine->options().replicas; ++replica) {
      const kv::BlockPool& pool = node->engine->pool(replica);
      if (pool.free_blocks() != pool.capacity_blocks()) return false;
    }
    for (const auto& rank : node->rank_senders) {
      if (rank->sender().handoffs() != 0) return false;
    }
    for (const auto& rank : node->decode_ranks) {
      const decode::RankReceiver& receiver = rank->receiver();
      if (receiver.parts() != 0 || receiver.copies() != 0 || receiver.staging_bytes() != 0 ||
          rank->sender().sender().handoffs() != 0) {
        return false;
      }
    }
    if (node->sender->handoffs() != 0) return false;
    if (node->prefill != nullptr && !node->prefill->idle()) return false;
    if (node->decode != nullptr && (!node->decode->idle() || node->receiver->grants() != 0 ||
                                    node->receiver->staging_bytes() != 0)) {
      return false;
    }
  }
  return true;
}

}  // namespace lynx::testing
