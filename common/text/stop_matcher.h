#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lynx::text {

// Finds stop strings in a stream of text, wherever the pieces are cut.
//
// Holds back only what may still become a stop string: the longest end of the text so far that is
// the start of one. When several stop strings match, the one that ends first wins; among those that
// end together, the one that starts first, and so is longest.
//
// Matching is by bytes. Stop strings are whole characters, so valid UTF-8 in means valid UTF-8 out.
//
// Copyable. Not thread-safe. O(stop strings) amortised a byte.
class StopMatcher {
 public:
  static constexpr size_t kMaxStops = 16;
  static constexpr size_t kMaxStopBytes = 64 * 1024;

  struct Result {
    std::string text;            // Safe to send. Never holds any of a stop string.
    std::optional<size_t> stop;  // Index of the stop string that matched: the stream ends here.
  };

  // No stop strings is fine: all text passes at once.
  // InvalidArgument for an empty, too long or not UTF-8 stop string, or for too many.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stops);

  // After a match, further calls give nothing.
  Result Push(std::string_view delta);

  // At the end of the stream: what was held back.
  std::string Flush();

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> failure;  // Knuth-Morris-Pratt: longest border of each prefix.
    size_t matched = 0;           // So many bytes of `text` end the stream so far.
  };

  explicit StopMatcher(std::vector<Pattern> patterns) : patterns_(std::move(patterns)) {}

  std::vector<Pattern> patterns_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace lynx::text
