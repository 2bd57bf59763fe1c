#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/concurrency/event_loop.h"
#include "common/concurrency/file_watch.h"
#include "common/concurrency/stop_signal.h"
#include "common/config/flag_set.h"
#include "common/engine/engine.h"
#include "common/http/health.h"
#include "common/http/routes.h"
#include "common/http/server.h"
#include "common/node/expert_placer.h"
#include "common/node/node_config.h"
#include "common/node/node_ranks.h"
#include "common/node/rank_processes.h"
#include "common/node/rank_worker.h"
#include "common/rpc/control_keys.h"
#include "common/rpc/zmq_channel.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "kernels/core/device.h"

namespace lynx::node {

// What the program of a node has besides its role's logic: metrics and health pages that answer
// from the first moment, the loaded engine, and the wait for the end.
//
// Created and used by main()'s thread.
class NodeRuntime {
 public:
  // Opens the HTTP port: alive, not started, not ready. `role` is "prefill" or "decode".
  // InvalidArgument (an option), Unavailable (the port).
  // Of a node of several ranks it also starts those that it is to start, with `flags`.
  static absl::StatusOr<std::unique_ptr<NodeRuntime>> Create(const config::FlagSet& flags,
                                                             const NodeConfig& config,
                                                             const std::string& role);
  ~NodeRuntime();

  // Loads the model and makes the engine; `step_logits` as in EngineOptions, `remap_mixed_steps` as
  // in RunnerOptions. Errors of ModelRunner::Load. Of several ranks, it waits until all have
  // loaded; on those other than rank 0 it does what that one says, beside steps by what
  // `make_worker` makes, and returns when it ends: Cancelled.
  absl::StatusOr<std::unique_ptr<engine::Engine>> LoadEngine(int32_t step_rows, int32_t step_logits,
                                                             const MakeRankWorker& make_worker,
                                                             bool remap_mixed_steps = false);

  // The node serves: writes the announcement, answers /readyz with 200.
  absl::Status SetReady(const std::string& control_endpoint);

  // The node's end of the control plane, bound as the options say. Errors of ZmqChannel::Create.
  absl::StatusOr<std::unique_ptr<rpc::ZmqChannel>> OpenControl(EventLoop& loop, int32_t vocab_size);
  // Has the channel take up new keys while what is returned lives; null where it is plain.
  std::unique_ptr<FileWatch> WatchControlKeys(rpc::ZmqChannel& channel) {
    return control_keys_->Watch(channel);
  }

  // For the executor of the node's steps: from now on a step that does not end makes the process
  // not alive (/livez), while its loop and pages still answer.
  std::function<void(bool)> WatchSteps();

  // As a signal does that asks the process to end. Thread-safe.
  void AskToEnd() { stop_.Request(); }

  // Blocks until something asks the process to end; then not ready, runs `drain` on the loop, and
  // waits until `idle`, asked on the loop, says so or the drain timeout has passed: then `cut_off`
  // runs there. The loop is stopped when this returns: destroy what runs on it.
  void RunUntilStopped(ThreadEventLoop& loop, const std::function<void()>& drain,
                       const std::function<bool()>& idle, const std::function<void()>& cut_off);

  telemetry::Registry& registry() { return registry_; }
  http::HealthPages& health() { return health_; }
  Incarnation incarnation() const { return incarnation_; }
  // Of a node of several ranks, after LoadEngine(), of rank 0; otherwise null.
  NodeRanks* ranks() { return ranks_.get(); }
  model::ParallelLayout layout() const {
    return {.tp = config_.tp, .dp = config_.dp, .ep = config_.ep, .ep_spare = config_.ep_spare};
  }
  const std::string& model_name() const { return model_name_; }
  int32_t max_context_tokens() const { return max_context_tokens_; }

 private:
  NodeRuntime(const NodeConfig& config, const std::string& role, Incarnation incarnation);
  static absl::Status CreateRanks(const config::FlagSet& flags, NodeConfig& config,
                                  const std::string& role, Incarnation incarnation,
                                  std::unique_ptr<NodeRanks>& ranks,
                                  std::optional<RankProcesses>& processes);
  absl::StatusOr<std::unique_ptr<engine::Engine>> MakeEngine(int32_t step_rows, int32_t step_logits,
                                                             const MakeRankWorker& make_worker,
                                                             bool remap_mixed_steps);
  // Opens device_ as --device says for such a model, and says what it has chosen and why.
  absl::Status ChooseDevice(const model::RunnerOptions& options, const model::ModelSpec& spec);
  absl::Status Follow(model::ModelRunner& runner, const MakeRankWorker& make_worker);
  std::string http_endpoint() const;

  const NodeConfig config_;
  const std::string role_;
  std::unique_ptr<kernels::Device> device_;  // Outlives the engine; null: the CPUs compute.
  std::vector<int32_t> cpus_;                // Of the compute threads; empty: not pinned.
  const absl::Time began_ = SteadyClock::Instance().Now();
  const Incarnation incarnation_;
  StopSignal stop_{[](const char* why) { telemetry::LogWarning(why); }};
  telemetry::Registry registry_;
  http::HealthPages health_{registry_, SteadyClock::Instance()};
  http::Routes routes_;
  std::unique_ptr<http::HttpServer> server_;
  std::unique_ptr<rpc::ControlKeys> control_keys_;  // Of rank 0.
  std::string http_host_;
  std::string model_name_;
  int32_t max_context_tokens_ = 0;
  std::optional<PlacementMetrics> placement_metrics_;  // Of rank 0.
  // Of a node of several ranks. In order of destruction, last to first: the processes end once this
  // one has left.
  std::optional<RankProcesses> processes_;
  std::unique_ptr<NodeRanks> ranks_;
};

// main() of a node: parses the options, makes the runtime, runs `serve`, and turns what comes of it
// into a message and an exit status: 0, 1 (it failed) or 2 (bad arguments, by CheckNodeConfig() and
// by `check` of the options that only this program has, if there is one).
int RunNode(config::FlagSet& flags, int argc, const char* const* argv, const NodeConfig& config,
            const std::string& role, const std::function<absl::Status(NodeRuntime&)>& serve,
            const std::function<absl::Status()>& check = nullptr);

// What no single option can say. InvalidArgument names the options and their values.
absl::Status CheckNodeConfig(const NodeConfig& config);

// Splits "host:port" or "[v6]:port". InvalidArgument names `option`.
absl::StatusOr<std::pair<std::string, uint16_t>> ParseHostPort(const std::string& option,
                                                               const std::string& text);

}  // namespace lynx::node
