#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/proto/control.pb.h"
#include "common/telemetry/metrics.h"

namespace lynx::node {

// The families every node exports (docs/metrics.md): lynx_node_* and lynx_kv_*. All series exist
// from the start. Thread-safe.
class NodeMetrics {
 public:
  enum class FinishReason { kStop, kLength, kAbort, kError, kHandOff };

  // `phase` is "prefill" or "decode"; `replicas` those of attention. `registry` outlives this
  // object.
  NodeMetrics(telemetry::Registry& registry, const std::string& phase,
              const std::string& model_name, int32_t replicas = 1);

  void SetState(proto::NodeState state);
  void SetLoad(int64_t running, int64_t waiting);
  // Blocks free, in use by sequences, and reserved: on decode promised to hand-offs not yet
  // adopted, on prefill kept for hand-offs not yet ended.
  void SetBlocks(int64_t free, int64_t used, int64_t reserved);
  // Of the free ones, those that hold KV for later prompts.
  void SetCachedBlocks(int64_t cached);
  void SetCapacityBlocks(int64_t blocks);

  // Of one attention replica: its sequences, and blocks free; rows that a step computed for it.
  void SetReplica(int32_t replica, int64_t sequences, int64_t free_blocks);
  void OnReplicaRows(int32_t replica, int64_t rows);

  void OnStep(int64_t sequences, int64_t rows, double seconds);
  void OnFinished(FinishReason reason);

  telemetry::Histogram queue_seconds;
  telemetry::Histogram release_seconds;  // Cancellation received to blocks returned.
  telemetry::Counter prompt_tokens_computed;
  telemetry::Counter prompt_tokens_transferred;
  telemetry::Counter prompt_tokens_cached;
  telemetry::Counter prompt_tokens_held;
  telemetry::Counter local_prefills;
  telemetry::Counter output_tokens;
  telemetry::Counter preemptions;
  telemetry::Counter swapped_out_bytes;
  telemetry::Counter bad_logits;

 private:
  telemetry::Gauge states_[4];
  telemetry::Gauge running_;
  telemetry::Gauge waiting_;
  telemetry::Gauge blocks_free_;
  telemetry::Gauge blocks_used_;
  telemetry::Gauge blocks_reserved_;
  telemetry::Gauge blocks_cached_;
  telemetry::Gauge capacity_;
  telemetry::Gauge usage_;
  telemetry::Gauge last_step_;
  telemetry::Histogram batch_;
  telemetry::Histogram step_tokens_;
  telemetry::Histogram step_seconds_;
  telemetry::Counter finished_[5];
  struct Replica {
    telemetry::Gauge sequences;
    telemetry::Gauge blocks_free;
    telemetry::Counter rows;
  };
  std::vector<Replica> replicas_;
};

}  // namespace lynx::node
