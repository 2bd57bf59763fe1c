#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/concurrency/event_loop.h"
#include "common/engine/engine.h"
#include "common/handoff/kv_sender.h"
#include "common/handoff/rank_sender.h"
#include "common/model/model_runner.h"
#include "common/node/moe_metrics.h"
#include "common/node/node_metrics.h"
#include "common/node/rank_worker.h"
#include "common/node/step_executor.h"
#include "common/rpc/inproc_channel.h"
#include "common/telemetry/metrics.h"
#include "common/transfer/loopback_engine.h"
#include "kernels/core/isa.h"
#include "services/decode/decode_node.h"
#include "services/decode/handoff/decode_rank.h"
#include "services/decode/handoff/kv_receiver.h"
#include "services/decode/quality/quality_watch.h"
#include "services/prefill/prefill_node.h"
#include "services/router/membership/node_registry.h"
#include "services/router/membership/resolver.h"
#include "services/router/placement/placement_policy.h"
#include "services/router/session/cluster_service.h"
#include "tests/support/layered_steps.h"
#include "tests/support/replicas_runner.h"

namespace lynx::testing {

// What a client of the router sees of one sequence.
class RecordingSink final : public router::SequenceSink {
 public:
  void OnFirstToken(const proto::FirstToken& first) override;
  void OnTokens(std::span<const proto::Token* const> tokens) override;
  void OnEnd(const router::SequenceEnd& end) override;

  bool ended = false;
  router::SequenceEnd end;
  std::vector<proto::Token> prompt;  // With prompt_logprobs.
  std::vector<proto::Token> tokens;
  int32_t cached_tokens = 0;
  int prompt_logprobs = 0;
  std::vector<TokenId> ids() const;
};

// The cluster's loop as one node sees it: when the node dies its tasks die with it, as those of a
// killed process do; while it is frozen they wait, as those of a stopped one do.
class MortalLoop final : public EventLoop {
 public:
  explicit MortalLoop(EventLoop& loop) : loop_(loop) {}
  void Die() { state_->alive = false; }
  void Freeze() { state_->frozen = true; }
  void Thaw();
  void Post(Task task) override { loop_.Post(Guard(std::move(task), nullptr)); }
  TimerId RunAfter(absl::Duration delay, Task task) override {
    auto id = std::make_shared<TimerId>(0);
    return *id = loop_.RunAfter(delay, Guard(std::move(task), id));
  }
  void CancelTimer(TimerId id) override;
  const Clock& clock() const override { return loop_.clock(); }

 private:
  struct State {
    bool alive = true;
    bool frozen = false;
    std::deque<std::pair<TimerId, Task>> waiting;  // In the order in which they were due.
  };
  Task Guard(Task task, std::shared_ptr<TimerId> id);

  EventLoop& loop_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// A whole cluster in one thread under a simulated clock: the real router, prefill and decode logic
// and the real model; in-process control channels and loopback KV transfer, which tests may wrap to
// inject faults. A run is a pure function of its inputs.
//
// Time moves only in Run(); a step takes a simulated millisecond unless a test says otherwise.
class SimCluster {
 public:
  struct Options {
    int routers = 1;
    int prefill = 1;
    int decode = 1;
    // Attention replicas of each node, a rank each; with the model in model_dir.
    int32_t prefill_replicas = 1;
    int32_t decode_replicas = 1;
    int32_t kv_blocks = 256;  // Of each replica.
    int32_t step_rows = 64;
    int32_t max_batch = 16;
    int32_t prompt_rows = 0;  // Of a step of decode nodes; 0: they take no prompts.
    bool prefix_cache = true;
    int64_t swap_blocks = 0;  // Of copies of what preempted sequences held.
    DType compute_dtype = DType::kBf16;
    // Of decode nodes, and so their numeric class; with the model in model_dir.
    std::optional<kernels::Isa> decode_isa = std::nullopt;
    std::string model_dir = "models/lynx-tiny-moe";
    std::string lynx_policy = "exact";  // Of the decode nodes.
    decode::QualityWatch::Options quality = {.share = 0};
    // Makes a node's model, in place of the one in model_dir.
    std::function<std::unique_ptr<model::ModelRunner>()> make_runner = nullptr;
    // What a step that computed this takes.
    std::function<absl::Duration(const model::StepStats&)> step_time = nullptr;
    // Where not 0: what a layer takes instead, and messages come between layers.
    absl::Duration layer_time = absl::ZeroDuration();
    // Of each router; null: LeastLoad.
    std::function<std::unique_ptr<router::PlacementPolicy>()> make_placement = nullptr;
    // Wraps a node's model; `name` is "prefill-0", "decode-1", ...
    std::function<std::unique_ptr<model::ModelRunner>(const std::string& name,
                                                      std::unique_ptr<model::ModelRunner>)>
        wrap_runner = nullptr;
    bool remap_mixed_steps = false;
    // Wraps a node's transfer engine.
    std::function<std::unique_ptr<transfer::TransferEngine>(
        const std::string& name, EventLoop& loop, std::unique_ptr<transfer::TransferEngine>)>
        wrap_transfer = nullptr;
    // Wraps a node's, or a router's ("router", "router-1", ...), end of the control plane.
    std::function<std::unique_ptr<rpc::Channel>(const std::string& name, EventLoop& loop,
                                                std::unique_ptr<rpc::Channel>)>
        wrap_channel = nullptr;
    router::SequenceSession::Options session = {};
    router::AdmissionQueue::Options admission = {};
    absl::Duration slo_ttft = absl::InfiniteDuration();  // As the routers know them.
    absl::Duration slo_tpot = absl::InfiniteDuration();
    bool refuse_late = false;
  };

