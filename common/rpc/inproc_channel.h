#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/concurrency/event_loop.h"
#include "common/rpc/channel.h"
#include "common/telemetry/metrics.h"

namespace lynx::rpc {

namespace internal {
struct InProcCore;
}

// The network that InProcChannels of one process meet on. Outlives them; so does the loop of each
// channel. Thread-safe.
class InProcNetwork {
 private:
  friend class InProcChannel;
  std::shared_ptr<internal::InProcCore> Find(const std::string& name) LYNX_EXCLUDES(mu_);

  Mutex mu_;
  std::map<std::string, std::shared_ptr<internal::InProcCore>> bound_ LYNX_GUARDED_BY(mu_);
};

// A Channel within one process. Works on real threads and under a simulated clock.
class InProcChannel final : public Channel {
 public:
  struct Options {
    std::string bind;          // Name others connect to; empty: none.
    size_t max_queued = 4096;  // Messages under way to one peer.
    size_t max_message_bytes = size_t{16} << 20;
  };
  // AlreadyExists: the name is bound.
  static absl::StatusOr<std::unique_ptr<InProcChannel>> Create(InProcNetwork& network,
                                                               Options options, EventLoop& loop,
                                                               telemetry::Registry& registry);
  ~InProcChannel() override;

  void Start(Handler& handler) override;
  absl::StatusOr<PeerId> Connect(const std::string& endpoint) override;
  void Disconnect(PeerId peer) override;
  absl::Status Send(PeerId peer, proto::Envelope envelope) override;

 private:
  InProcChannel(InProcNetwork& network, Options options,
                std::shared_ptr<internal::InProcCore> core);

  InProcNetwork& network_;
  const Options options_;
  // Shared with the tasks under way on other loops.
  const std::shared_ptr<internal::InProcCore> core_;
};

}  // namespace lynx::rpc
