#include "tests/support/handoff_nodes.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "common/base/check.h"
#include "common/transfer/copy_plan.h"

namespace lynx::testing {
namespace {

std::unique_ptr<kv::KvArena> MakeArena(const kv::KvLayout& layout, int32_t blocks, bool remote,
                                       FakeRemoteMemory*& memory) {
  return (remote ? MakeRemoteArena(layout, blocks, &memory) : kv::KvArena::Create(layout, blocks))
      .value();
}

}  // namespace

transfer::NodeIdentity TestIdentity(Incarnation incarnation, const kv::KvLayout& layout) {
  return {incarnation, "model-a", "class-a",
          transfer::DescribeLayout(layout, layout.kv_heads, /*tp_size=*/1, /*tp_rank=*/0,
                                   /*head_begin=*/0)};
}

std::vector<std::byte> TestBlock(uint64_t sequence, int32_t layer, int32_t index, size_t bytes,
                                 uint32_t epoch) {
  std::mt19937_64 rng((uint64_t{epoch} << 40) + sequence * 1000003 +
                      static_cast<uint64_t>(layer) * 1009 + static_cast<uint64_t>(index));
  std::vector<std::byte> block(bytes);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = rng();
    std::memcpy(block.data() + i, &word, std::min<size_t>(8, bytes - i));
  }
  return block;
}

DecodeNode::DecodeNode(transfer::NodeIdentity identity,
                       std::unique_ptr<transfer::TransferEngine> engine, EventLoop& loop,
                       int32_t pool_blocks, const decode::KvReceiver::Options& options,
                       const kv::KvLayout& layout, bool remote)
    : pool(pool_blocks, layout.groups), arena(MakeArena(layout, pool_blocks, remote, remote_kv)) {
  auto faulty = std::make_unique<FaultyTransferEngine>(std::move(engine), loop);
  faults = faulty.get();
  receiver = std::make_unique<decode::KvReceiver>(std::move(identity), *arena, std::move(faulty),
                                                  loop, registry, *this, options);
}

absl::StatusOr<proto::GrantInfo> DecodeNode::Reserve(uint64_t sequence, int32_t prompt_tokens,
                                                     absl::Duration lease,
                                                     std::vector<TokenId> held_prefix) {
  if (auto grant = receiver->FindGrant(sequence)) return *grant;
  auto blocks = kv::BlockTable::Acquire(pool, prompt_tokens, prompt_tokens);
  if (!blocks.ok()) return blocks.status();
  return receiver->Reserve(
      {sequence, kRouter, prompt_tokens, std::move(held_prefix), lease, *std::move(blocks)});
}

void DecodeNode::OnAdopt(decode::Adopted adopted_sequence) {
  const uint64_t sequence = adopted_sequence.sequence;
  LYNX_CHECK(adopted.emplace(sequence, std::move(adopted_sequence)).second);
}

void DecodeNode::OnFailed(uint64_t sequence, Incarnation, const absl::Status& status) {
  LYNX_CHECK(failed.emplace(sequence, status).second);
}

bool DecodeNode::HoldsKv(uint64_t sequence, int32_t first_block) const {
  for (uint32_t epoch = 1; epoch <= kMostEpochs; ++epoch) {
    if (HoldsKvOf(epoch, sequence, first_block)) return true;
  }
  return false;
}

bool DecodeNode::HoldsKvOf(uint32_t epoch, uint64_t sequence, int32_t first_block) const {
  const decode::Adopted& one = adopted.at(sequence);
  const kv::KvGroups& groups = arena->layout().groups;
  for (int32_t layer = 0; layer < arena->layout().layers; ++layer) {
    const int32_t group = groups.group_of(layer);
    const auto blocks = one.lease.group(group);
    for (int32_t i = std::max(first_block, groups.FirstBlock(group, one.body.prompt_size()));
         i < one.lease.end_block(); ++i) {
      const auto held = ReadBlock(*arena, layer, blocks[static_cast<size_t>(i)]);
      if (!std::ranges::equal(held, TestBlock(sequence, layer, i, held.size(), epoch)))
        return false;
    }
  }
  return true;
}

