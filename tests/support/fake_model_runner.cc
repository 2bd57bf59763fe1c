#include "tests/support/fake_model_runner.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mix.h"
#include "common/base/status_macros.h"

namespace lynx::testing {
namespace {

kv::KvLayout Layout(const FakeModelRunner::Options& options) {
  kv::KvLayout layout{.layers = options.layers, .kv_heads = 1, .head_dim = 2, .dtype = DType::kF32};
  if (!options.reaches.empty()) layout.groups = kv::KvGroups(options.reaches);
  return layout;
}

// The KV of one row in one layer.
uint64_t RowKey(TokenId token, int32_t position, int32_t layer) {
  return SplitMix(SplitMix(static_cast<uint64_t>(token)) +
                  SplitMix(static_cast<uint64_t>(position) << 8 | static_cast<uint64_t>(layer)));
}

float Logit(uint64_t context, int32_t token) {
  const uint64_t bits = SplitMix(context + static_cast<uint64_t>(token));
  return static_cast<float>(bits >> 40) * 0x1p-21f - 4.0f;  // [-4, 4)
}

// K of one token in one layer: 8 bytes, a hash.
std::byte* Slot(kv::KvArena& arena, const model::SequenceRows& rows, int32_t layer,
                int32_t position) {
  const kv::KvGroups& groups = arena.layout().groups;
  const size_t table = rows.blocks.size() / static_cast<size_t>(groups.count());
  const kv::BlockId block = rows.blocks[static_cast<size_t>(groups.group_of(layer)) * table +
                                        static_cast<size_t>(position / kv::kBlockTokens)];
  LYNX_CHECK_MSG(block >= 0 && block < arena.blocks(),
                 absl::StrCat("layer ", layer, " has no block for position ", position));
  return arena.BlockLayer(layer, block) + (position % kv::kBlockTokens) * sizeof(uint64_t);
}

}  // namespace

FakeModelRunner::FakeModelRunner(const Options& options)
    : options_(options), numeric_class_(absl::StrCat("fake-", options.numeric_class)) {
  auto arena = kv::KvArena::Create(Layout(options), options.kv_blocks);
  LYNX_CHECK_MSG(arena.ok(), arena.status().ToString());
  arena_ = *std::move(arena);
  const kv::KvLayout& layout = arena_->layout();
  spec_.model_type = "fake";
  spec_.vocab_size = options.vocab_size;
  spec_.layers = layout.layers;
  spec_.query_heads = layout.kv_heads;
  spec_.kv_heads = layout.kv_heads;
  spec_.head_dim = layout.head_dim;
  spec_.max_positions =
      options.max_positions > 0 ? options.max_positions : options.kv_blocks * kv::kBlockTokens;
  for (const kv::Reach& reach : options.reaches) {
    spec_.attention.push_back({.reach = reach});
  }
  spec_.feed_forward.assign(static_cast<size_t>(layout.layers), model::FeedForwardKind::kDense);
  stats_.plans.assign(static_cast<size_t>(options.layers), {});
}

absl::Status FakeModelRunner::Check(std::span<const model::SequenceRows> batch) const {
  int64_t rows = 0;
  int64_t logits_rows = 0;
  for (const model::SequenceRows& entry : batch) {
    const auto count = static_cast<int64_t>(entry.tokens.size());
    const bool in_vocabulary =
        std::all_of(entry.tokens.begin(), entry.tokens.end(),
                    [&](TokenId token) { return token >= 0 && token < options_.vocab_size; });
    const auto tables = static_cast<size_t>(arena_->layout().groups.count());
    const auto held = static_cast<int64_t>(entry.blocks.size() / tables) * kv::kBlockTokens;
    if (count == 0 || entry.start < 0 || entry.start + count > held || !in_vocabulary ||
        entry.logits_rows < 0 || entry.logits_rows > count) {
      return absl::InvalidArgumentError("a sequence breaks a bound of SequenceRows");
    }
    rows += count;
    logits_rows += entry.logits_rows;
  }
  if (rows == 0 || rows > options_.max_step_rows || logits_rows > options_.max_step_logits) {
    return absl::InvalidArgumentError(absl::StrCat(rows, " rows, ", logits_rows, " logits rows"));
  }
  return absl::OkStatus();
}

uint64_t FakeModelRunner::Remapping(std::span<const model::SequenceRows> batch) const {
  uint64_t all = 0;
  for (const model::SequenceRows& rows : batch) {
    if (!rows.decode) return 0;
    all += SplitMix(static_cast<uint64_t>(rows.tokens[0]));
  }
  return remaps_ && batch.size() > 1 ? SplitMix(all) : 0;
}

absl::Status FakeModelRunner::Step(std::span<const model::SequenceRows> all,
                                   model::StepObserver* observer) {
  LYNX_RETURN_IF_ERROR(Check(all));
  std::vector<model::SequenceRows> batch(all.begin(), all.end());
  LYNX_RETURN_IF_ERROR(std::exchange(next_status_, absl::OkStatus()));
  const uint64_t remapping = Remapping(batch);
  const auto lossy = [&](const model::SequenceRows& rows) {
    return remapping != 0 && rows.policy != nullptr && rows.policy->lossy();
  };
  stats_.decode_rows = stats_.prefill_rows = 0;
  for (const model::SequenceRows& rows : batch) {
    (rows.decode ? stats_.decode_rows : stats_.prefill_rows) +=
        static_cast<int32_t>(rows.tokens.size());
  }
  for (moe::PlanStats& plan : stats_.plans) {
    const bool applied = std::any_of(batch.begin(), batch.end(), lossy);
    plan = {.experts_exact = 8, .experts = applied ? 4 : 8};
    plan.bypass = applied ? moe::Bypass::kNone : moe::Bypass::kPolicyOff;
    plan.kept_mass_mean = applied ? 0.75f : 1.0f;
  }
  for (int32_t layer = 0; layer < options_.layers; ++layer) {
    for (const model::SequenceRows& rows : batch) {
      const uint64_t added =
          ClassKey(rows) +
          (lossy(rows) ? SplitMix(remapping + static_cast<uint64_t>(rows.policy->k0)) : 0);
      for (size_t i = 0; i < rows.tokens.size(); ++i) {
        const int32_t position = rows.start + static_cast<int32_t>(i);
        uint64_t key = added + RowKey(rows.tokens[i], position, layer);
        if (options_.chained && position > 0) {
          uint64_t before = 0;
          std::memcpy(&before, Slot(*arena_, rows, layer, position - 1), sizeof(before));
          key = SplitMix(key ^ before);
        }
        std::memcpy(Slot(*arena_, rows, layer, position), &key, sizeof(key));
      }
    }
    if (observer != nullptr && !observer->OnLayerDone(layer)) {
      return absl::CancelledError("the observer abandoned the step");
    }
    if (observer == nullptr || layer + 1 == options_.layers) continue;
    const std::span<const size_t> leaving = observer->Leaving();
    for (auto entry = leaving.rbegin(); entry != leaving.rend(); ++entry) {
      batch.erase(batch.begin() + static_cast<ptrdiff_t>(*entry));
    }
  }
  logits_.clear();
  for (const model::SequenceRows& rows : batch) {
    const int32_t end = rows.start + static_cast<int32_t>(rows.tokens.size());
    for (int32_t p = end - rows.logits_rows; p < end; ++p) {
      const uint64_t context = Context(rows, p);
      for (int32_t v = 0; v < options_.vocab_size; ++v) logits_.push_back(Logit(context, v));
      if (rows.tokens[static_cast<size_t>(p - rows.start)] == poisoned_token_) {
        logits_.back() = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
  return absl::OkStatus();
}

uint64_t FakeModelRunner::ClassKey(const model::SequenceRows& rows) const {
  const int32_t its =
      rows.decode ? options_.decode_class.value_or(options_.numeric_class) : options_.numeric_class;
  return its == 0 ? 0 : SplitMix(static_cast<uint64_t>(its));
}

uint64_t FakeModelRunner::Context(const model::SequenceRows& rows, int32_t position) {
  uint64_t context = 0;
  for (int32_t layer = 0; layer < options_.layers; ++layer) {
    const kv::KvGroups& groups = arena_->layout().groups;
    const kv::Reach& reach = groups.reach(groups.group_of(layer));
    for (int32_t p = options_.chained ? position : reach.FirstFor(position); p <= position; ++p) {
      uint64_t key = 0;
      std::memcpy(&key, Slot(*arena_, rows, layer, p), sizeof(key));
      context = SplitMix(context ^ key);
    }
  }
  return context;
}

std::vector<TokenId> FakeModelRunner::GreedyAnswer(const Options& options,
                                                   std::span<const TokenId> prompt,
                                                   int32_t tokens) {
  LYNX_CHECK(options.chained);
  std::vector<uint64_t> keys(static_cast<size_t>(options.layers));
  int32_t position = 0;
  uint64_t context = 0;
  const auto read = [&](TokenId token) {
    context = 0;
    for (int32_t layer = 0; layer < options.layers; ++layer) {
      uint64_t& key = keys[static_cast<size_t>(layer)];
      const uint64_t own = RowKey(token, position, layer);
      key = position == 0 ? own : SplitMix(own ^ key);
      context = SplitMix(context ^ key);
    }
    ++position;
  };
  for (TokenId token : prompt) read(token);
  std::vector<TokenId> answer;
  while (static_cast<int32_t>(answer.size()) < tokens) {
    if (!answer.empty()) read(answer.back());
    TokenId best = 0;
    for (TokenId v = 1; v < options.vocab_size; ++v) {
      if (Logit(context, v) > Logit(context, best)) best = v;
    }
    answer.push_back(best);
  }
  return answer;
}

}  // namespace lynx::testing
