#include "services/cli/bench/memory_need.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/config/flag_set.h"
#include "services/cli/bench/model_shape.h"

namespace lynx::cli {
namespace {

constexpr int64_t kWeightBytes = 2;
constexpr int64_t kReadBuffer = int64_t{2} << 30;

double Gb(double bytes) { return bytes / 1e9; }

}  // namespace

int64_t WeightBytes(const model::ModelSpec& spec) { return MatrixParameters(spec) * kWeightBytes; }

absl::Status CheckFits(const model::MemoryNeed& need, int64_t read_buffer,
                       const model::ModelSpec& spec, int64_t available) {
  const auto total = static_cast<double>(need.total()) + static_cast<double>(read_buffer);
  if (total <= static_cast<double>(available)) return absl::OkStatus();
  std::string text = absl::StrFormat(
      "%.1f GB of memory are needed (weights of %d layers %.1f, KV cache %.1f, buffers of a step "
      "%.1f, read buffer %.1f), %.1f are available",
      Gb(total), spec.layers, Gb(static_cast<double>(need.weights)),
      Gb(static_cast<double>(need.kv)), Gb(static_cast<double>(need.steps)),
      Gb(static_cast<double>(read_buffer)), Gb(static_cast<double>(available)));
  const auto kv_layer = static_cast<double>(need.kv) / spec.layers;
  double used = static_cast<double>(need.steps) + static_cast<double>(read_buffer) +
                static_cast<double>(int64_t{spec.tied_embeddings ? 1 : 2} * spec.vocab_size *
                                    spec.hidden_size * kWeightBytes);
  int32_t layers = 0;
  while (layers < spec.layers) {
    used += static_cast<double>(LayerParameters(spec, layers) * kWeightBytes) + kv_layer;
    if (used > static_cast<double>(available)) break;
    ++layers;
  }
  if (layers > 0) absl::StrAppend(&text, "; --layers ", layers, " would fit");
  return absl::ResourceExhaustedError(text);
}

int64_t DefaultReadBuffer(int64_t available) {
  return std::clamp(available / 2, kMinReadBuffer, kReadBuffer);
}

absl::Status CheckReadBuffer(int64_t asked) {
  if (asked == 0 || asked >= kMinReadBuffer) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--read-buffer: ", config::FormatBytes(asked), ", wanted at least ",
                   config::FormatBytes(kMinReadBuffer), ": caches hold less"));
}

std::optional<std::string> CacheNote(int64_t read_buffer, int64_t cache_bytes) {
  if (read_buffer / 2 >= cache_bytes) return std::nullopt;
  return absl::StrFormat(
      "the read buffer, %d MiB, is less than twice the last-level cache, %d MiB: some of it may be "
      "read from there",
      read_buffer >> 20, cache_bytes >> 20);
}

int64_t LastLevelCacheBytes() {
  int64_t bytes = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  bytes = std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE));
#endif
  return std::max<int64_t>(bytes, 0);
}

}  // namespace lynx::cli
