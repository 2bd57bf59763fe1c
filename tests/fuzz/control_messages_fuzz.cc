// Any control messages in any order, amid a cluster that serves: a script's lines are sent as if
// by the processes themselves (`to-prefill` and `to-decode` by the router, `from-prefill` and
// `from-decode` by the nodes). Sender and receiver are the right ones unless a line names others;
// of what a line cannot know, 1, 2 and 3 stand for the sequences that clients wait for, and grant 1
// for the newest. Each client is told one end; then nothing is held, and the cluster answers as
// ever.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "tests/fuzz/message_script.h"
#include "tests/support/fake_model_runner.h"
#include "tests/support/sim_cluster.h"

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using lynx::testing::FakeModelRunner;
using lynx::testing::RecordingSink;
using lynx::testing::SimCluster;

constexpr lynx::Incarnation kRouter = 1;
constexpr lynx::Incarnation kPrefill = 101;
constexpr lynx::Incarnation kDecode = 102;
constexpr size_t kClients = 3;
constexpr FakeModelRunner::Options kModel = {.layers = 2, .kv_blocks = 24, .chained = true};

// What the messages under way have told so far.
struct Overheard {
  std::vector<uint64_t> sequences;
  lynx::proto::GrantInfo grant;
};

// One end of the control plane that can be made to say anything.
class Puppet final : public lynx::rpc::Channel {
 public:
  Puppet(std::unique_ptr<lynx::rpc::Channel> channel, Overheard& overheard)
      : channel_(std::move(channel)), overheard_(overheard) {}

  // `peer`: of those that it has heard or connected to, in order.
  void Say(size_t peer, lynx::proto::Envelope envelope) {
    if (peer < peers_.size()) channel_->Send(peers_[peer], std::move(envelope)).IgnoreError();
  }

  void Start(Handler& handler) override {
    listener_ = std::make_unique<Listener>(*this, handler);
    channel_->Start(*listener_);
  }
  absl::StatusOr<lynx::rpc::PeerId> Connect(const std::string& endpoint) override {
    auto peer = channel_->Connect(endpoint);
    if (peer.ok()) peers_.push_back(*peer);
    return peer;
  }
  void Disconnect(lynx::rpc::PeerId peer) override {
    std::erase(peers_, peer);
    channel_->Disconnect(peer);
  }
  absl::Status Send(lynx::rpc::PeerId peer, lynx::proto::Envelope envelope) override {
    if (envelope.has_grant()) overheard_.grant = envelope.grant().grant();
    return channel_->Send(peer, std::move(envelope));
  }

 private:
  class Listener final : public Handler {
   public:
    Listener(Puppet& puppet, Handler& handler) : puppet_(puppet), handler_(handler) {}
    void OnMessage(lynx::rpc::PeerId peer, lynx::proto::Envelope envelope) override {
      if (std::ranges::find(puppet_.peers_, peer) == puppet_.peers_.end()) {
        puppet_.peers_.push_back(peer);
      }
      handler_.OnMessage(peer, std::move(envelope));
    }
    void OnDisconnected(lynx::rpc::PeerId peer) override { handler_.OnDisconnected(peer); }

   private:
    Puppet& puppet_;
    Handler& handler_;
  };

  std::unique_ptr<lynx::rpc::Channel> channel_;
  Overheard& overheard_;
  std::unique_ptr<Listener> listener_;
  std::vector<lynx::rpc::PeerId> peers_;
};

