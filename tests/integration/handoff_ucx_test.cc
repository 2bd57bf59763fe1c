// The hand-off over UCX and TCP, on real threads.
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "common/transfer/ucx_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/handoff_nodes.h"
#include "tests/support/status_matchers.h"

namespace lynx::testing {
namespace {

const kv::KvLayout kLayout = {
    .layers = 8, .kv_heads = 4, .head_dim = 64, .dtype = DType::kBf16};
constexpr int32_t kPrompt = 1000;  // 63 blocks, 8 MB in all.
// Room for every sequence of a test, should all of them be adopted before they are cancelled.
constexpr int32_t kDecodeBlocks = 20 * 63;

class HandoffUcxTest : public ::testing::Test {
 protected:
  ~HandoffUcxTest() override {
    prefill_loop_.RunAndWait([&] { prefill_.reset(); });
    StopDecode();
  }

  void StartDecode(Incarnation incarnation) {
    decode_loop_.RunAndWait([&] {
      decode_ = std::make_unique<DecodeNode>(TestIdentity(incarnation, kLayout),
                                             Engine(decode_loop_), decode_loop_, kDecodeBlocks,
                                             decode::KvReceiver::Options(), kLayout);
    });
  }
  void StopDecode() {
    decode_loop_.RunAndWait([&] { decode_.reset(); });
  }
  void StartPrefill() {
    prefill_loop_.RunAndWait([&] {
      prefill_ =
          std::make_unique<PrefillNode>(TestIdentity(0x9e, kLayout), Engine(prefill_loop_),
                                        prefill_loop_, 1024, handoff::KvSender::Options(), kLayout);
    });
  }
  static std::unique_ptr<transfer::TransferEngine> Engine(EventLoop& loop) {
    return transfer::UcxEngine::Create({.net_devices = "lo"}, loop).value();
  }

  void Start(uint64_t sequence) {
    proto::GrantInfo grant;
    decode_loop_.RunAndWait([&] {
      auto reserved = decode_->Reserve(sequence, kPrompt);
      EXPECT_THAT(reserved, IsOk());
      grant = reserved.value_or(proto::GrantInfo());
    });
    prefill_loop_.RunAndWait([&] { prefill_->Start(sequence, kPrompt, grant); });
  }
  absl::Status WaitForResult(uint64_t sequence) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < give_up) {
      std::optional<absl::Status> result;
      prefill_loop_.RunAndWait([&] { result = prefill_->jobs.at(sequence).result; });
      if (result.has_value()) return *result;
      std::this_thread::yield();
    }
    return absl::UnknownError("no result");
  }
  bool HoldsKv(uint64_t sequence) {
    bool holds = false;
    decode_loop_.RunAndWait(
        [&] { holds = decode_->adopted.contains(sequence) && decode_->HoldsKv(sequence); });
    return holds;
  }

  ThreadEventLoop decode_loop_;
  ThreadEventLoop prefill_loop_;
  std::unique_ptr<DecodeNode> decode_;
  std::unique_ptr<PrefillNode> prefill_;
};

TEST_F(HandoffUcxTest, SequencesArriveWhole) {
  StartDecode(1);
  StartPrefill();
  for (uint64_t i = 1; i <= 8; ++i) Start(i);
  for (uint64_t i = 1; i <= 8; ++i) {
    EXPECT_THAT(WaitForResult(i), IsOk());
    EXPECT_TRUE(HoldsKv(i));
  }
}

TEST_F(HandoffUcxTest, ADecodeNodeThatGoesInMidTransferIsUnavailableAndItsSuccessorIsReached) {
  StartPrefill();
  for (Incarnation incarnation = 1; incarnation <= 5; ++incarnation) {
    SCOPED_TRACE(incarnation);
    StartDecode(incarnation);
    Start(incarnation * 10);
    EXPECT_THAT(WaitForResult(incarnation * 10), IsOk());
    EXPECT_TRUE(HoldsKv(incarnation * 10));
    for (uint64_t i = 1; i <= 4; ++i) Start(incarnation * 10 + i);
    StopDecode();
    for (uint64_t i = 1; i <= 4; ++i) {
      const absl::Status result = WaitForResult(incarnation * 10 + i);
      EXPECT_TRUE(result.ok() || absl::IsUnavailable(result)) << result;
    }
    prefill_loop_.RunAndWait(
        [&] { EXPECT_EQ(prefill_->pool.free_blocks(), prefill_->pool.capacity_blocks()); });
  }
}

TEST_F(HandoffUcxTest, AbortsInMidTransferLeaveTheConnectionUsable) {
  StartDecode(1);
  StartPrefill();
  for (uint64_t i = 1; i <= 20; ++i) {
    Start(i);
    if (i % 2 == 0) continue;
    prefill_loop_.RunAndWait(
        [&] { prefill_->sender->Abort(prefill_->jobs.at(i).handoff, "client left"); });
    decode_loop_.RunAndWait([&] { decode_->receiver->Cancel(i); });
  }
  for (uint64_t i = 2; i <= 20; i += 2) {
    EXPECT_THAT(WaitForResult(i), IsOk());
    EXPECT_TRUE(HoldsKv(i));
  }
  for (uint64_t i = 1; i <= 20; i += 2) EXPECT_FALSE(WaitForResult(i).ok() && !HoldsKv(i));
  decode_loop_.RunAndWait([&] { EXPECT_EQ(decode_->receiver->grants(), 0u); });
}

}  // namespace
}  // namespace lynx::testing
