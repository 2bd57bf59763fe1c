#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/concurrency/event_loop.h"
#include "common/config/flag_set.h"
#include "common/model/model_spec.h"
#include "common/moe/policy.h"
#include "common/moe/presets.h"
#include "common/node/moe_metrics.h"
#include "common/node/node_config.h"
#include "common/node/node_control.h"
#include "common/node/node_metrics.h"
#include "common/node/node_runtime.h"
#include "common/node/step_executor.h"
#include "common/node/transfer_identity.h"
#include "common/rpc/zmq_channel.h"
#include "common/telemetry/log.h"
#include "common/transfer/ucx_engine.h"
#include "services/decode/decode_node.h"
#include "services/decode/handoff/decode_rank.h"
#include "services/decode/policy/step_policy.h"
#include "services/decode/quality/quality_watch.h"

namespace lynx::decode {
namespace {

struct DecodeConfig {
  node::NodeConfig node;
  int32_t max_batch = 64;
  int32_t max_sequences = 512;
  absl::Duration max_lease = absl::Minutes(10);
  int64_t swap_space = int64_t{256} << 20;
  std::string role = "decode";
  int32_t prompt_rows = -1;
  absl::Duration max_prefill_time = absl::Minutes(10);
  std::string lynx_policy = "exact";
  std::string lynx_mixed_steps = "exact";
  double guard_share = 0.01;
  double guard_kl = 0.05;
  double guard_agreement = 0;
  double guard_kept_mass = 0;
  int32_t guard_window = 64;
  absl::Duration guard_hold = absl::Minutes(1);
  std::string auto_gentlest = "lynx:alpha=3,beta=3,floor=1,self_scaled=true";
  std::string auto_harshest = "lynx:alpha=6,beta=3,floor=1,self_scaled=true";
  absl::Duration tpot_target = absl::ZeroDuration();
};

// Rows of prompts in a step of a node that has prefill nodes beside it. Each makes the step longer
// for all that decode there.
constexpr int32_t kFewPromptRows = 64;
// How far the policy auto may go from exact, in steps.
constexpr int32_t kAutoRungs = 8;
// A guard that trips again and again holds up to so many times as long.
constexpr int kMaxHolds = 16;

absl::Status Check(const DecodeConfig& config) {
  if (config.node.step_rows < config.max_batch) {
    return absl::InvalidArgumentError(absl::StrCat("--step-rows ", config.node.step_rows,
                                                   " is less than --max-batch ", config.max_batch));
  }
  if (config.prompt_rows == 0 && config.role == "both") {
    return absl::InvalidArgumentError("--role both computes prompts: --prompt-rows cannot be 0");
  }
  return absl::OkStatus();
}

absl::Status Serve(node::NodeRuntime& runtime, const DecodeConfig& config) {
  int32_t prompt_rows = config.prompt_rows;
  if (prompt_rows < 0) {
    prompt_rows = config.role == "both" ? config.node.step_rows : kFewPromptRows;
  }
  // Before the weights, which take long.
  LYNX_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::LoadModelSpec(config.node.model));
  const bool has_auto = config.guard_share > 0 && spec.experts > 0;
  auto policy = StepPolicy::Create(config.lynx_policy, spec, runtime.model_name(), has_auto);
  if (!policy.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--lynx-policy ", config.lynx_policy, ": ",
                                                   std::string(policy.status().message())));
  }
  absl::StatusOr<std::vector<moe::Policy>> ladder = std::vector<moe::Policy>();
  if (has_auto) ladder = policy->Ladder(config.auto_gentlest, config.auto_harshest, kAutoRungs);
  if (!ladder.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--lynx-auto-gentlest ", config.auto_gentlest, " and --lynx-auto-harshest ",
                     config.auto_harshest, ": ", std::string(ladder.status().message())));
  }
  LYNX_ASSIGN_OR_RETURN(auto engine,
                        runtime.LoadEngine(
                            config.node.step_rows, config.max_batch,
                            [](node::RankWorkerParts parts) {
                              return std::make_unique<DecodeRank>(std::move(parts),
                                                                  DecodeRank::Options{});
                            },
                            /*remap_mixed_steps=*/config.lynx_mixed_steps == "piggyback"));
  telemetry::LogInfo(
      "expert remapping",
      {{"policy", moe::ToString(policy->own())},
       {"mixed_steps", config.lynx_mixed_steps},
       {"preset", moe::PresetFor(model::FactsOf(spec, runtime.model_name())).source}});
  node::NodeMetrics metrics(runtime.registry(), "decode", runtime.model_name(),
                            runtime.layout().dp);
  node::MoeMetrics moe_metrics(runtime.registry(), spec, policy->own());
  QualityWatch quality({.share = config.guard_share,
                        .guard = {.budget = {.max_kl_nats = config.guard_kl,
                                             .min_top1 = config.guard_agreement,
                                             .min_kept_mass = config.guard_kept_mass},
                                  .window = config.guard_window,
                                  .hold = config.guard_hold,
                                  .max_hold = kMaxHolds * config.guard_hold},
                        .ladder = *std::move(ladder),
                        .step_target = config.tpot_target},
                       spec.vocab_size, runtime.registry());

  // In order of destruction, last to first: the loop is stopped by then.
  ThreadEventLoop loop;
  runtime.health().WatchLoop("loop", loop, absl::Seconds(30));
  LYNX_ASSIGN_OR_RETURN(auto channel, runtime.OpenControl(loop, engine->options().vocab_size));
  const auto control_keys = runtime.WatchControlKeys(*channel);
  LYNX_ASSIGN_OR_RETURN(
      auto transfer,
      transfer::UcxEngine::Create(
          {.transports = config.node.ucx_tls, .net_devices = config.node.ucx_net_devices}, loop));
  LYNX_ASSIGN_OR_RETURN(
      auto send_transfer,
      transfer::UcxEngine::Create(
          {.transports = config.node.ucx_tls, .net_devices = config.node.ucx_net_devices}, loop));
  std::unique_ptr<DecodeNode> node;
  std::unique_ptr<KvReceiver> receiver;
  std::unique_ptr<handoff::KvSender> sender;
  ReceiverRanks ranks;
  if (runtime.ranks() != nullptr) ranks = {runtime.ranks(), runtime.ranks()->endpoints()};
  node::ThreadStepExecutor executor(loop, runtime.WatchSteps());
  loop.RunAndWait([&] {
    node = std::make_unique<DecodeNode>(
        DecodeNode::Options{
            .incarnation = runtime.incarnation(),
            .model_name = runtime.model_name(),
            .max_context_tokens = runtime.max_context_tokens(),
            .prefix_cache = config.node.prefix_cache,
            .max_sequences = config.max_sequences,
            .scheduler = {.max_batch = config.max_batch,
                          .step_rows = config.node.step_rows,
                          .chunk_rows = prompt_rows > 0 ? prompt_rows : config.node.step_rows,
                          .pool_blocks = engine->pool().capacity_blocks()},
            .swap_space = config.swap_space,
            .ranks = runtime.ranks(),
            .takes_prompts = prompt_rows > 0,
            .max_lease = config.max_lease,
            .max_prefill_time = config.max_prefill_time,
            .router_timeout = config.node.router_timeout,
            .ask_to_end = [&runtime] { runtime.AskToEnd(); }},
        *policy, quality, *engine, executor, loop, *channel, metrics, moe_metrics);
    const transfer::NodeIdentity identity =
        node::TransferIdentity(runtime.incarnation(), engine->runner(), runtime.layout());
    receiver = std::make_unique<KvReceiver>(identity, engine->runner().kv(), std::move(transfer),
                                            loop, runtime.registry(), *node, KvReceiver::Options{},
                                            std::move(ranks));
    sender = std::make_unique<handoff::KvSender>(identity, engine->runner().kv(),
                                                 std::move(send_transfer), loop, runtime.registry(),
                                                 handoff::KvSender::Options{}, runtime.ranks());
    node->Start(*receiver, *sender);
  });
  const node::RankListener listener(runtime.ranks(), loop,
                                    [&](int rank, const proto::RankMessage& message) {
                                      receiver->OnRankMessage(rank, message);
                                      sender->OnRankMessage(rank, message);
                                    });
  const absl::Status ready = runtime.SetReady(channel->endpoint());
  if (ready.ok()) {
    runtime.RunUntilStopped(
        loop, [&] { node->Drain(); }, [&] { return node->idle(); }, [&] { node->CutOff(); });
  }
  loop.Stop();
  return ready;
}

