#pragma once

#include <functional>
#include <memory>

#include "common/concurrency/event_loop.h"
#include "common/kv/kv_arena.h"
#include "common/node/rank_channel.h"
#include "common/telemetry/metrics.h"
#include "common/transfer/handshake.h"
#include "common/transfer/transfer_engine.h"

namespace lynx::node {

// What a rank other than 0 does besides its steps. On the rank's loop, as is its destruction unless
// the loop has stopped.
class RankWorker {
 public:
  virtual ~RankWorker() = default;
  virtual void OnMessage(const proto::RankMessage& message) = 0;
};

// All that it refers to outlives the worker.
struct RankWorkerParts {
  transfer::NodeIdentity identity;
  kv::KvArena& kv;
  std::unique_ptr<transfer::TransferEngine> engine;  // Not started.
  // Of a decode node, which `engine` takes KV for: what sequences that leave it are sent by.
  std::unique_ptr<transfer::TransferEngine> send_engine = nullptr;
  EventLoop& loop;
  telemetry::Registry& registry;
  RankChannel& rank0;
};
using MakeRankWorker = std::function<std::unique_ptr<RankWorker>(RankWorkerParts)>;

}  // namespace lynx::node