PrefillNode::PrefillNode(transfer::NodeIdentity identity,
                         std::unique_ptr<transfer::TransferEngine> engine, EventLoop& l,
                         int32_t pool_blocks, const handoff::KvSender::Options& options,
                         const kv::KvLayout& layout, bool remote)
    : loop(l),
      pool(pool_blocks, layout.groups),
      arena(MakeArena(layout, pool_blocks, remote, remote_kv)) {
  auto faulty = std::make_unique<FaultyTransferEngine>(std::move(engine), loop);
  faults = faulty.get();
  sender = std::make_unique<handoff::KvSender>(std::move(identity), *arena, std::move(faulty), loop,
                                               registry, options);
}

absl::Status PrefillNode::Begin(uint64_t sequence, int32_t prompt_tokens,
                                const proto::GrantInfo& grant, absl::Duration deadline) {
  auto lease = kv::BlockTable::Acquire(pool, 0, prompt_tokens);
  LYNX_CHECK(lease.ok());
  auto handoff =
      sender->Begin(grant, loop.Now() + deadline, [this, sequence](const absl::Status& status) {
        Job& job = jobs.at(sequence);
        job.results += 1;
        job.result = status;
        // From here on the blocks may be anything: a late read of them must show.
        const std::vector<std::byte> spoilt(static_cast<size_t>(arena->layout().BlockLayerBytes()),
                                            std::byte{0xee});
        for (int32_t layer = 0; layer < arena->layout().layers; ++layer) {
          for (kv::BlockId block : job.lease.group(arena->layout().groups.group_of(layer))) {
            WriteBlock(*arena, layer, block, spoilt);
          }
        }
        job.lease.Reset();
      });
  if (!handoff.ok()) return handoff.status();
  Job& job = jobs[sequence] = {};
  job.handoff = *handoff;
  job.lease = *std::move(lease);
  job.prompt_tokens = prompt_tokens;
  job.epoch = grant.epoch();
  return absl::OkStatus();
}

absl::Status PrefillNode::PushLayer(uint64_t sequence, int32_t layer, int32_t first_block) {
  const Job& job = jobs.at(sequence);
  const kv::KvGroups& groups = arena->layout().groups;
  const int32_t group = groups.group_of(layer);
  const auto blocks = job.lease.group(group);
  first_block = std::max(first_block, groups.FirstBlock(group, job.prompt_tokens));
  if (first_block == job.lease.end_block()) return absl::OkStatus();
  for (int32_t i = first_block; i < static_cast<int32_t>(blocks.size()); ++i) {
    WriteBlock(*arena, layer, blocks[static_cast<size_t>(i)],
               TestBlock(sequence, layer, i, static_cast<size_t>(arena->layout().BlockLayerBytes()),
                         job.epoch));
  }
  return sender->Push(job.handoff, layer, first_block,
                      blocks.subspan(static_cast<size_t>(first_block)));
}

absl::Status PrefillNode::Commit(uint64_t sequence, int32_t prompt_tokens) {
  proto::CommitBody body;
  body.set_sequence(sequence);
  for (int32_t i = 0; i < prompt_tokens; ++i) body.add_prompt(i);
  body.mutable_first_token()->set_id(7);
  body.set_router(DecodeNode::kRouter);
  body.set_blocks(static_cast<int32_t>(kv::BlocksFor(prompt_tokens)));
  return sender->Commit(jobs.at(sequence).handoff, body);
}

void PrefillNode::Start(uint64_t sequence, int32_t prompt_tokens, const proto::GrantInfo& grant,
                        absl::Duration deadline) {
  absl::Status status = Begin(sequence, prompt_tokens, grant, deadline);
  const int32_t first_block = grant.held_prefix_tokens() / kv::kBlockTokens;
  for (int32_t layer = 0; status.ok() && layer < arena->layout().layers; ++layer) {
    status = PushLayer(sequence, layer, first_block);
  }
  if (status.ok()) status = Commit(sequence, prompt_tokens);
  if (!status.ok() && !jobs[sequence].result.has_value()) jobs[sequence].result = status;
}

}  // namespace lynx::testing
