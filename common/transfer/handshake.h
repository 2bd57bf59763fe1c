#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/proto/transfer.pb.h"
#include "common/transfer/copy_plan.h"

// The first exchange on a connection, before any KV moves (docs/protocols/handoff.md), and the
// coding of the headers of all messages. Pure functions.
namespace lynx::transfer {

// What a node says of itself to its peers.
struct NodeIdentity {
  Incarnation incarnation = 0;
  std::string compatibility_hash;  // At most 256 bytes.
  std::string numeric_class;       // At most 256 bytes.
  proto::LayoutDescriptor layout;
};

// Bytes of the self-test pattern: long enough to take the path of KV payloads.
inline constexpr size_t kPatternBytes = 256 * 1024;

// The pattern that the node of this incarnation sends.
std::vector<std::byte> SelfTestPattern(Incarnation sender);

// A header addressed from `sender` to `receiver`, of the present protocol version.
proto::TransferHeader MakeHeader(Incarnation sender, Incarnation receiver);

// InvalidArgument: not a header, or nested too deep. Version and addressees are for the caller.
absl::StatusOr<proto::TransferHeader> ParseHeader(std::span<const std::byte> bytes);

// The handshake `identity` opens a connection with.
proto::Handshake MakeHandshake(const NodeIdentity& identity);

// Whether `self`, a receiver of KV, can take it from a peer that introduced itself by `header`.
// Returns what to do with each block.
//   FailedPrecondition  other version, model, or layout; the message names both values.
//   Unavailable         the handshake is for a former incarnation: look the node up again.
absl::StatusOr<CopyPlan> CheckHandshake(const NodeIdentity& self,
                                        const proto::TransferHeader& header);

// FailedPrecondition naming both values unless the hashes are equal.
absl::Status CheckCompatibility(const std::string& sender_hash, const std::string& receiver_hash);

// A message that can be put into a reply: bounded, valid UTF-8.
std::string ReplyMessage(const absl::Status& status);

// The status a reply carries.
absl::Status StatusFromReply(uint32_t code, const std::string& message);

}  // namespace lynx::transfer
