#include "common/transfer/handshake.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/mix.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/proto/parse.h"
#include "common/rpc/channel.h"

namespace lynx::transfer {
namespace {

constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxReplyMessageBytes = 1024;

}  // namespace

std::vector<std::byte> SelfTestPattern(Incarnation sender) {
  std::vector<std::byte> pattern(kPatternBytes);
  uint64_t state = sender;
  for (size_t i = 0; i < pattern.size(); i += sizeof(uint64_t)) {
    // Every byte differs from sender to sender and from place to place.
    const uint64_t z = SplitMix(state);
    state += kSplitMixStep;
    std::memcpy(pattern.data() + i, &z, sizeof(z));
  }
  return pattern;
}

proto::TransferHeader MakeHeader(Incarnation sender, Incarnation receiver) {
  proto::TransferHeader header;
  header.set_version(rpc::kProtocolVersion);
  header.set_sender(sender);
  header.set_receiver(receiver);
  return header;
}

absl::StatusOr<proto::TransferHeader> ParseHeader(std::span<const std::byte> bytes) {
  proto::TransferHeader header;
  if (!proto::ParseMessage(bytes, header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a malformed transfer header of ", bytes.size(), " bytes"));
  }
  return header;
}

proto::Handshake MakeHandshake(const NodeIdentity& identity) {
  proto::Handshake handshake;
  handshake.set_compatibility_hash(identity.compatibility_hash);
  handshake.set_numeric_class(identity.numeric_class);
  *handshake.mutable_layout() = identity.layout;
  handshake.set_by_rank(true);
  return handshake;
}

absl::Status CheckCompatibility(const std::string& sender_hash, const std::string& receiver_hash) {
  if (sender_hash == receiver_hash) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "compatibility hash differs: the sender has ", sender_hash.substr(0, kMaxNameBytes),
      ", the receiver has ", receiver_hash.substr(0, kMaxNameBytes)));
}

absl::StatusOr<CopyPlan> CheckHandshake(const NodeIdentity& self,
                                        const proto::TransferHeader& header) {
  if (header.version() != rpc::kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("protocol version differs: the sender has ",
                                                      header.version(), ", the receiver has ",
                                                      rpc::kProtocolVersion));
  }
  if (header.receiver() != self.incarnation) {
    return absl::UnavailableError(absl::StrCat("the handshake is for incarnation ",
                                               HexId(header.receiver()), ", this node is ",
                                               HexId(self.incarnation)));
  }
  LYNX_RETURN_IF_ERROR(
      CheckCompatibility(header.handshake().compatibility_hash(), self.compatibility_hash));
  const proto::LayoutDescriptor& layout = header.handshake().layout();
  if (self.layout.tp_size() > 1 && !header.handshake().by_rank()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the sender knows nothing of nodes of several ranks, the receiver has tp_size ",
        self.layout.tp_size()));
  }
  LYNX_ASSIGN_OR_RETURN(CopyPlan plan, PlanCopy(layout, self.layout));
  if (plan.slices.empty()) {
    const auto rank = [](const proto::LayoutDescriptor& d) {
      return absl::StrCat("rank ", d.tp_rank(), " of ", d.tp_size(), " with heads ", d.head_begin(),
                          "..", d.head_end());
    };
    return absl::FailedPreconditionError(absl::StrCat(
        "no heads are shared: the sender is ", rank(layout), ", the receiver ", rank(self.layout)));
  }
  return plan;
}

std::string ReplyMessage(const absl::Status& status) {
  std::string text =
      ReplaceInvalidUtf8(std::string_view(status.message().data(), status.message().size()));
  if (text.size() > kMaxReplyMessageBytes) {
    size_t end = kMaxReplyMessageBytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text.resize(end);
  }
  return text;
}

absl::Status StatusFromReply(uint32_t code, const std::string& message) {
  // Codes that absl does not know, and an "OK" where a refusal is due, become kUnknown.
  constexpr uint32_t kLast = static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  const auto known =
      code == 0 || code > kLast ? absl::StatusCode::kUnknown : static_cast<absl::StatusCode>(code);
  return absl::Status(known, message);
}

}  // namespace lynx::transfer
