#include "services/cli/loadtest/token_timing.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

namespace lynx::loadtest {
namespace {

// The running counts, where every piece has one and they never fall. Empty otherwise.
std::vector<int64_t> TokensByUsage(std::span<const Chunk> chunks) {
  std::vector<int64_t> tokens;
  int64_t before = 0;
  for (const Chunk& chunk : chunks) {
    if (chunk.tokens_so_far < before) return {};
    tokens.push_back(chunk.tokens_so_far - before);
    before = chunk.tokens_so_far;
  }
  return tokens;
}

// One each, and the rest by length of text, the largest fractions first.
std::vector<int64_t> ShareOut(std::span<const Chunk> chunks, int64_t total) {
  std::vector<int64_t> tokens(chunks.size(), 1);
  const int64_t extra = total - static_cast<int64_t>(chunks.size());
  int64_t bytes = 0;
  for (const Chunk& chunk : chunks) bytes += chunk.text_bytes;
  if (extra <= 0) return tokens;
  if (bytes == 0) {
    tokens.back() += extra;
    return tokens;
  }
  int64_t left = extra;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const int64_t whole = extra * chunks[i].text_bytes / bytes;
    tokens[i] += whole;
    left -= whole;
  }
  std::vector<size_t> order(chunks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return extra * chunks[a].text_bytes % bytes > extra * chunks[b].text_bytes % bytes;
  });
  for (size_t i = 0; i < static_cast<size_t>(left); ++i) ++tokens[order[i]];
  return tokens;
}

}  // namespace

TokenTiming AccountTokens(const Answer& answer, GapHistograms* gaps) {
  std::span<const Chunk> chunks = answer.chunks;
  TokenTiming timing;
  timing.from_usage = answer.completion_tokens.has_value();
  const bool has_text = std::any_of(chunks.begin(), chunks.end(),
                                    [](const Chunk& chunk) { return chunk.text_bytes > 0; });
  if (has_text && chunks.back().text_bytes == 0 &&
      answer.completion_tokens.value_or(0) < static_cast<int64_t>(chunks.size())) {
    chunks = chunks.first(chunks.size() - 1);
  }
  timing.tokens = answer.completion_tokens.value_or(static_cast<int64_t>(chunks.size()));
  if (chunks.empty()) return timing;

  std::vector<int64_t> tokens = TokensByUsage(chunks);
  if (tokens.empty()) {
    tokens = ShareOut(chunks, timing.tokens);
    timing.shared_out = timing.tokens != static_cast<int64_t>(chunks.size());
  }
  std::optional<absl::Time> before;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (tokens[i] == 0) continue;  // Text of a token that has come already.
    const absl::Time at = chunks[i].at;
    const auto count = static_cast<uint64_t>(tokens[i]);
    if (!before.has_value()) {
      timing.first = at;
      if (gaps != nullptr) gaps->tokens.Add(0, count - 1);
    } else if (gaps != nullptr) {
      const double gap = absl::ToDoubleSeconds(at - *before);
      gaps->tokens.Add(gap / static_cast<double>(count), count);
      gaps->pieces.Add(gap);
    }
    before = at;
  }
  timing.last = before;
  return timing;
}

}  // namespace lynx::loadtest
