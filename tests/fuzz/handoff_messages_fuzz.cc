// Any messages in any order at both ends of a hand-off, from a peer that may have shaken hands:
// `decode` lines go to a decode node with grants, `prefill` lines to a prefill node that hands
// over. A line's `version` says how long its payload is, in blocks, and is set right then. Of what
// a line cannot know, 1 stands for the right checksum and 1 and 2 for the ids of the grants that
// live. In the end nothing is held for anybody.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/transfer/checksum.h"
#include "common/transfer/handshake.h"
#include "common/transfer/loopback_engine.h"
#include "tests/fuzz/message_script.h"
#include "tests/support/handoff_nodes.h"

namespace {

using lynx::Incarnation;
using lynx::testing::DecodeNode;
using lynx::testing::PrefillNode;
using lynx::testing::TestIdentity;
using lynx::transfer::PeerId;
using lynx::transfer::TransferEngine;

constexpr Incarnation kDecode = 0xd0;
constexpr Incarnation kPrefill = 0x9e;
constexpr int32_t kPrompt = 40;  // 3 blocks.
constexpr size_t kBlockBytes = 2048;

// The stranger: takes whatever it is sent.
class Stranger final : public TransferEngine::Receiver {
 public:
  Stranger(lynx::transfer::LoopbackFabric& fabric, const std::string& address,
           lynx::EventLoop& loop)
      : engine_(lynx::transfer::LoopbackEngine::Create(fabric, address, loop).value()) {
    engine_->Start(*this);
  }
  void Connect(const std::string& address) { peer_ = engine_->Connect(address).value(); }
  // Once there is somebody to send to.
  void Send(const lynx::proto::TransferHeader& header, std::vector<std::byte> payload) {
    if (peer_ == 0) return;
    auto bytes = std::make_shared<const std::vector<std::byte>>(std::move(payload));
    std::vector<std::span<const std::byte>> parts;
    if (!bytes->empty()) parts.emplace_back(*bytes);
    engine_->Send(peer_, header.SerializeAsString(), std::move(parts),
                  [bytes](const absl::Status&) {});
  }

 private:
  class Memory final : public lynx::transfer::Landing {
   public:
    explicit Memory(std::vector<std::byte> bytes) : Landing(bytes), bytes_(std::move(bytes)) {}

   private:
    const std::vector<std::byte> bytes_;
  };
  std::unique_ptr<lynx::transfer::Landing> OnMessage(PeerId peer, std::span<const std::byte>,
                                                     size_t payload_bytes) override {
    peer_ = peer;
    return std::make_unique<Memory>(std::vector<std::byte>(payload_bytes));
  }
  void OnPayload(PeerId, std::span<const std::byte>,
                 std::unique_ptr<lynx::transfer::Landing>) override {}
  void OnPeerDown(PeerId peer, const absl::Status&) override {
    if (peer == peer_) peer_ = 0;
  }

