#include "services/cli/loadtest/rate_search.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/cli/loadtest/limits.h"

namespace lynx::loadtest {
namespace {

constexpr size_t kMaxRates = 100;

std::optional<double> ParseRate(absl::string_view text) {
  double rate = 0;
  if (!absl::SimpleAtod(text, &rate) || !(rate >= kMinRate && rate <= kMaxRate)) {
    return std::nullopt;
  }
  return rate;
}

}  // namespace

absl::StatusOr<RampPlan> ParseRamp(std::string_view text) {
  const auto wanted = absl::InvalidArgumentError(
      absl::StrCat("ascending rates like 1,2,4,8 or LOW:HIGH to search between, each from ",
                   kMinRate, " to ", kMaxRate));
  const absl::string_view whole(text.data(), text.size());
  RampPlan plan;
  if (const size_t colon = whole.find(':'); colon != absl::string_view::npos) {
    const auto low = ParseRate(whole.substr(0, colon));
    const auto high = ParseRate(whole.substr(colon + 1));
    if (!low || !high || *low >= *high) return wanted;
    plan.low = *low;
    plan.high = *high;
    return plan;
  }
  for (absl::string_view part : absl::StrSplit(whole, ',')) {
    const auto rate = ParseRate(part);
    if (!rate || plan.rates.size() == kMaxRates) return wanted;
    if (!plan.rates.empty() && *rate <= plan.rates.back()) return wanted;
    plan.rates.push_back(*rate);
  }
  return plan;
}

RateSearch::RateSearch(RampPlan plan, double precision)
    : plan_(std::move(plan)), precision_(precision) {}

std::optional<double> RateSearch::Next() const {
  if (!plan_.rates.empty()) {
    if (tried_ == plan_.rates.size()) return std::nullopt;
    return plan_.rates[tried_];
  }
  if (!highest_.has_value()) {
    if (lowest_failed_.has_value()) return std::nullopt;  // Even the lowest.
    return plan_.low;
  }
  if (!lowest_failed_.has_value()) {
    if (*highest_ >= plan_.high) return std::nullopt;
    return std::min(2 * *highest_, plan_.high);
  }
  if (*lowest_failed_ <= *highest_ * (1 + precision_)) return std::nullopt;
  return std::sqrt(*highest_ * *lowest_failed_);
}

void RateSearch::Report(bool holds) {
  const std::optional<double> rate = Next();
  if (!rate.has_value()) return;
  ++tried_;
  if (!holds) {
    if (!lowest_failed_.has_value()) lowest_failed_ = rate;
    lowest_failed_ = std::min(*lowest_failed_, *rate);
  } else if (!lowest_failed_.has_value() || *rate < *lowest_failed_) {
    highest_ = std::max(highest_.value_or(0), *rate);
  }
}

}  // namespace lynx::loadtest
