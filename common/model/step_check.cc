#include "common/model/step_check.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_layout.h"

namespace lynx::model {

absl::Status CheckStep(std::span<const SequenceRows> batch, const StepLimits& limits,
                       const kv::KvGroups& groups, std::span<int64_t> rows_of_replica,
                       std::span<int64_t> wanted_of_replica) {
  std::ranges::fill(rows_of_replica, 0);
  std::ranges::fill(wanted_of_replica, 0);
  for (size_t i = 0; i < batch.size(); ++i) {
    const SequenceRows& sequence = batch[i];
    auto wrong = [i](auto... what) {
      return absl::InvalidArgumentError(absl::StrCat("sequence ", i, " of the step: ", what...));
    };
    const auto count = static_cast<int64_t>(sequence.tokens.size());
    const auto table = sequence.blocks.size() / static_cast<size_t>(groups.count());
    const auto capacity = static_cast<int64_t>(table) * kv::kBlockTokens;
    if (sequence.replica < 0 || sequence.replica >= limits.replicas) {
      return wrong("replica ", sequence.replica, " is not in [0, ", limits.replicas, ")");
    }
    if (count == 0) return wrong("no tokens");
    if (sequence.start < 0) return wrong("start is ", sequence.start);
    const int64_t end = sequence.start + count;
    if (end > limits.positions) {
      return wrong("ends at position ", end, ", the model and its KV memory at ", limits.positions);
    }
    if (end > capacity) return wrong("ends at position ", end, ", its blocks hold ", capacity);
    if (sequence.logits_rows < 0 || sequence.logits_rows > count) {
      return wrong(sequence.logits_rows, " logits rows wanted of ", count);
    }
    for (TokenId token : sequence.tokens) {
      if (token < 0 || token >= limits.vocab_size) {
        return wrong("token ", token, " is not in [0, ", limits.vocab_size, ")");
      }
    }
    for (int32_t g = 0; g < groups.count(); ++g) {
      for (int64_t b = groups.FirstBlock(g, sequence.start); b < kv::BlocksFor(end); ++b) {
        const kv::BlockId block =
            sequence.blocks[static_cast<size_t>(g) * table + static_cast<size_t>(b)];
        if (block < 0 || block >= limits.kv_blocks) {
          return wrong("block ", block, " is not in [0, ", limits.kv_blocks, ")");
        }
      }
    }
    rows_of_replica[static_cast<size_t>(sequence.replica)] += count;
    wanted_of_replica[static_cast<size_t>(sequence.replica)] += sequence.logits_rows;
  }
  if (batch.empty()) return absl::InvalidArgumentError("the step has no rows");
  const std::string_view of = limits.replicas > 1 ? " of a replica" : "";
  if (const int64_t rows = std::ranges::max(rows_of_replica); rows > limits.rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("the step has ", rows, " rows", std::string(of), "; at most ", limits.rows));
  }
  if (const int64_t rows = std::ranges::max(wanted_of_replica); rows > limits.logits_rows) {
    return absl::InvalidArgumentError(absl::StrCat("the step wants ", rows, " rows of logits",
                                                   std::string(of), "; at most ",
                                                   limits.logits_rows));
  }
  return absl::OkStatus();
}

}  // namespace lynx::model
