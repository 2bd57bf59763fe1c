#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/proto/control.pb.h"
#include "common/telemetry/metrics.h"

namespace lynx::rpc {

// Why an arriving message was not delivered.
enum class Drop { kMalformed, kTooLarge, kVersion, kUnknownKind, kUnauthorized };

struct DecodedEnvelope {
  proto::Envelope envelope;
  Drop drop = Drop::kMalformed;
  bool ok = false;  // False: `drop` says why, and `envelope` is of no use.
};

// Parses and judges one message. Malformed covers messages nested deeper than any of ours.
DecodedEnvelope DecodeEnvelope(std::span<const std::byte> bytes, size_t max_bytes);

// The part of DecodeEnvelope that looks at a parsed envelope only.
bool IsDeliverable(const proto::Envelope& envelope, Drop& drop);

// The lynx_control_* series of a channel. Thread-safe.
class ChannelMetrics {
 public:
  explicit ChannelMetrics(telemetry::Registry& registry);

  void OnSent(const proto::Envelope& envelope);
  void OnReceived(const proto::Envelope& envelope);
  void OnDropped(Drop drop);

 private:
  std::map<int, telemetry::Counter> sent_;  // By body case.
  std::map<int, telemetry::Counter> received_;
  std::map<Drop, telemetry::Counter> dropped_;
};

}  // namespace lynx::rpc
