#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/concurrency/event_loop.h"
#include "common/rpc/channel.h"

namespace lynx::testing {

// What becomes of one control message. Delays of different length reorder.
struct ChannelFault {
  bool drop = false;
  int copies = 1;
  absl::Duration delay = absl::ZeroDuration();
};

// A Channel with faults on what it sends, for tests: wraps another channel and asks a script about
// each message.
class FaultyChannel final : public rpc::Channel {
 public:
  // `number` counts the messages from 0.
  using Script = std::function<ChannelFault(int number, const proto::Envelope& envelope)>;

  FaultyChannel(std::unique_ptr<rpc::Channel> channel, EventLoop& loop)
      : channel_(std::move(channel)), loop_(loop) {}

  void set_script(Script script) { script_ = std::move(script); }
  // May change what each message says.
  void set_rewrite(std::function<void(proto::Envelope& envelope)> rewrite) {
    rewrite_ = std::move(rewrite);
  }

  void Start(Handler& handler) override { channel_->Start(handler); }
  absl::StatusOr<rpc::PeerId> Connect(const std::string& endpoint) override {
    return channel_->Connect(endpoint);
  }
  void Disconnect(rpc::PeerId peer) override { channel_->Disconnect(peer); }

  absl::Status Send(rpc::PeerId peer, proto::Envelope envelope) override {
    const ChannelFault fault = script_ ? script_(number_, envelope) : ChannelFault();
    ++number_;
    if (rewrite_) rewrite_(envelope);
    if (fault.drop) return absl::OkStatus();
    absl::Status status;
    for (int i = 0; i < fault.copies; ++i) {
      if (fault.delay > absl::ZeroDuration()) {
        loop_.RunAfter(fault.delay, [this, alive = std::weak_ptr(alive_), peer, envelope] {
          if (!alive.expired()) channel_->Send(peer, envelope).IgnoreError();
        });
      } else {
        status = channel_->Send(peer, envelope);
      }
    }
    return status;
  }

 private:
  std::unique_ptr<rpc::Channel> channel_;
  EventLoop& loop_;
  Script script_;
  std::function<void(proto::Envelope&)> rewrite_;
  int number_ = 0;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lynx::testing
