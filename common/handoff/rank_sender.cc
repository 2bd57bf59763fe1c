#include "common/handoff/rank_sender.h"

#include <span>
#include <utility>

#include "common/base/check.h"

namespace lynx::handoff {

RankSender::RankSender(node::RankWorkerParts parts, const KvSender::Options& options)
    : loop_(parts.loop),
      rank0_(parts.rank0),
      replica_(parts.identity.layout.replica()),
      sender_(std::move(parts.identity), parts.kv, std::move(parts.engine), loop_, parts.registry,
              options) {}

void RankSender::OnMessage(const proto::RankMessage& message) {
  if (message.replica() != replica_) return;
  switch (message.body_case()) {
    case proto::RankMessage::kBeginHandoff:
      Begin(message.begin_handoff());
      return;
    case proto::RankMessage::kPushKv: {
      const proto::PushKv& push = message.push_kv();
      auto it = handoffs_.find(push.handoff());
      if (it == handoffs_.end()) return;  // It has ended here; rank 0 has been told.
      const std::span<const kv::BlockId> blocks(push.blocks().data(),
                                                static_cast<size_t>(push.blocks_size()));
      const absl::Status pushed =
          sender_.Push(it->second, push.layer(), push.first_block(), blocks);
      if (absl::IsInvalidArgument(pushed)) sender_.Finish(it->second, pushed);
      return;
    }
    case proto::RankMessage::kEndHandoff: {
      const proto::EndHandoff& end = message.end_handoff();
      auto it = handoffs_.find(end.handoff());
      if (it == handoffs_.end()) return;
      sender_.Finish(it->second, end.status_code() == 0
                                     ? absl::OkStatus()
                                     : transfer::StatusFromReply(end.status_code(), end.message()));
      return;
    }
    default:
      LYNX_CHECK_MSG(false, "rank 0 of this node is of another role");
  }
}

void RankSender::Begin(const proto::BeginHandoff& begin) {
  const uint64_t id = begin.handoff();
  auto handoff = sender_.Begin(
      begin.grant(), loop_.Now() + absl::Microseconds(begin.deadline_us()),
      [this, id](const absl::Status& status) { TellEnd(id, status); }, replica_);
  if (handoff.ok()) {
    handoffs_[id] = *handoff;
  } else {
    TellEnd(id, handoff.status());
  }
}

void RankSender::TellEnd(uint64_t handoff, const absl::Status& status) {
  handoffs_.erase(handoff);
  proto::RankMessage message;
  proto::EndHandoff& ended = *message.mutable_handoff_ended();
  ended.set_handoff(handoff);
  ended.set_status_code(static_cast<uint32_t>(status.code()));
  ended.set_message(transfer::ReplyMessage(status));
  rank0_.Tell(message);
}

}  // namespace lynx::handoff