void Complete(Message& message, const Overheard& overheard) {
  const auto known = [&](uint64_t id) {
    return id >= 1 && id <= overheard.sequences.size() ? overheard.sequences[id - 1] : id;
  };
  if (message.GetDescriptor() == lynx::proto::GrantInfo::descriptor()) {
    auto& grant = static_cast<lynx::proto::GrantInfo&>(message);
    if (grant.grant_id() == 1) grant = overheard.grant;
  }
  std::vector<const FieldDescriptor*> fields;
  const auto& reflection = *message.GetReflection();
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->name() == "sequence") {
      reflection.SetUInt64(&message, field, known(reflection.GetUInt64(message, field)));
    } else if (field->name() == "sequences") {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        reflection.SetRepeatedUInt64(&message, field, i,
                                     known(reflection.GetRepeatedUInt64(message, field, i)));
      }
    } else if (field->message_type() != nullptr && field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        Complete(*reflection.MutableRepeatedMessage(&message, field, i), overheard);
      }
    } else if (field->message_type() != nullptr) {
      Complete(*reflection.MutableMessage(&message, field), overheard);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Overheard overheard;
  Puppet* router = nullptr;
  Puppet* prefill = nullptr;
  Puppet* decode = nullptr;
  SimCluster::Options options;
  options.kv_blocks = kModel.kv_blocks;
  options.prompt_rows = 16;
  options.make_runner = [] { return std::make_unique<FakeModelRunner>(kModel); };
  options.wrap_channel = [&](const std::string& name, lynx::EventLoop&,
                             std::unique_ptr<lynx::rpc::Channel> channel) {
    auto puppet = std::make_unique<Puppet>(std::move(channel), overheard);
    (name == "router" ? router : name == "prefill-0" ? prefill : decode) = puppet.get();
    return puppet;
  };
  SimCluster cluster(options);

  std::vector<lynx::TokenId> prompt(40);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<lynx::TokenId>(i * 7 % 97);
  const int32_t lengths[kClients] = {4, 12, 60};
  RecordingSink clients[kClients];
  for (size_t i = 0; i < kClients; ++i) {
    prompt.resize(40 - 13 * i);
    overheard.sequences.push_back(
        cluster.Submit(prompt, lynx::testing::PlainSampling(lengths[i]), clients[i]));
  }
  cluster.Run(absl::Milliseconds(3));

  bool replaced = false;  // Another life was heard at a node's address: that node is out for good.
  lynx::testing::RunScript<lynx::proto::Envelope>(
      std::string_view(reinterpret_cast<const char*>(data), size), 64,
      [&](int32_t ms) { cluster.Run(absl::Milliseconds(ms)); },
      [&](const std::string& way, lynx::proto::Envelope envelope) {
        const bool of_prefill = way.ends_with("prefill");
        const bool to_node = way.starts_with("to-");
        const lynx::Incarnation node = of_prefill ? kPrefill : kDecode;
        Complete(envelope, overheard);
        if (envelope.sender() == 0) envelope.set_sender(to_node ? kRouter : node);
        if (envelope.receiver() == 0) envelope.set_receiver(to_node ? node : kRouter);
        replaced |= !to_node && envelope.sender() != node;
        if (to_node) {
          router->Say(of_prefill ? 0 : 1, std::move(envelope));
        } else {
          (of_prefill ? prefill : decode)->Say(0, std::move(envelope));
        }
        cluster.Run(absl::Milliseconds(1));
      });

  LYNX_CHECK_MSG(cluster.RunUntil([&] {
    return std::ranges::all_of(clients, [](const RecordingSink& client) { return client.ended; });
  }),
                 "a client waits for ever");
  LYNX_CHECK_MSG(cluster.RunUntil([&] { return cluster.Idle(); }), "something is held");
  for (const char* name : {"prefill-0", "decode-0"}) {
    if (!replaced) break;
    cluster.Kill(name);
    cluster.Start(name);
  }
  cluster.Run(absl::Seconds(20));  // A node may be deaf for its timeout of routers.
  LYNX_CHECK_MSG(cluster.RunUntil([&] { return cluster.service().View().ready; }),
                 "a node stays away");
  RecordingSink after;
  cluster.Submit(prompt, lynx::testing::PlainSampling(8), after);
  LYNX_CHECK_MSG(cluster.RunUntil([&] { return after.ended; }), "a client waits for ever");
  LYNX_CHECK_MSG(after.end.status.ok(), after.end.status.ToString());
  LYNX_CHECK_MSG(after.ids() == FakeModelRunner::GreedyAnswer(kModel, prompt, 8), "a wrong answer");
  LYNX_CHECK_MSG(cluster.RunUntil([&] { return cluster.Idle(); }), "something is held");
  return 0;
}
