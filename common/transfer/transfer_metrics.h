#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/telemetry/metrics.h"

namespace lynx::transfer {

// The lynx_kv_transfer_* series of one end of the hand-off. Not thread-safe: on the owner's loop.
class TransferMetrics {
 public:
  // direction: "send" or "recv".
  TransferMetrics(telemetry::Registry& registry, const std::string& direction,
                  const std::string& transport);

  // One hand-off that ended. bytes: payload that was confirmed; took: since its first byte.
  void OnTransferEnd(const absl::Status& status, int64_t bytes, absl::Duration took);
  // A message that was not taken; `reason` is from a closed set.
  void OnDropped(const char* reason);
  void OnLeaseExpired() { leases_expired_.Increment(); }
  void OnHandshake(absl::Duration took);
  void SetPending(int64_t transfers, int64_t bytes, absl::Duration oldest);
  // failed: connections of the last minute that ended otherwise than by our own closing.
  void SetPeers(int64_t connecting, int64_t connected, int64_t failed);
  void SetQuarantinedBytes(size_t bytes);

 private:
  telemetry::Registry& registry_;
  const telemetry::Labels labels_;
  std::map<std::string, telemetry::Counter> results_;
  std::map<std::string, telemetry::Counter> dropped_;
  telemetry::Counter bytes_;
  telemetry::Histogram duration_;
  telemetry::Histogram size_;
  telemetry::Histogram throughput_;
  telemetry::Gauge pending_;
  telemetry::Gauge pending_bytes_;
  telemetry::Gauge oldest_pending_;
  telemetry::Counter leases_expired_;
  telemetry::Histogram handshake_;
  telemetry::Gauge connecting_;
  telemetry::Gauge connected_;
  telemetry::Gauge failed_;
  telemetry::Gauge quarantined_;
};

}  // namespace lynx::transfer