int Main(int argc, const char* const* argv) {
  DecodeConfig config;
  config::FlagSet flags("lynx-decode",
                        "A decode node: takes KV from prefill nodes and generates tokens.");
  node::AddNodeFlags(flags, config.node);
  flags.AddInt("max-batch", &config.max_batch, {1, 4096},
               "sequences advanced in one step, of each replica");
  flags.AddInt("max-sequences", &config.max_sequences, {1, 1 << 20},
               "sequences granted and running, on all replicas; more are refused as busy");
  flags.AddBytes("swap-space", &config.swap_space, {0},
                 "memory of each rank for the KV of preempted sequences where copying it is "
                 "cheaper than computing "
                 "it again; 0 copies nothing");
  flags.AddChoice("role", &config.role, {"decode", "both"},
                  "decode: beside prefill nodes; computes prompts where that costs less, or while "
                  "there is no other. both: for routers without prefill nodes, with all of "
                  "step-rows for prompts");
  flags.AddInt("prompt-rows", &config.prompt_rows, {-1, 65536},
               "most tokens of prompts, or of what is computed again, in a step that also "
               "decodes, for each replica; 0 takes no prompts, -1 goes by the role: 64, or all of "
               "step-rows");
  flags.AddDuration("max-prefill-time", &config.max_prefill_time, {absl::Seconds(1)},
                    "longest time from a prompt's arrival to its first token");
  flags.AddDuration("max-lease", &config.max_lease, {absl::Seconds(1)},
                    "longest life of a grant without a sign of its router");
  flags.AddString("lynx-policy", &config.lynx_policy,
                  "how experts are remapped for requests that do not say; name:key=value,... as in "
                  "lynx:alpha=3,beta=4,floor=1");
  flags.AddChoice("lynx-mixed-steps", &config.lynx_mixed_steps, {"exact", "piggyback"},
                  "what a step does that also computes prompts: nothing is remapped, or decode "
                  "rows are, onto what the others load anyway");
  flags.AddDouble(
      "lynx-guard-share", &config.guard_share, {0, 1},
      "share of the steps with remapped rows that are compared with exact ones; 0 turns "
      "the quality guard off");
  flags.AddDouble("lynx-guard-kl", &config.guard_kl, {1e-6, 1e6},
                  "quality budget: mean KL(exact || policy) of the compared tokens, in nats");
  flags.AddDouble("lynx-guard-agreement", &config.guard_agreement, {0, 0.9999},
                  "quality budget: least share of compared tokens whose likeliest one stays the "
                  "same; 0 does not look");
  flags.AddDouble(
      "lynx-guard-kept-mass", &config.guard_kept_mass, {0, 0.9999},
      "quality budget: least mean of the gate mass that compared steps keep; 0 does not "
      "look");
  flags.AddInt("lynx-guard-window", &config.guard_window, {1, 4096},
               "compared tokens that the guard decides by");
  flags.AddDuration("lynx-guard-hold", &config.guard_hold, {absl::Seconds(1)},
                    "shortest time that a guard which has tripped keeps the node exact");
  flags.AddString("lynx-auto-gentlest", &config.auto_gentlest,
                  "where the policy auto begins after exact");
  flags.AddString("lynx-auto-harshest", &config.auto_harshest, "how far the policy auto may go");
  flags.AddDuration("lynx-tpot-target", &config.tpot_target, {absl::ZeroDuration()},
                    "time of a step that the policy auto aims for; 0 for as fast as the quality "
                    "budget allows");
  return node::RunNode(
      flags, argc, argv, config.node, "decode",
      [&](node::NodeRuntime& runtime) { return Serve(runtime, config); },
      [&config] { return Check(config); });
}

}  // namespace
}  // namespace lynx::decode

int main(int argc, char** argv) { return lynx::decode::Main(argc, argv); }
