#include "services/cli/bench/memory_need.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/cgroup.h"
#include "common/base/file.h"
#include "services/cli/bench/model_shape.h"

namespace lynx::cli {
namespace {

constexpr int64_t kWeightBytes = 2;
constexpr int64_t kMinReadBuffer = int64_t{64} << 20;
constexpr int64_t kReadBuffer = int64_t{2} << 30;
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Of one row: queries, keys and values, and the result, each in the latents' space, too, if a model
// has them.
int64_t AttentionElements(const model::ModelSpec& spec) {
  if (!spec.has_latents()) return int64_t{2} * spec.head_dim * (spec.query_heads + spec.kv_heads);
  const int64_t latent = spec.kv_lora_rank + spec.qk_rope_head_dim;
  return 2 * (spec.q_lora_rank + latent +
              spec.query_heads * (spec.head_dim + latent + spec.v_head_dim));
}

}  // namespace

MemoryNeed NeedOf(const model::ModelSpec& spec, const StepSizes& sizes) {
  // A row's hidden state, normed copy, what attention and its experts hold in between.
  const int64_t intermediate =
      std::max<int64_t>({spec.dense_intermediate_size, spec.shared_intermediate_size,
                         int64_t{spec.experts_per_token} * spec.expert_intermediate_size});
  const int64_t row =
      int64_t{4} * spec.hidden_size + AttentionElements(spec) + 2 * intermediate + spec.experts;
  return {.weights = MatrixParameters(spec) * kWeightBytes,
          .kv = model::KvLayoutOf(spec, sizes.kv_dtype).BlockBytes() * sizes.kv_blocks,
          .steps = static_cast<int64_t>(sizeof(float)) *
                   (sizes.rows * row + sizes.logits_rows * spec.vocab_size)};
}

absl::Status CheckFits(const MemoryNeed& need, const model::ModelSpec& spec, int64_t available) {
  if (need.total() <= available) return absl::OkStatus();
  std::string text = absl::StrFormat(
      "%.1f GB of memory are needed (weights of %d layers %.1f, KV cache %.1f, buffers of a step "
      "%.1f, read buffer %.1f), %.1f are available",
      static_cast<double>(need.total()) / 1e9, spec.layers, static_cast<double>(need.weights) / 1e9,
      static_cast<double>(need.kv) / 1e9, static_cast<double>(need.steps) / 1e9,
      static_cast<double>(need.read_buffer) / 1e9, static_cast<double>(available) / 1e9);
  const int64_t fixed =
      need.total() - need.kv - MatrixParameters(spec) * kWeightBytes +
      int64_t{spec.tied_embeddings ? 1 : 2} * spec.vocab_size * spec.hidden_size * kWeightBytes;
  const int64_t kv_layer = need.kv / spec.layers;
  int32_t layers = 0;
  int64_t used = fixed;
  while (layers < spec.layers) {
    used += LayerParameters(spec, layers) * kWeightBytes + kv_layer;
    if (used > available) break;
    ++layers;
  }
  if (layers > 0) absl::StrAppend(&text, "; --layers ", layers, " would fit");
  return absl::ResourceExhaustedError(text);
}

int64_t DefaultReadBuffer(int64_t available) {
  return std::clamp(available / 2, kMinReadBuffer, kReadBuffer);
}

int64_t AvailableOf(std::string_view meminfo) {
  constexpr std::string_view kKey = "MemAvailable:";
  const size_t at = meminfo.find(kKey);
  if (at == std::string_view::npos) return 0;
  std::string_view rest = meminfo.substr(at + kKey.size());
  rest = rest.substr(0, rest.find('\n'));
  const size_t unit = rest.find("kB");
  int64_t kib = 0;
  if (unit == std::string_view::npos ||
      !absl::SimpleAtoi(std::string(rest.substr(0, unit)), &kib)) {
    return 0;
  }
  return kib * 1024;
}

int64_t LeftInCgroup(std::string_view limit, std::string_view usage, std::string_view stat) {
  int64_t most = 0;
  int64_t used = 0;
  if (!absl::SimpleAtoi(std::string(limit), &most) ||
      !absl::SimpleAtoi(std::string(usage), &used)) {
    return kUnlimited;
  }
  int64_t droppable = 0;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(std::string(stat), '\n'))) {
    const std::pair<std::string, std::string> entry = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    int64_t bytes = 0;
    // Hierarchical v1 counts its children under the second name.
    if ((entry.first == "inactive_file" || entry.first == "total_inactive_file") &&
        absl::SimpleAtoi(entry.second, &bytes)) {
      droppable = std::max(droppable, bytes);
    }
  }
  return std::max<int64_t>(0, most - std::max<int64_t>(0, used - droppable));
}

int64_t AvailableMemory() {
  const int64_t of_machine = AvailableOf(ReadKernelFile("/proc/meminfo"));
  int64_t available = of_machine > 0 ? of_machine : kUnlimited;
  for (const std::filesystem::path& folder : CgroupFolders("memory")) {
    const std::string stat = ReadKernelFile(folder / "memory.stat");
    available = std::min({available,
                          LeftInCgroup(ReadKernelFile(folder / "memory.max"),
                                       ReadKernelFile(folder / "memory.current"), stat),
                          LeftInCgroup(ReadKernelFile(folder / "memory.limit_in_bytes"),
                                       ReadKernelFile(folder / "memory.usage_in_bytes"), stat)});
  }
  return available;
}

}  // namespace lynx::cli
