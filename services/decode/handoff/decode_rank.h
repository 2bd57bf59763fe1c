#pragma once

#include "common/handoff/rank_sender.h"
#include "common/node/rank_worker.h"
#include "services/decode/handoff/rank_receiver.h"

namespace lynx::decode {

// What a rank of a decode node other than 0 does beside its steps: takes its heads of the KV that
// comes, and sends those of the sequences that leave. On the loop.
class DecodeRank final : public node::RankWorker {
 public:
  struct Options {
    RankReceiver::Options receiver = {};
    handoff::KvSender::Options sender = {};
  };
  // Starts both engines.
  DecodeRank(node::RankWorkerParts parts, const Options& options);

  void OnMessage(const proto::RankMessage& message) override;

  const RankReceiver& receiver() const { return receiver_; }
  const handoff::RankSender& sender() const { return sender_; }

 private:
  handoff::RankSender sender_;
  RankReceiver receiver_;
};

}  // namespace lynx::decode