  explicit SimCluster(const Options& options);
  ~SimCluster();

  // Ends a node as kill -9 would: nobody is told. Start makes it anew, at its old address.
  void Kill(const std::string& name);
  void Start(const std::string& name);
  bool alive(const std::string& name) const { return nodes_.contains(name); }
  // Has a node drain, as SIGTERM does; it lives on when it has.
  void Drain(const std::string& name);
  // Nothing is left on the node for routers to wait for.
  bool idle(const std::string& name) const;
  // Stops a node as SIGSTOP does, and lets it go on.
  void Freeze(const std::string& name) { nodes_.at(name)->loop->Freeze(); }
  void Thaw(const std::string& name) { nodes_.at(name)->loop->Thaw(); }

  void Run(absl::Duration time) { loop_.Advance(time); }
  // Advances until `done`, at most `limit` of simulated time; whether it came.
  bool RunUntil(const std::function<bool()>& done, absl::Duration limit = absl::Minutes(2));

  router::SequenceId Submit(std::vector<TokenId> prompt, proto::SamplingParams sampling,
                            RecordingSink& sink);

  // Every block of every node is free and no map remembers anything.
  bool Idle() const;

  router::ClusterService& service(size_t router = 0) { return *routers_.at(router)->service; }
  SimEventLoop& loop() { return loop_; }
  // For control channels of the test's own, towards a node's control endpoint.
  rpc::InProcNetwork& network() { return network_; }
  const std::string& endpoint(const std::string& name) const { return endpoints_.at(name); }
  std::string Metrics(const std::string& name) const { return nodes_.at(name)->registry.Render(); }
  kv::BlockPool& pool(const std::string& name, int32_t replica = 0) {
    return nodes_.at(name)->engine->pool(replica);
  }
  std::string RouterMetrics(size_t router = 0) const {
    return routers_.at(router)->metrics.Render();
  }

 private:
  class RankLinks;
  struct Node {
    Node();
    ~Node();

    telemetry::Registry registry;
    std::shared_ptr<MortalLoop> loop;
    std::unique_ptr<LayeredSteps> layered_steps;  // With layer_time.
    std::unique_ptr<engine::Engine> engine;
    std::unique_ptr<node::NodeMetrics> metrics;
    std::unique_ptr<node::MoeMetrics> moe_metrics;
    std::unique_ptr<decode::QualityWatch> quality;
    std::unique_ptr<rpc::Channel> channel;
    std::unique_ptr<node::InlineStepExecutor> whole_steps;
    std::unique_ptr<handoff::KvSender> sender;
    std::unique_ptr<prefill::PrefillNode> prefill;
    std::unique_ptr<decode::DecodeNode> decode;
    std::unique_ptr<decode::KvReceiver> receiver;
    ReplicasRunner* models = nullptr;  // Of several ranks; the engine's.
    std::unique_ptr<RankLinks> links;
    // Of all ranks but 0.
    std::vector<std::unique_ptr<telemetry::Registry>> rank_registries;
    std::vector<std::unique_ptr<decode::DecodeRank>> decode_ranks;
    std::vector<std::unique_ptr<handoff::RankSender>> rank_senders;
  };

  struct Router {
    telemetry::Registry metrics;
    std::unique_ptr<rpc::Channel> channel;
    std::unique_ptr<router::NodeRegistry> registry;
    std::unique_ptr<router::ClusterService> service;
  };
  void StartRouter(router::NodeRegistry::Options registry);
  // What a rank other than 0 is made of.
  node::RankWorkerParts RankParts(Node& node, const std::string& name, Incarnation incarnation,
                                  int32_t rank, int32_t replicas);
  // What a rank of a decode node sends by.
  std::unique_ptr<transfer::TransferEngine> SendEngine(const std::string& name,
                                                       Incarnation incarnation, int32_t rank,
                                                       EventLoop& loop);

  const Options options_;
  ManualClock clock_;
  SimEventLoop loop_{clock_};
  rpc::InProcNetwork network_;
  transfer::LoopbackFabric fabric_;
  // Those of dead nodes too: messages under way may still name them.
  std::vector<std::shared_ptr<MortalLoop>> loops_;
  std::map<std::string, std::unique_ptr<Node>> nodes_;
  std::map<std::string, std::string> endpoints_;
  uint64_t next_incarnation_ = 100;
  std::unique_ptr<router::Resolver> resolver_;
  std::vector<std::unique_ptr<Router>> routers_;
};

// The engine that a node of the cluster would have, its model not wrapped: the oracle that answers
// are compared with.
std::unique_ptr<engine::Engine> LoadEngine(const SimCluster::Options& options);

// What such an engine answers by itself, with room for any of it.
class LoneEngine {
 public:
  explicit LoneEngine(SimCluster::Options options);
  std::vector<TokenId> Answer(const std::vector<TokenId>& prompt,
                              const proto::SamplingParams& sampling);

 private:
  std::unique_ptr<engine::Engine> engine_;
};

// Greedy, unbounded, no end id: a base to change fields of.
proto::SamplingParams PlainSampling(int32_t max_new_tokens);

}  // namespace lynx::testing
