#include "common/text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"

namespace lynx::text {

absl::StatusOr<StopMatcher> StopMatcher::Create(std::vector<std::string> stops) {
  if (stops.size() > kMaxStops) {
    return absl::InvalidArgumentError(
        absl::StrCat("at most ", kMaxStops, " stop strings are allowed, not ", stops.size()));
  }
  std::vector<Pattern> patterns;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) {
      return absl::InvalidArgumentError(absl::StrCat("stop string ", i, " is empty"));
    }
    if (stops[i].size() > kMaxStopBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("stop string ", i, " is over ", kMaxStopBytes, " bytes"));
    }
    if (!IsValidUtf8(stops[i])) {
      return absl::InvalidArgumentError(absl::StrCat("stop string ", i, " is not valid UTF-8"));
    }
    Pattern pattern;
    pattern.text = std::move(stops[i]);
    pattern.failure.assign(pattern.text.size(), 0);
    for (size_t at = 1, border = 0; at < pattern.text.size(); ++at) {
      while (border > 0 && pattern.text[at] != pattern.text[border]) {
        border = pattern.failure[border - 1];
      }
      if (pattern.text[at] == pattern.text[border]) ++border;
      pattern.failure[at] = border;
    }
    patterns.push_back(std::move(pattern));
  }
  return StopMatcher(std::move(patterns));
}

StopMatcher::Result StopMatcher::Push(std::string_view delta) {
  Result result;
  if (stopped_) return result;
  for (size_t i = 0; i < delta.size(); ++i) {
    for (size_t index = 0; index < patterns_.size(); ++index) {
      Pattern& pattern = patterns_[index];
      while (pattern.matched > 0 && pattern.text[pattern.matched] != delta[i]) {
        pattern.matched = pattern.failure[pattern.matched - 1];
      }
      if (pattern.text[pattern.matched] == delta[i]) ++pattern.matched;
      const bool whole = pattern.matched == pattern.text.size();
      if (whole &&
          (!result.stop.has_value() || pattern.text.size() > patterns_[*result.stop].text.size())) {
        result.stop = index;
      }
    }
    if (result.stop.has_value()) {
      stopped_ = true;
      result.text = std::move(held_);
      held_.clear();
      result.text += delta.substr(0, i + 1);
      result.text.resize(result.text.size() - patterns_[*result.stop].text.size());
      return result;
    }
  }
  size_t hold = 0;
  for (const Pattern& pattern : patterns_) hold = std::max(hold, pattern.matched);
  held_ += delta;
  result.text = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return result;
}

std::string StopMatcher::Flush() { return std::exchange(held_, std::string()); }

}  // namespace lynx::text
