#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "common/node/rank_worker.h"
#include "services/prefill/handoff/kv_sender.h"

namespace lynx::prefill {

// Sends this rank's heads of the KV that a prefill node hands over, on each rank but 0, whose
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

}  // namespace lynx::prefill
