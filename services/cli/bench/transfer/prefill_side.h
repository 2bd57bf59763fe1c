#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/concurrency/event_loop.h"
#include "common/handoff/kv_sender.h"
#include "common/kv/block_table.h"
#include "common/kv/kv_arena.h"
#include "common/rpc/zmq_channel.h"
#include "common/telemetry/metrics.h"
#include "common/transfer/handshake.h"
#include "common/transfer/ucx_engine.h"

namespace lynx::cli {

// The prefill side of `lynx bench transfer`: reserves and hands prompts off as a prefill node does,
// one at a time. Made, called and destroyed by one thread, but for Push. After an error only to be
// destroyed, which ends what it had begun.
class PrefillSide {
 public:
  struct Options {
    transfer::UcxEngine::Options engine;
    handoff::KvSender::Options sender;
    std::string peer;  // Control address of the decode side.
  };

  // `arena` outlives it. Fails as UcxEngine::Create and ZmqChannel do.
  static absl::StatusOr<std::unique_ptr<PrefillSide>> Start(const Options& options,
                                                            kv::KvArena& arena);
  ~PrefillSide();
  PrefillSide(const PrefillSide&) = delete;
  PrefillSide& operator=(const PrefillSide&) = delete;

  // Has room reserved for a prompt and opens its hand-off. `blocks` outlives this object.
  absl::Status Open(int32_t prompt_tokens, const kv::BlockTable& blocks);
  // Sends those of one layer's blocks [first, past) that decode wants. Any thread; what goes wrong
  // is Commit's to say.
  void Push(int32_t layer, int32_t first, int32_t past);
  // All has been pushed: hands over and waits until decode has verified it. When this side knew.
  absl::StatusOr<absl::Time> Commit();

 private:
  class Grants;
  struct Handoff;
  explicit PrefillSide(kv::KvArena& arena);
  absl::StatusOr<proto::GrantInfo> Reserve(uint64_t sequence, int32_t prompt_tokens);

  const transfer::NodeIdentity identity_;
  telemetry::Registry registry_;
  kv::KvArena& arena_;
  ThreadEventLoop loop_;
  // Used on the loop alone.
  std::unique_ptr<rpc::ZmqChannel> channel_;
  std::unique_ptr<Grants> grants_;
  std::unique_ptr<handoff::KvSender> sender_;
  rpc::PeerId peer_ = 0;
  std::unique_ptr<Handoff> handoff_;
};

}  // namespace lynx::cli