  std::unique_ptr<TransferEngine> engine_;
  PeerId peer_ = 0;
};

// A script's message as one from `from` to `to`; returns its payload.
std::vector<std::byte> Complete(lynx::proto::TransferHeader& header, Incarnation from,
                                Incarnation to, const uint64_t (&grants)[2]) {
  std::vector<std::byte> payload = lynx::transfer::SelfTestPattern(from);
  payload.resize(std::min(payload.size(), header.version() * kBlockBytes));
  header.set_version(lynx::transfer::MakeHeader(from, to).version());
  if (header.sender() == 0) header.set_sender(from);
  if (header.receiver() == 0) header.set_receiver(to);
  const auto set_grant = [&](auto* body) {
    if (body->grant_id() == 1 || body->grant_id() == 2) {
      body->set_grant_id(grants[body->grant_id() - 1]);
    }
  };
  if (header.has_handshake_reply() && header.handshake_reply().pattern_checksum() == 1) {
    header.mutable_handshake_reply()->set_pattern_checksum(
        lynx::transfer::Checksum(lynx::transfer::SelfTestPattern(to)));
  }
  if (header.has_kv_push()) {
    lynx::proto::KvPush& push = *header.mutable_kv_push();
    set_grant(&push);
    for (int i = 0; i < push.checksums_size(); ++i) {
      const size_t begin = static_cast<size_t>(i) * kBlockBytes;
      if (push.checksums(i) != 1 || begin + kBlockBytes > payload.size()) continue;
      push.set_checksums(i,
                         lynx::transfer::Checksum(std::span(payload).subspan(begin, kBlockBytes)));
    }
  }
  if (header.has_commit()) {
    if (header.commit().body_checksum() == 1) {
      lynx::proto::CommitBody body;
      body.set_sequence(header.commit().grant_id());
      for (int32_t i = 0; i < kPrompt; ++i) body.add_prompt(i);
      body.mutable_first_token()->set_id(7);
      body.set_router(DecodeNode::kRouter);
      body.set_blocks(3);
      const std::string text = body.SerializeAsString();
      const auto bytes = std::as_bytes(std::span(text));
      payload.assign(bytes.begin(), bytes.end());
      header.mutable_commit()->set_body_checksum(lynx::transfer::Checksum(payload));
    }
    set_grant(header.mutable_commit());
  }
  if (header.has_commit_reply()) set_grant(header.mutable_commit_reply());
  if (header.has_abort()) set_grant(header.mutable_abort());
  if (header.has_open()) set_grant(header.mutable_open());
  return payload;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lynx::ManualClock clock;
  lynx::SimEventLoop loop(clock);
  lynx::transfer::LoopbackFabric fabric;
  auto engine = [&](const char* address) {
    return lynx::transfer::LoopbackEngine::Create(fabric, address, loop).value();
  };
  DecodeNode decode(TestIdentity(kDecode), engine("decode"), loop, 16);
  PrefillNode prefill(TestIdentity(kPrefill), engine("prefill"), loop, 64);
  Stranger as_prefill(fabric, "stranger-prefill", loop);
  Stranger as_decode(fabric, "stranger-decode", loop);
  as_prefill.Connect("decode");

  uint64_t granted[2] = {};
  const uint64_t handed[2] = {0x51, 0x52};
  for (uint64_t i = 0; i < 2; ++i) {
    const auto grant = decode.Reserve(1 + i, kPrompt);
    LYNX_CHECK(grant.ok());
    granted[i] = grant->grant_id();
    lynx::proto::GrantInfo foreign;
    foreign.set_grant_id(handed[i]);
    foreign.set_epoch(1);
    foreign.set_decode_incarnation(kDecode);
    foreign.set_transfer_address("stranger-decode");
    foreign.set_blocks(3);
    foreign.set_compatibility_hash(grant->compatibility_hash());
    prefill.Start(1 + i, kPrompt, foreign, absl::Seconds(20));
  }
  loop.RunDue();

  lynx::testing::RunScript<lynx::proto::TransferHeader>(
      std::string_view(reinterpret_cast<const char*>(data), size), 64,
      [&](int32_t ms) { loop.Advance(absl::Milliseconds(ms)); },
      [&](const std::string& to, lynx::proto::TransferHeader header) {
        if (to == "decode") {
          std::vector<std::byte> payload = Complete(header, kPrefill, kDecode, granted);
          as_prefill.Send(header, std::move(payload));
        } else if (to == "prefill") {
          std::vector<std::byte> payload = Complete(header, kDecode, kPrefill, handed);
          as_decode.Send(header, std::move(payload));
        }
        loop.RunDue();
      });

  loop.Advance(absl::Minutes(2));
  LYNX_CHECK(decode.receiver->grants() == 0);
  LYNX_CHECK(prefill.sender->handoffs() == 0);
  LYNX_CHECK(decode.receiver->staging_bytes() == 0);
  LYNX_CHECK(prefill.pool.free_blocks() == prefill.pool.capacity_blocks());
  int64_t adopted = 0;
  for (const auto& [sequence, one] : decode.adopted) adopted += one.lease.held_blocks();
  LYNX_CHECK(decode.pool.free_blocks() + adopted == decode.pool.capacity_blocks());
  LYNX_CHECK(decode.adopted.size() + decode.failed.size() == 2);
  return 0;
}
