#include "services/decode/handoff/decode_rank.h"

#include <utility>

namespace lynx::decode {
namespace {

node::RankWorkerParts SenderParts(node::RankWorkerParts& parts) {
  return {.identity = parts.identity,
          .kv = parts.kv,
          .engine = std::move(parts.send_engine),
          .loop = parts.loop,
          .registry = parts.registry,
          .rank0 = parts.rank0};
}

}  // namespace

DecodeRank::DecodeRank(node::RankWorkerParts parts, const Options& options)
    : sender_(SenderParts(parts), options.sender), receiver_(std::move(parts), options.receiver) {}

void DecodeRank::OnMessage(const proto::RankMessage& message) {
  switch (message.body_case()) {
    case proto::RankMessage::kBeginHandoff:
    case proto::RankMessage::kPushKv:
    case proto::RankMessage::kEndHandoff:
      sender_.OnMessage(message);
      return;
    default:
      receiver_.OnMessage(message);
  }
}

}  // namespace lynx::decode
