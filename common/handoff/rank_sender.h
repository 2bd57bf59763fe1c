#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "common/handoff/kv_sender.h"
#include "common/node/rank_worker.h"

namespace lynx::handoff {

// Sends this rank's heads of the KV that a node hands over, on each rank but 0, whose
// KvSender says what to send and when a hand-off is over, and is told when nothing reads its blocks
// here any more. On the loop.
class RankSender final : public node::RankWorker {
 public:
  // Starts the engine.
  RankSender(node::RankWorkerParts parts, const KvSender::Options& options);

  void OnMessage(const proto::RankMessage& message) override;

  const KvSender& sender() const { return sender_; }

 private:
  void Begin(const proto::BeginHandoff& begin);
  void TellEnd(uint64_t handoff, const absl::Status& status);

  EventLoop& loop_;
  node::RankChannel& rank0_;
  const int32_t replica_;
  std::map<uint64_t, KvSender::HandoffId> handoffs_;  // By rank 0's ids.
  KvSender sender_;
};

}  // namespace lynx::handoff
