#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/dtype.h"
#include "common/concurrency/event_loop.h"
#include "common/handoff/kv_sender.h"
#include "common/kv/kv_arena.h"
#include "common/telemetry/metrics.h"
#include "common/transfer/loopback_engine.h"
#include "services/decode/handoff/kv_receiver.h"
#include "tests/support/fake_remote_memory.h"
#include "tests/support/faulty_transfer_engine.h"

// The two sides of a hand-off with known bytes in the KV, for tests.
namespace lynx::testing {

inline const kv::KvLayout kTestLayout = {
    .layers = 3, .kv_heads = 2, .head_dim = 8, .dtype = DType::kF32};

transfer::NodeIdentity TestIdentity(Incarnation incarnation,
                                    const kv::KvLayout& layout = kTestLayout);

// The bytes that block `index` of `sequence` has in `layer` when it is sent in `epoch`: others in
// each, so that a mixture shows.
std::vector<std::byte> TestBlock(uint64_t sequence, int32_t layer, int32_t index, size_t bytes,
                                 uint32_t epoch = 1);

// A decode node without a model: keeps what it adopts.
class DecodeNode final : public decode::KvReceiver::Handler {
 public:
  DecodeNode(transfer::NodeIdentity identity, std::unique_ptr<transfer::TransferEngine> engine,
             EventLoop& loop, int32_t pool_blocks, const decode::KvReceiver::Options& options = {},
             const kv::KvLayout& layout = kTestLayout, bool remote_kv = false);

  // Leases the blocks of the prompt and reserves.
  absl::StatusOr<proto::GrantInfo> Reserve(uint64_t sequence, int32_t prompt_tokens,
                                           absl::Duration lease = absl::Seconds(30),
                                           std::vector<TokenId> held_prefix = {});

  void OnAdopt(decode::Adopted adopted_sequence) override;
  void OnFailed(uint64_t sequence, Incarnation router, const absl::Status& status) override;

  // Whether the adopted sequence's blocks hold what prefill filled in, from `first_block` on, all
  // of them in the same one of the first few epochs.
  bool HoldsKv(uint64_t sequence, int32_t first_block = 0) const;

  static constexpr Incarnation kRouter = 0x707;
  static constexpr uint32_t kMostEpochs = 12;

  kv::BlockPool pool;
  FakeRemoteMemory* remote_kv = nullptr;  // Of the arena.
  std::unique_ptr<kv::KvArena> arena;
  telemetry::Registry registry;
  std::map<uint64_t, decode::Adopted> adopted;  // Whoever takes one out frees its blocks.
  std::map<uint64_t, absl::Status> failed;
  FaultyTransferEngine* faults = nullptr;  // What decode sends.
  std::unique_ptr<decode::KvReceiver> receiver;

 private:
  bool HoldsKvOf(uint32_t epoch, uint64_t sequence, int32_t first_block) const;
};

// A prefill node without a model: fills blocks with TestBlock and hands them over.
class PrefillNode {
 public:
  PrefillNode(transfer::NodeIdentity identity, std::unique_ptr<transfer::TransferEngine> engine,
              EventLoop& loop, int32_t pool_blocks, const handoff::KvSender::Options& options = {},
              const kv::KvLayout& layout = kTestLayout, bool remote_kv = false);

  struct Job {
    handoff::KvSender::HandoffId handoff = 0;
    kv::BlockTable lease;  // Held until the result, as the contract asks.
    int32_t prompt_tokens = 0;
    uint32_t epoch = 0;
    std::optional<absl::Status> result;
    int results = 0;
  };

  // Computes the prompt's KV, pushes all of it and commits. On a refusal of Begin, the result.
  void Start(uint64_t sequence, int32_t prompt_tokens, const proto::GrantInfo& grant,
             absl::Duration deadline = absl::Seconds(60));
  // The steps of Start.
  absl::Status Begin(uint64_t sequence, int32_t prompt_tokens, const proto::GrantInfo& grant,
                     absl::Duration deadline = absl::Seconds(60));
  // From `first_block` on, or from what decode wants of the layer.
  absl::Status PushLayer(uint64_t sequence, int32_t layer, int32_t first_block);
  absl::Status Commit(uint64_t sequence, int32_t prompt_tokens);

  EventLoop& loop;
  kv::BlockPool pool;
  FakeRemoteMemory* remote_kv = nullptr;  // Of the arena.
  std::unique_ptr<kv::KvArena> arena;
  telemetry::Registry registry;
  std::map<uint64_t, Job> jobs;            // By sequence.
  FaultyTransferEngine* faults = nullptr;  // What prefill sends.
  std::unique_ptr<handoff::KvSender> sender;
};

}  // namespace lynx::testing
