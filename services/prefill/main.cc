#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/concurrency/event_loop.h"
#include "common/config/flag_set.h"
#include "common/handoff/rank_sender.h"
#include "common/node/moe_metrics.h"
#include "common/node/node_config.h"
#include "common/node/node_control.h"
#include "common/node/node_metrics.h"
#include "common/node/node_runtime.h"
#include "common/node/step_executor.h"
#include "common/node/transfer_identity.h"
#include "common/rpc/zmq_channel.h"
#include "common/transfer/ucx_engine.h"
#include "services/prefill/prefill_node.h"

namespace lynx::prefill {
namespace {

struct PrefillConfig {
  node::NodeConfig node;
  int32_t step_logits = 64;
  int32_t max_prompts = 1024;
  int64_t max_queued_tokens = 1 << 22;
  absl::Duration max_prefill_time = absl::Minutes(10);
};

absl::Status Serve(node::NodeRuntime& runtime, const PrefillConfig& config) {
  LYNX_ASSIGN_OR_RETURN(auto engine,
                        runtime.LoadEngine(config.node.step_rows, config.step_logits,
                                           [](node::RankWorkerParts parts) {
                                             return std::make_unique<handoff::RankSender>(
                                                 std::move(parts), handoff::KvSender::Options{});
                                           }));
  node::NodeMetrics metrics(runtime.registry(), "prefill", runtime.model_name(),
                            runtime.layout().dp);
  node::MoeMetrics moe_metrics(runtime.registry(), engine->runner().spec(), moe::Policy{});

  // In order of destruction, last to first: the loop is stopped by then.
  ThreadEventLoop loop;
  runtime.health().WatchLoop("loop", loop, absl::Seconds(30));
  LYNX_ASSIGN_OR_RETURN(auto channel, runtime.OpenControl(loop, engine->options().vocab_size));
  const auto control_keys = runtime.WatchControlKeys(*channel);
  LYNX_ASSIGN_OR_RETURN(
      auto transfer,
      transfer::UcxEngine::Create(
          {.transports = config.node.ucx_tls, .net_devices = config.node.ucx_net_devices}, loop));
  std::unique_ptr<handoff::KvSender> sender;
  std::unique_ptr<PrefillNode> node;
  node::ThreadStepExecutor executor(loop, runtime.WatchSteps());
  loop.RunAndWait([&] {
    sender = std::make_unique<handoff::KvSender>(
        node::TransferIdentity(runtime.incarnation(), engine->runner(), runtime.layout()),
        engine->runner().kv(), std::move(transfer), loop, runtime.registry(),
        handoff::KvSender::Options{}, runtime.ranks());
    node = std::make_unique<PrefillNode>(
        PrefillNode::Options{.incarnation = runtime.incarnation(),
                             .model_name = runtime.model_name(),
                             .max_context_tokens = runtime.max_context_tokens(),
                             .prefix_cache = config.node.prefix_cache,
                             .scheduler = {.step_rows = config.node.step_rows,
                                           .step_logits = config.step_logits,
                                           .max_jobs = config.max_prompts,
                                           .max_queued_tokens = config.max_queued_tokens},
                             .max_prefill_time = config.max_prefill_time,
                             .router_timeout = config.node.router_timeout,
                             .ask_to_end = [&runtime] { runtime.AskToEnd(); }},
        *engine, *sender, executor, loop, *channel, metrics, moe_metrics);
    node->Start();
  });
  const node::RankListener listener(
      runtime.ranks(), loop,
      [&](int rank, const proto::RankMessage& message) { sender->OnRankMessage(rank, message); });
  const absl::Status ready = runtime.SetReady(channel->endpoint());
  if (ready.ok()) {
    runtime.RunUntilStopped(
        loop, [&] { node->Drain(); }, [&] { return node->idle(); }, [&] { node->CutOff(); });
  }
  loop.Stop();
  return ready;
}

int Main(int argc, const char* const* argv) {
  PrefillConfig config;
  config.node.control = "0.0.0.0:9101";
  config.node.http = "0.0.0.0:9401";
  config::FlagSet flags("lynx-prefill",
                        "A prefill node: computes prompts and hands their KV to decode nodes.");
  node::AddNodeFlags(flags, config.node);
  flags.AddInt("step-logits", &config.step_logits, {1, 65536},
               "most rows of a step whose logits are wanted (prompts' log-probabilities), for "
               "each replica");
  flags.AddInt("max-prompts", &config.max_prompts, {1, 1 << 20},
               "prompts waiting or running, of each replica; more are refused as busy");
  flags.AddInt("max-queued-tokens", &config.max_queued_tokens, {1, int64_t{1} << 40},
               "prompt tokens not yet computed, of each replica; more are refused as busy");
  flags.AddDuration("max-prefill-time", &config.max_prefill_time, {absl::Seconds(1)},
                    "longest time from a prompt's arrival to its hand-off");
  return node::RunNode(flags, argc, argv, config.node, "prefill",
                       [&](node::NodeRuntime& runtime) { return Serve(runtime, config); });
}

}  // namespace
}  // namespace lynx::prefill

int main(int argc, char** argv) { return lynx::prefill::Main(argc, argv); }
