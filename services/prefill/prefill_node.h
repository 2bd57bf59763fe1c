#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/concurrency/event_loop.h"
#include "common/engine/engine.h"
#include "common/handoff/kv_sender.h"
#include "common/kv/prefix_cache.h"
#include "common/node/moe_metrics.h"
#include "common/node/node_control.h"
#include "common/node/node_metrics.h"
#include "common/node/step_executor.h"
#include "common/node/step_time_fit.h"
#include "common/proto/control.pb.h"
#include "services/prefill/scheduler/prefill_scheduler.h"

namespace lynx::prefill {

// A prefill node: computes prompts, hands their KV to the decode nodes that granted room, and tells
// routers the first tokens. Everything decides on the node's loop; steps run on the executor.
//
// A prompt's blocks return when nothing reads them any more: after its last step and after its
// hand-off has reported its end, whatever happened to the prompt before.
//
// Attention replicas have queues and blocks of their own; what all of them have planned is one
// step.
class PrefillNode final : private node::NodeControl::Delegate, private engine::StepListener {
 public:
  struct Options {
    Incarnation incarnation = 0;
    std::string model_name;
    int32_t max_context_tokens = 0;
    bool prefix_cache = true;             // Prompts that begin alike are computed once.
    PrefillScheduler::Options scheduler;  // Of each replica.
    absl::Duration max_prefill_time = absl::Minutes(10);  // Caps the deadline a router asks for.
    absl::Duration router_timeout = absl::Seconds(10);
    // A router has asked for what SIGTERM does; null: Drain().
    std::function<void()> ask_to_end = nullptr;
  };

  // All references outlive the node; the executor's running step must have ended before the node
  // is destroyed, so destroy the executor first.
  PrefillNode(const Options& options, engine::Engine& engine, handoff::KvSender& sender,
              node::StepExecutor& executor, EventLoop& loop, rpc::Channel& channel,
              node::NodeMetrics& metrics, node::MoeMetrics& moe_metrics);
  ~PrefillNode() override;

  // The calls below and all work happen on the loop.
  void Start();
  // Takes no more prompts; those here go on.
  void Drain();
  // The process ends: tells the routers, so that they place what is here anew at once.
  void CutOff();
  bool idle() const { return jobs_.empty(); }

 private:
  // One of the node's attention replicas; on most nodes the only one.
  struct Replica {
    Replica(int32_t n, kv::BlockPool& p, const PrefillScheduler::Options& options)
        : number(n), pool(p), scheduler(options) {}

    const int32_t number;
    kv::BlockPool& pool;
    PrefillScheduler scheduler;
    std::optional<kv::PrefixCache> prefixes;
    int64_t jobs = 0;
    int64_t rows = 0;  // Of the running step.
  };

  // One prompt, from its arrival until its blocks have returned.
  struct Job {
    SequenceId id = 0;
    Replica* replica = nullptr;
    Incarnation router = 0;
    std::unique_ptr<engine::Sequence> sequence;
    int32_t tokens = 0;  // To be computed: the prompt and what was sampled elsewhere.
    proto::GrantInfo grant;
    proto::SamplingParams sampling;  // As received, for the commit.
    std::string cache_salt;
    proto::FirstToken first;  // Collects the prompt's log-probabilities.
    absl::Time arrived;
    absl::Time deadline;
    absl::Time cancelled = absl::InfiniteFuture();
    TimerId deadline_timer = 0;
    handoff::KvSender::HandoffId handoff = 0;
    bool handoff_open = false;  // The sender may still read the blocks.
    int64_t pinned_blocks = 0;  // Computed, kept for the hand-off only.
    int32_t cached_tokens = 0;  // Of these, computed for an earlier prompt.
    bool cached_pushed = false;
    absl::Status start_status;  // Why the hand-off could not be opened.
    bool in_step = false;
    bool ended = false;  // Nothing is done for it any more.
  };

  proto::NodeStatus Status() override;
  void OnRequest(Incarnation router, const proto::Envelope& envelope) override;
  void OnRouterLost(Incarnation router) override;
  const kv::PrefixLedger* Prefixes() const override {
    return options_.prefix_cache ? &prefixes_ : nullptr;
  }
  void OnRouterAlive(Incarnation, std::span<const uint64_t>) override {}
  void OnLayerDone(int32_t layer, std::span<const engine::WorkItem> items) override;
  void OnLeft(engine::Sequence& sequence) override;

  void OnPrefill(Incarnation router, const proto::Prefill& request);
  void Refuse(Incarnation router, SequenceId id, proto::Refused::Reason reason,
              const std::string& message);
  // Where a prompt is computed.
  Replica& ChooseReplicaFor(const proto::Prefill& request, const engine::Sequence& sequence);
  std::optional<int32_t> StartJob(SequenceId id);
  absl::Status LeaseBlocks(Job& job);
  void MaybeStep();
  // What a replica computes in the next step.
  std::vector<PrefillScheduler::Chunk> PlanChunks(Replica& replica);
  void PushCached(Job& job);
  // All layers of the running step before `past` that have not gone out yet.
  void PushLayers(int32_t past);
  // One layer of the prompt's blocks [first, past), those that decode wants.
  void PushBlocks(Job& job, int32_t layer, int32_t first, int32_t past);
  void OnStepDone();
  void OnPromptDone(Job& job, const engine::ItemResult& result);
  void OnHandoffDone(SequenceId id, const absl::Status& status);
  void Cancel(SequenceId id);
  // Stops all work on the sequence and gives its hand-off up unless it succeeded.
  void Stop(Job& job);
  void SendTerminal(const Job& job, proto::Terminal terminal);
  // Both: it is over, and the router may know before its blocks are back.
  void End(Job& job, const proto::Terminal& terminal);
  void Fail(Job& job, const absl::Status& status);
  // Frees the job once nothing uses its blocks.
  void EraseIfDone(SequenceId id);
  // To metrics now, and soon to the routers.
  void ReportLoad();

  const Options options_;
  engine::Engine& engine_;
  handoff::KvSender& sender_;
  node::StepExecutor& executor_;
  EventLoop& loop_;
  node::NodeMetrics& metrics_;
  node::MoeMetrics& moe_metrics_;
  node::NodeControl control_;
  kv::PrefixLedger prefixes_;  // Of all replicas.
  std::vector<std::unique_ptr<Replica>> replicas_;
  node::StepTimeFit step_time_;
  std::map<SequenceId, Job> jobs_;
  int64_t computed_tokens_ = 0;  // Since the start.
  int64_t pinned_blocks_ = 0;    // Of all jobs.
  bool draining_ = false;

  // The running step.
  bool stepping_ = false;
  std::vector<PrefillScheduler::Chunk> chunks_;
  std::vector<engine::WorkItem> items_;
  int32_t pushed_layers_ = 0;
  absl::Time step_began_;
  absl::Status step_status_;  // Written by the step, read after it.
};

}  // namespace lynx::prefill
