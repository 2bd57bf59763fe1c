#include "services/cli/bench/transfer/transfer_peer.h"

#include <signal.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/announcement.h"
#include "common/base/status_macros.h"
#include "common/concurrency/event_loop.h"
#include "common/config/flag_set.h"
#include "common/kv/block_pool.h"
#include "common/kv/block_table.h"
#include "common/kv/kv_arena.h"
#include "common/rpc/zmq_channel.h"
#include "common/telemetry/metrics.h"
#include "services/cli/bench/kv_noise.h"
#include "services/cli/bench/run_mode.h"
#include "services/cli/bench/transfer/transfer_setup.h"
#include "services/decode/handoff/kv_receiver.h"

namespace lynx::cli {
namespace {

// A prompt's blocks are free only after its sender has heard so and begun the next one.
constexpr int32_t kPrompts = 2;

struct PeerConfig {
  std::string mode;
  TransferSetup setup;
  std::string transport = "tcp";
  std::string announce;
};

class DecodeSide final : private rpc::Channel::Handler, private decode::KvReceiver::Handler {
 public:
  DecodeSide(const kv::KvLayout& layout, kv::BlockPool& pool, kv::KvArena& arena,
             std::unique_ptr<transfer::TransferEngine> engine, EventLoop& loop,
             rpc::Channel& channel, telemetry::Registry& registry)
      : identity_(MakeIdentity(layout)),
        pool_(pool),
        channel_(channel),
        receiver_(identity_, arena, std::move(engine), loop, registry, *this, {}) {
    channel_.Start(*this);
  }

 private:
  void OnMessage(rpc::PeerId from, proto::Envelope envelope) override {
    if (!envelope.has_reserve()) return;
    proto::Envelope answer;
    answer.set_sender(identity_.incarnation);
    answer.set_receiver(envelope.sender());
    const uint64_t sequence = envelope.reserve().sequence();
    absl::StatusOr<proto::GrantInfo> grant = Promise(envelope.reserve(), envelope.sender());
    if (grant.ok()) {
      answer.mutable_grant()->set_sequence(sequence);
      *answer.mutable_grant()->mutable_grant() = *std::move(grant);
    } else {
      answer.mutable_refused()->set_sequence(sequence);
      answer.mutable_refused()->set_reason(proto::Refused::REASON_BUSY);
      answer.mutable_refused()->set_message(std::string(grant.status().message()));
    }
    // Whoever waits for it has a deadline.
    (void)channel_.Send(from, std::move(answer));
  }

  absl::StatusOr<proto::GrantInfo> Promise(const proto::Reserve& reserve, Incarnation router) {
    LYNX_ASSIGN_OR_RETURN(
        kv::BlockTable lease,
        kv::BlockTable::Acquire(pool_, reserve.prompt_tokens(), reserve.prompt_tokens()));
    return receiver_.Reserve({.sequence = reserve.sequence(),
                              .router = router,
                              .prompt_tokens = reserve.prompt_tokens(),
                              .held_prefix = {},
                              .lease_time = absl::Milliseconds(reserve.lease_ms()),
                              .lease = std::move(lease)});
  }

  void OnAdopt(decode::Adopted) override {}
  // The prefill side has been told.
  void OnFailed(uint64_t, Incarnation, const absl::Status&) override {}

  const transfer::NodeIdentity identity_;
  kv::BlockPool& pool_;
  rpc::Channel& channel_;
  decode::KvReceiver receiver_;
};

absl::Status Serve(const PeerConfig& config) {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  LYNX_ASSIGN_OR_RETURN(const model::ModelSpec spec, SpecOf(config.setup));
  const kv::KvLayout layout = LayoutOf(config.setup, spec);
  const auto blocks =
      static_cast<int32_t>(kPrompts * layout.groups.count() * kv::BlocksFor(config.setup.tokens));
  kv::BlockPool pool(blocks, layout.groups);
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<kv::KvArena> arena,
                        kv::KvArena::Create(layout, blocks));
  // As in a node that has served a while, no page is new: the system's clearing of pages costs more
  // than the whole transfer.
  std::vector<kv::BlockId> all(static_cast<size_t>(blocks));
  std::iota(all.begin(), all.end(), 0);
  FillWithNoise(all, /*seed=*/1, *arena);
  telemetry::Registry registry;
  ThreadEventLoop loop;
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::ZmqChannel> channel,
                        rpc::ZmqChannel::Create({.bind = "127.0.0.1:0"}, loop, registry));
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<transfer::UcxEngine> engine,
                        transfer::UcxEngine::Create(EngineOptions(config.transport), loop));
  std::unique_ptr<DecodeSide> node;
  loop.RunAndWait([&] {
    node = std::make_unique<DecodeSide>(layout, pool, *arena, std::move(engine), loop, *channel,
                                        registry);
  });
  const absl::Status announced =
      WriteAnnouncement(config.announce, {.http = "", .control = channel->endpoint()});
  int signal = 0;
  if (announced.ok()) sigwait(&stop, &signal);
  loop.RunAndWait([&] { node.reset(); });
  loop.Stop();
  return announced;
}

}  // namespace

int RunTransferPeer(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  PeerConfig config;
  config::FlagSet flags("lynx bench transfer-peer", "The other end of lynx bench transfer.");
  flags.SetOutput(&out);
  flags.AddPositional("mode", &config.mode, "transfer-peer");
  AddSetupFlags(flags, config.setup);
  flags.AddChoice("transport", &config.transport, TransportNames(), "What KV goes over");
  flags.AddString("announce", &config.announce, "File to write the control address to");
  return RunMode(flags, argc, argv, err, [&] {
    LogWarningsOnly();
    return Serve(config);
  });
}

}  // namespace lynx::cli
