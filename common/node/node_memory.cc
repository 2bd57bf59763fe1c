#include "common/node/node_memory.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

}  // namespace

absl::StatusOr<int32_t> KvBlocks(const NodeConfig& config, const kv::KvLayout& layout,
                                 int32_t context, int32_t step_rows) {
  if (config.kv_blocks > 0) return config.kv_blocks;
  const auto needed = [&](int64_t tokens) {
    return layout.groups.MostBlocks(tokens, step_rows) + layout.groups.count();
  };
  const int64_t given = config.kv_memory_bytes > 0
                            ? config.kv_memory_bytes
                            : std::max(kDefaultKvBytes, needed(context) * layout.BlockBytes());
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
