#include "common/rpc/envelope.h"

#include <utility>

#include "common/proto/parse.h"
#include "common/rpc/channel.h"

namespace lynx::rpc {
namespace {

using proto::Envelope;

constexpr std::pair<int, const char*> kKinds[] = {
    {Envelope::kPing, "ping"},
    {Envelope::kReserve, "reserve"},
    {Envelope::kPrefill, "prefill"},
    {Envelope::kCancel, "cancel"},
    {Envelope::kHandOff, "hand_off"},
    {Envelope::kDrain, "drain"},
    {Envelope::kNodeStatus, "node_status"},
    {Envelope::kGrant, "grant"},
    {Envelope::kRefused, "refused"},
    {Envelope::kFirstToken, "first_token"},
    {Envelope::kTokenBatch, "token_batch"},
    {Envelope::kTerminal, "terminal"},
    {Envelope::kPrefixReport, "prefix_report"},
    {Envelope::BODY_NOT_SET, "unknown"},
};

constexpr std::pair<Drop, const char*> kDrops[] = {
    {Drop::kMalformed, "malformed"},       {Drop::kTooLarge, "too_large"},
    {Drop::kVersion, "version"},           {Drop::kUnknownKind, "unknown_kind"},
    {Drop::kUnauthorized, "unauthorized"},
};

}  // namespace

DecodedEnvelope DecodeEnvelope(std::span<const std::byte> bytes, size_t max_bytes) {
  DecodedEnvelope result;
  if (bytes.size() > max_bytes) {
    result.drop = Drop::kTooLarge;
    return result;
  }
  if (!proto::ParseMessage(bytes, result.envelope)) {
    result.drop = Drop::kMalformed;
    return result;
  }
  result.ok = IsDeliverable(result.envelope, result.drop);
  return result;
}

bool IsDeliverable(const Envelope& envelope, Drop& drop) {
  if (envelope.version() != kProtocolVersion) {
    drop = Drop::kVersion;
    return false;
  }
  if (envelope.body_case() == Envelope::BODY_NOT_SET) {
    drop = Drop::kUnknownKind;
    return false;
  }
  return true;
}

ChannelMetrics::ChannelMetrics(telemetry::Registry& registry) {
  for (const auto& [kind, name] : kKinds) {
    const char* help = "Control messages by kind.";
    sent_.emplace(kind, registry.AddCounter("lynx_control_messages_total", help,
                                            {{"direction", "send"}, {"kind", name}}));
    received_.emplace(kind, registry.AddCounter("lynx_control_messages_total", help,
                                                {{"direction", "recv"}, {"kind", name}}));
  }
  for (const auto& [drop, name] : kDrops) {
    dropped_.emplace(
        drop, registry.AddCounter("lynx_control_messages_dropped_total",
                                  "Control messages that were not delivered.", {{"reason", name}}));
  }
}

void ChannelMetrics::OnSent(const Envelope& envelope) {
  sent_.at(envelope.body_case()).Increment();
}
void ChannelMetrics::OnReceived(const Envelope& envelope) {
  received_.at(envelope.body_case()).Increment();
}
void ChannelMetrics::OnDropped(Drop drop) { dropped_.at(drop).Increment(); }

}  // namespace lynx::rpc
