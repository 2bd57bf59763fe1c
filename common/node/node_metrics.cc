#include "common/node/node_metrics.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/kv/kv_layout.h"
#include "common/telemetry/buckets.h"

namespace lynx::node {
namespace {

using telemetry::Counter;
using telemetry::Gauge;
using telemetry::Registry;

Gauge State(Registry& registry, const std::string& state) {
  return registry.AddGauge("lynx_node_state", "1 for the node's present state, 0 for the others.",
                           {{"state", state}});
}

Gauge Blocks(Registry& registry, const std::string& state) {
  return registry.AddGauge("lynx_kv_blocks", "KV blocks by state; they sum to the capacity.",
                           {{"state", state}});
}

Counter Finished(Registry& registry, const std::string& model, const std::string& reason) {
  return registry.AddCounter("lynx_node_requests_total", "Sequences that ended on this node.",
                             {{"model_name", model}, {"finish_reason", reason}});
}

Counter PromptTokens(Registry& registry, const std::string& model, const std::string& source) {
  return registry.AddCounter("lynx_node_prompt_tokens_total",
                             "Prompt tokens by where their KV came from.",
                             {{"model_name", model}, {"source", source}});
}

}  // namespace

NodeMetrics::NodeMetrics(Registry& registry, const std::string& phase, const std::string& model,
                         int32_t replicas)
    : queue_seconds(registry.AddHistogram("lynx_node_queue_duration_seconds",
                                          "Time a sequence waited on the node before it ran.",
                                          telemetry::kQueueSeconds, {{"model_name", model}})),
      release_seconds(registry.AddHistogram(
          "lynx_node_release_duration_seconds",
          "From a cancellation's arrival to the return of the sequence's last block.",
          telemetry::kReleaseSeconds)),
      prompt_tokens_computed(PromptTokens(registry, model, "computed")),
      prompt_tokens_transferred(PromptTokens(registry, model, "transferred")),
      prompt_tokens_cached(PromptTokens(registry, model, "cached")),
      prompt_tokens_held(PromptTokens(registry, model, "held")),
      local_prefills(registry.AddCounter("lynx_node_local_prefills_total",
                                         "Prompts computed on the node that decodes them.",
                                         {{"model_name", model}})),
      output_tokens(registry.AddCounter("lynx_node_output_tokens_total", "Tokens sampled.",
                                        {{"model_name", model}})),
      preemptions(registry.AddCounter("lynx_node_preemptions_total",
                                      "Sequences that gave their KV blocks up to others.",
                                      {{"model_name", model}})),
      swapped_out_bytes(registry.AddCounter(
          "lynx_node_swapped_out_bytes_total",
          "KV of preempted sequences that was copied so that it need not be computed again.")),
      bad_logits(
          registry.AddCounter("lynx_node_bad_logits_total",
                              "Sequences failed because the model's logits were not finite.")),
      states_{State(registry, "loading"), State(registry, "ready"), State(registry, "draining"),
              State(registry, "failed")},
      running_(registry.AddGauge("lynx_node_running_requests", "Sequences in the batch.",
                                 {{"model_name", model}})),
      waiting_(registry.AddGauge("lynx_node_waiting_requests", "Sequences waiting for room.",
                                 {{"model_name", model}, {"reason", "capacity"}})),
      blocks_free_(Blocks(registry, "free")),
      blocks_used_(Blocks(registry, "used")),
      blocks_reserved_(Blocks(registry, "reserved")),
      blocks_cached_(registry.AddGauge("lynx_kv_cached_blocks",
                                       "Free blocks that hold KV for prompts that begin like it.")),
      capacity_(registry.AddGauge("lynx_kv_capacity_blocks", "KV blocks of the node.")),
      usage_(
          registry.AddGauge("lynx_kv_usage_ratio", "Share of the KV blocks in use or reserved.")),
      last_step_(registry.AddGauge("lynx_node_last_step_timestamp_seconds",
                                   "Wall clock of the last finished step; proof of progress.")),
      batch_(registry.AddHistogram("lynx_node_batch_size", "Sequences in a step.",
                                   telemetry::kBatch, {{"phase", phase}})),
      step_tokens_(registry.AddHistogram("lynx_node_step_tokens", "Rows of a step.",
                                         telemetry::kStepTokens, {{"phase", phase}})),
      step_seconds_(registry.AddHistogram("lynx_node_step_duration_seconds",
                                          "Time of one forward step.", telemetry::kStageSeconds,
                                          {{"phase", phase}})),
      finished_{Finished(registry, model, "stop"), Finished(registry, model, "length"),
                Finished(registry, model, "abort"), Finished(registry, model, "error"),
                Finished(registry, model, "handoff")} {
  registry.AddGauge("lynx_kv_block_tokens", "Tokens in a KV block, of one group of layers.")
      .Set(kv::kBlockTokens);
  for (int32_t i = 0; i < replicas; ++i) {
    const telemetry::Labels labels = {{"replica", absl::StrCat(i)}};
    replicas_.push_back(
        {.sequences = registry.AddGauge("lynx_node_replica_sequences",
                                        "Sequences of an attention replica.", labels),
         .blocks_free =
             registry.AddGauge("lynx_node_replica_kv_blocks_free",
                               "KV blocks of an attention replica that are free.", labels),
         .rows =
             registry.AddCounter("lynx_node_replica_rows_total",
                                 "Rows that steps computed for an attention replica.", labels)});
  }
  SetState(proto::NODE_STATE_LOADING);
}

void NodeMetrics::SetState(proto::NodeState state) {
  for (int i = 0; i < 4; ++i) states_[i].Set(i + proto::NODE_STATE_LOADING == state ? 1 : 0);
}

void NodeMetrics::SetLoad(int64_t running, int64_t waiting) {
  running_.Set(static_cast<double>(running));
  waiting_.Set(static_cast<double>(waiting));
}

void NodeMetrics::SetBlocks(int64_t free, int64_t used, int64_t reserved) {
  blocks_free_.Set(static_cast<double>(free));
  blocks_used_.Set(static_cast<double>(used));
  blocks_reserved_.Set(static_cast<double>(reserved));
  usage_.Set(static_cast<double>(used + reserved) / static_cast<double>(free + used + reserved));
}

void NodeMetrics::SetCachedBlocks(int64_t cached) {
  blocks_cached_.Set(static_cast<double>(cached));
}

void NodeMetrics::SetCapacityBlocks(int64_t blocks) {
  capacity_.Set(static_cast<double>(blocks));
  SetBlocks(blocks, 0, 0);
}

void NodeMetrics::SetReplica(int32_t replica, int64_t sequences, int64_t free_blocks) {
  Replica& one = replicas_.at(static_cast<size_t>(replica));
  one.sequences.Set(static_cast<double>(sequences));
  one.blocks_free.Set(static_cast<double>(free_blocks));
}

void NodeMetrics::OnReplicaRows(int32_t replica, int64_t rows) {
  replicas_.at(static_cast<size_t>(replica)).rows.Increment(static_cast<double>(rows));
}

void NodeMetrics::OnStep(int64_t sequences, int64_t rows, double seconds) {
  batch_.Observe(static_cast<double>(sequences));
  step_tokens_.Observe(static_cast<double>(rows));
  step_seconds_.Observe(seconds);
  last_step_.Set(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
}

void NodeMetrics::OnFinished(FinishReason reason) {
  finished_[static_cast<int>(reason)].Increment();
}

}  // namespace lynx::node
