#include "common/transfer/transfer_metrics.h"

#include <iterator>

#include "common/telemetry/buckets.h"

namespace lynx::transfer {
namespace {

constexpr const char* kResults[] = {"ok",      "error",    "timeout",
                                    "aborted", "checksum", "incompatible"};

// In the order of Drop.
constexpr const char* kDrops[] = {
    "malformed",     "version",      "incarnation",  "unexpected",
    "role",          "unknown_peer", "no_handshake", "handshake_refused",
    "unknown_grant", "stale_epoch",  "other_sender", "adopted",
    "range",         "no_staging",   "duplicate",    "late_abort",
    "late_reply"};
static_assert(std::size(kDrops) == static_cast<size_t>(Drop::kLateReply) + 1);

const char* ResultOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return "ok";
    case absl::StatusCode::kDeadlineExceeded:
      return "timeout";
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
      return "aborted";
    case absl::StatusCode::kDataLoss:
      return "checksum";
    case absl::StatusCode::kFailedPrecondition:
      return "incompatible";
    default:
      return "error";
  }
}

telemetry::Labels With(telemetry::Labels labels, const char* name, const char* value) {
  labels[name] = value;
  return labels;
}

}  // namespace

TransferMetrics::TransferMetrics(telemetry::Registry& registry, const std::string& direction,
                                 const std::string& transport)
    : labels_{{"direction", direction}, {"transport", transport}},
      bytes_(
          registry.AddCounter("lynx_kv_transfer_bytes_total", "Bytes of KV confirmed.", labels_)),
      duration_(registry.AddHistogram("lynx_kv_transfer_duration_seconds",
                                      "First byte posted to last byte confirmed, per hand-off.",
                                      telemetry::kTransferSeconds, labels_)),
      size_(registry.AddHistogram("lynx_kv_transfer_size_bytes", "Payload of one hand-off.",
                                  telemetry::kTransferBytes, labels_)),
      throughput_(registry.AddHistogram("lynx_kv_transfer_throughput_bytes_per_second",
                                        "Payload rate of one hand-off.",
                                        telemetry::kTransferBytesPerSecond, labels_)),
      pending_(registry.AddGauge("lynx_kv_transfer_pending", "Hand-offs under way.",
                                 {{"direction", direction}})),
      pending_bytes_(registry.AddGauge("lynx_kv_transfer_pending_bytes",
                                       "Bytes pinned by hand-offs under way.",
                                       {{"direction", direction}})),
      oldest_pending_(registry.AddGauge("lynx_kv_transfer_oldest_pending_seconds",
                                        "Age of the oldest hand-off under way.",
                                        {{"direction", direction}})),
      leases_expired_(registry.AddCounter("lynx_kv_transfer_leases_expired_total",
                                          "Hand-offs given up because their time was over.")),
      prefix_mismatches_(registry.AddCounter(
          "lynx_kv_transfer_prefix_mismatches_total",
          "Hand-offs refused because the prefix held for them is of other tokens.")),
      handshake_(registry.AddHistogram("lynx_kv_transfer_handshake_duration_seconds",
                                       "Set-up of a connection, self-test included.",
                                       telemetry::kTransferSeconds)),
      connecting_(registry.AddGauge("lynx_kv_transfer_peers", "Connections by state.",
                                    {{"direction", direction}, {"state", "connecting"}})),
      connected_(registry.AddGauge("lynx_kv_transfer_peers", "Connections by state.",
                                   {{"direction", direction}, {"state", "connected"}})),
      failed_(registry.AddGauge("lynx_kv_transfer_peers", "Connections by state.",
                                {{"direction", direction}, {"state", "failed"}})),
      quarantined_(registry.AddGauge("lynx_kv_transfer_quarantined_bytes",
                                     "Staging memory of dead hand-offs that the transport may "
                                     "still write to.")) {
  for (const char* result : kResults) {
    results_.emplace(result, registry.AddCounter("lynx_kv_transfers_total", "Hand-offs that ended.",
                                                 With(labels_, "result", result)));
  }
  for (const char* reason : kDrops) {
    dropped_.push_back(registry.AddCounter("lynx_kv_transfer_dropped_total",
                                           "Messages that were not taken.", {{"reason", reason}}));
  }
}

void TransferMetrics::OnTransferEnd(const absl::Status& status, int64_t bytes,
                                    absl::Duration took) {
  results_.at(ResultOf(status)).Increment();
  bytes_.Increment(static_cast<double>(bytes));
  if (!status.ok()) return;
  const double seconds = absl::ToDoubleSeconds(took);
  duration_.Observe(seconds);
  size_.Observe(static_cast<double>(bytes));
  if (seconds > 0) throughput_.Observe(static_cast<double>(bytes) / seconds);
}

void TransferMetrics::OnDropped(Drop reason) { dropped_[static_cast<size_t>(reason)].Increment(); }

void TransferMetrics::OnHandshake(absl::Duration took) {
  handshake_.Observe(absl::ToDoubleSeconds(took));
}

void TransferMetrics::SetPending(int64_t transfers, int64_t bytes, absl::Duration oldest) {
  pending_.Set(static_cast<double>(transfers));
  pending_bytes_.Set(static_cast<double>(bytes));
  oldest_pending_.Set(absl::ToDoubleSeconds(oldest));
}

void TransferMetrics::SetPeers(int64_t connecting, int64_t connected, int64_t failed) {
  connecting_.Set(static_cast<double>(connecting));
  connected_.Set(static_cast<double>(connected));
  failed_.Set(static_cast<double>(failed));
}

void TransferMetrics::SetQuarantinedBytes(size_t bytes) {
  quarantined_.Set(static_cast<double>(bytes));
}

}  // namespace lynx::transfer
