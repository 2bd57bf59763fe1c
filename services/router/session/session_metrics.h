#pragma once

#include <vector>

#include "common/telemetry/metrics.h"
#include "services/router/placement/prefix_index.h"
#include "services/router/session/sequence_session.h"

namespace lynx::router {

enum class Rejection : uint8_t {
  kQueueFull,
  kQueueTimeout,
  kLate,
  kNotReady,
  kDraining,
  kTooLarge,
  kDisplaced
};
enum class SequenceOutcome : uint8_t { kFinished, kFailed, kCancelled, kRejected };
enum class QueueOutcome : uint8_t { kDispatched, kTimeout, kCancelled, kFailed, kDisplaced };
enum class Stage : uint8_t { kQueue, kGivenUp, kReserve, kPrefill, kKvTransfer, kDecodeWait };

// The series of ClusterService. Every one exists from the start.
class SessionMetrics {
 public:
  explicit SessionMetrics(telemetry::Registry& registry);

  void Rejected(Rejection reason) { rejections_[Index(reason)].Increment(); }
  void Ended(SequenceOutcome outcome) { sequences_[Index(outcome)].Increment(); }
  void LeftQueue(QueueOutcome outcome, absl::Duration waited) {
    queue_[Index(outcome)].Observe(absl::ToDoubleSeconds(waited));
  }
  void StageTook(Stage stage, absl::Duration took) {
    stages_[Index(stage)].Observe(absl::ToDoubleSeconds(took));
  }
  void Retried(RetryStage stage, RetryReason reason) {
    retries_[Index(stage) * kRetryReasons + Index(reason)].Increment();
  }

  void FailedOver(bool resumed) { (resumed ? failovers_resumed_ : failovers_failed_).Increment(); }

  void Moved(MoveResult result) { moves_[Index(result)].Increment(); }

  void Reported(PrefixIndex::Heard heard) { prefix_reports_[Index(heard)].Increment(); }

  telemetry::Gauge queued;
  telemetry::Gauge in_flight;
  telemetry::Gauge indexed_prefixes;
  telemetry::Gauge open_circuits;
  telemetry::Histogram release_seconds;
  telemetry::Histogram failover_seconds;
  telemetry::Histogram move_pause_seconds;
  telemetry::Counter disaggregated;
  telemetry::Counter local;
  telemetry::Counter ignored_unknown_sequence;
  telemetry::Counter ignored_unexpected;

 private:
  template <typename Enum>
  static size_t Index(Enum value) {
    return static_cast<size_t>(value);
  }

  telemetry::Counter failovers_resumed_;
  telemetry::Counter failovers_failed_;
  std::vector<telemetry::Counter> moves_;
  std::vector<telemetry::Counter> rejections_;
  std::vector<telemetry::Counter> sequences_;
  std::vector<telemetry::Histogram> queue_;
  std::vector<telemetry::Histogram> stages_;
  std::vector<telemetry::Counter> retries_;
  std::vector<telemetry::Counter> prefix_reports_;
};

}  // namespace lynx::router
