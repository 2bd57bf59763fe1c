#include "services/router/session/session_metrics.h"

#include "common/telemetry/buckets.h"
#include "services/router/session/stage_duration.h"

namespace lynx::router {
namespace {

constexpr char kIgnored[] = "lynx_router_ignored_messages_total";
constexpr char kFailovers[] = "lynx_router_failovers_total";
constexpr char kFailoversHelp[] =
    "Sequences broken off after tokens were delivered, by whether they went on on other nodes";
constexpr char kMoves[] = "lynx_router_moves_total";
constexpr char kMovesHelp[] =
    "Tries to have a decode node that drains hand a sequence and its KV to another, by outcome";
constexpr char kIgnoredHelp[] = "Control messages that changed nothing: late, doubled or unknown";

}  // namespace

SessionMetrics::SessionMetrics(telemetry::Registry& registry)
    : queued(registry.AddGauge("lynx_router_queued_requests", "Sequences waiting for a node")),
      in_flight(registry.AddGauge("lynx_router_inflight_sequences", "Sequences placed on nodes")),
      indexed_prefixes(registry.AddGauge("lynx_router_indexed_prefixes",
                                         "Prefixes that nodes are known to hold, by node")),
      open_circuits(
          registry.AddGauge("lynx_router_open_circuits",
                            "Nodes passed over, or tried again, after failing repeatedly")),
      release_seconds(registry.AddHistogram(
          "lynx_router_release_duration_seconds",
          "From a client's leaving to the return of its sequence's last block on any node",
          telemetry::kReleaseSeconds)),
      failover_seconds(registry.AddHistogram(
          "lynx_router_failover_duration_seconds",
          "From a break after tokens were delivered to the next token from other nodes",
          telemetry::kQueueSeconds)),
      move_pause_seconds(registry.AddHistogram(
          "lynx_router_move_pause_seconds",
          "From the last token of a decode node that drains to the first of the one that has its "
          "KV from there",
          telemetry::kQueueSeconds)),
      disaggregated(registry.AddCounter("lynx_router_routing_decisions_total",
                                        "Prompts sent to nodes, by where prefill ran",
                                        {{"decision", "disaggregated"}})),
      local(registry.AddCounter("lynx_router_routing_decisions_total",
                                "Prompts sent to nodes, by where prefill ran",
                                {{"decision", "local"}})),
      ignored_unknown_sequence(
          registry.AddCounter(kIgnored, kIgnoredHelp, {{"reason", "unknown_sequence"}})),
      ignored_unexpected(registry.AddCounter(kIgnored, kIgnoredHelp, {{"reason", "unexpected"}})),
      failovers_resumed_(registry.AddCounter(kFailovers, kFailoversHelp, {{"result", "resumed"}})),
      failovers_failed_(registry.AddCounter(kFailovers, kFailoversHelp, {{"result", "failed"}})) {
  for (int result = 0; result < kMoveResults; ++result) {
    moves_.push_back(registry.AddCounter(kMoves, kMovesHelp,
                                         {{"result", Name(static_cast<MoveResult>(result))}}));
  }
  for (const char* reason :
       {"queue_full", "queue_timeout", "late", "not_ready", "draining", "too_large", "displaced"}) {
    rejections_.push_back(registry.AddCounter("lynx_router_rejections_total",
                                              "Sequences refused before work was done",
                                              {{"reason", reason}}));
  }
  for (const char* outcome : {"finished", "failed", "cancelled", "rejected"}) {
    sequences_.push_back(registry.AddCounter(
        "lynx_router_sequences_total", "Sequences that ended, by how", {{"outcome", outcome}}));
  }
  for (const char* outcome : {"dispatched", "timeout", "cancelled", "failed", "displaced"}) {
    queue_.push_back(
        registry.AddHistogram("lynx_router_queue_duration_seconds",
                              "Time in the router's queue, each time a sequence is in it",
                              telemetry::kQueueSeconds, {{"outcome", outcome}}));
  }
  // kv_transfer is what of the hand-off follows the first token: the rest overlaps prefill.
  // Attempts given up count whole, so that the stages of a sequence add up to its time.
  for (const char* stage :
       {"queue", "given_up", "reserve", "prefill", "kv_transfer", "decode_wait"}) {
    stages_.push_back(registry.AddHistogram(kStageDurationName, kStageDurationHelp,
                                            telemetry::kStageSeconds, {{"stage", stage}}));
  }
  for (int stage = 0; stage < kRetryStages; ++stage) {
    for (int reason = 0; reason < kRetryReasons; ++reason) {
      retries_.push_back(registry.AddCounter("lynx_router_retries_total",
                                             "Attempts given up and begun anew",
                                             {{"stage", Name(static_cast<RetryStage>(stage))},
                                              {"reason", Name(static_cast<RetryReason>(reason))}}));
    }
  }
  for (int heard = 0; heard < PrefixIndex::kHeard; ++heard) {
    prefix_reports_.push_back(registry.AddCounter(
        "lynx_router_prefix_reports_total", "What nodes said of the prefixes they hold, by use",
        {{"result", Name(static_cast<PrefixIndex::Heard>(heard))}}));
  }
}

}  // namespace lynx::router
