#include "common/node/node_memory.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/config/flag_set.h"

namespace lynx::node {
namespace {

constexpr int64_t kDefaultKvBytes = int64_t{1} << 30;
constexpr int64_t kMostBlocks = 1 << 24;

std::string Gb(int64_t bytes) { return absl::StrFormat("%.2f", static_cast<double>(bytes) / 1e9); }

// So that it can be given as it stands.
std::string WholeMib(int64_t bytes) {
  constexpr int64_t kMib = 1 << 20;
  return config::FormatBytes((bytes + kMib - 1) / kMib * kMib);
}

int64_t BlocksNeeded(const kv::KvLayout& layout, int64_t tokens, int32_t step_rows) {
  return layout.groups.MostBlocks(tokens, step_rows) + layout.groups.count();
}

// What fits into --kv-memory of `given` bytes.
absl::StatusOr<int32_t> BlocksThatFit(const kv::KvLayout& layout, int32_t context,
                                      int32_t step_rows, int64_t given) {
  const auto needed = [&](int64_t tokens) { return BlocksNeeded(layout, tokens, step_rows); };
  const int64_t fit = std::min(given / layout.BlockBytes(), kMostBlocks);
  if (fit >= needed(context)) return static_cast<int32_t>(fit);
  int32_t good = 0;  // Blocks of the longest context that fits.
  for (int32_t bad = static_cast<int32_t>(kv::BlocksFor(context)); good + 1 < bad;) {
    const int32_t middle = good + (bad - good) / 2;
    (needed(int64_t{middle} * kv::kBlockTokens) <= fit ? good : bad) = middle;
  }
  std::string text =
      absl::StrCat("--kv-memory ", config::FormatBytes(given), " is less than one context of ",
                   context, " tokens needs, ", WholeMib(needed(context) * layout.BlockBytes()),
                   ": give so much, or lower --max-context-tokens");
  if (good > 0) absl::StrAppend(&text, "; ", good * kv::kBlockTokens, " would fit");
  return absl::InvalidArgumentError(text);
}

}  // namespace

absl::StatusOr<int32_t> KvBlocks(const NodeConfig& config, const kv::KvLayout& layout,
                                 int32_t context, int32_t step_rows) {
  if (config.kv_blocks > 0) return config.kv_blocks;
  return BlocksThatFit(layout, context, step_rows,
                       config.kv_memory_bytes > 0
                           ? config.kv_memory_bytes
                           : std::max(kDefaultKvBytes, BlocksNeeded(layout, context, step_rows) *
                                                           layout.BlockBytes()));
}

absl::StatusOr<int32_t> DeviceKvBlocks(const NodeConfig& config, const kv::KvLayout& layout,
                                       int32_t context, int32_t step_rows,
                                       const model::DeviceRoom& room) {
  const bool rest = config.kv_blocks == 0 && config.kv_memory_bytes == 0;
  int32_t blocks = config.kv_blocks;
  if (blocks == 0 && !rest) {
    LYNX_ASSIGN_OR_RETURN(blocks,
                          BlocksThatFit(layout, context, step_rows, config.kv_memory_bytes));
  }
  const int64_t needed = rest ? BlocksNeeded(layout, context, step_rows) : blocks;
  const int64_t fit = std::min(room.left() / layout.BlockBytes(), kMostBlocks);
  if (needed <= fit) return static_cast<int32_t>(rest ? fit : needed);
  std::string text = absl::StrCat(
      "of the GPU's memory ", Gb(room.free), " GB are free; needed are weights ",
      Gb(room.need.weights), ", buffers of a step ", Gb(room.need.steps), ", KV cache ",
      Gb(needed * layout.BlockBytes()), rest ? absl::StrCat(" for one context of ", context) : "",
      ", reserve ", Gb(room.reserve));
  if (room.left() > 0) {
    absl::StrAppend(&text, ": lower --max-context-tokens",
                    rest ? "" : ", --kv-memory or --kv-blocks", ", or --step-rows");
  }
  return absl::ResourceExhaustedError(text);
}

absl::Status CheckNodeMemory(const model::MemoryNeed& need, int64_t available) {
  if (need.total() <= available) return absl::OkStatus();
  std::string text =
      absl::StrCat(Gb(need.total()), " GB of memory are needed (weights ", Gb(need.weights),
                   ", KV cache ", Gb(need.kv), ", buffers of a step ", Gb(need.steps),
                   "), this process may take ", Gb(available), ": give it more");
  if (need.weights <= available) {
    absl::StrAppend(&text, ", or lower --kv-memory and --max-context-tokens, or --step-rows");
  }
  return absl::ResourceExhaustedError(text);
}

}  // namespace lynx::node
