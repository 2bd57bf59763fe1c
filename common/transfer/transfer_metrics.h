#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/telemetry/metrics.h"

namespace lynx::transfer {

// Why a message was not taken.
enum class Drop {
  kMalformed,
  kVersion,
  kIncarnation,
  kUnexpected,  // Of a kind that this end does not take.
  kRole,        // A prefill node takes this one for a decode node.
  kUnknownPeer,
  kNoHandshake,
  kHandshakeRefused,
  kUnknownGrant,
  kStaleEpoch,
  kOtherSender,  // Another prefill node has taken the grant over.
  kAdopted,      // The grant has been fulfilled.
  kRange,        // Blocks or bytes that the grant does not have.
  kNoStaging,
  kDuplicate,
  kLateAbort,
  kLateReply,
};

// The lynx_kv_transfer_* series of one end of the hand-off, all there from the start. Not
// thread-safe: on the owner's loop.
class TransferMetrics {
 public:
  // direction: "send" or "recv".
  TransferMetrics(telemetry::Registry& registry, const std::string& direction,
                  const std::string& transport);

  // One hand-off that ended. bytes: payload that was confirmed; took: since its first byte.
  void OnTransferEnd(const absl::Status& status, int64_t bytes, absl::Duration took);
  void OnDropped(Drop reason);
  void OnLeaseExpired() { leases_expired_.Increment(); }
  // Blocks were shared by their hashes and hold other tokens.
  void OnPrefixMismatch() { prefix_mismatches_.Increment(); }
  void OnHandshake(absl::Duration took);
  void SetPending(int64_t transfers, int64_t bytes, absl::Duration oldest);
  // failed: connections of the last minute that failed, or that we gave up.
  void SetPeers(int64_t connecting, int64_t connected, int64_t failed);
  void SetQuarantinedBytes(size_t bytes);

 private:
  const telemetry::Labels labels_;
  std::map<std::string, telemetry::Counter> results_;
  std::vector<telemetry::Counter> dropped_;  // By Drop.
  telemetry::Counter bytes_;
  telemetry::Histogram duration_;
  telemetry::Histogram size_;
  telemetry::Histogram throughput_;
  telemetry::Gauge pending_;
  telemetry::Gauge pending_bytes_;
  telemetry::Gauge oldest_pending_;
  telemetry::Counter leases_expired_;
  telemetry::Counter prefix_mismatches_;
  telemetry::Histogram handshake_;
  telemetry::Gauge connecting_;
  telemetry::Gauge connected_;
  telemetry::Gauge failed_;
  telemetry::Gauge quarantined_;
};

}  // namespace lynx::transfer
