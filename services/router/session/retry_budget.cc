#include "services/router/session/retry_budget.h"

#include <algorithm>

#include "common/base/check.h"

namespace lynx::router {

RetryBudget::RetryBudget(const Options& options, absl::Time now)
    : options_(options), permits_(options.burst), refilled_(now) {
  LYNX_CHECK(options.per_request >= 0 && options.per_second > 0 && options.burst >= 1);
}

void RetryBudget::OnRequest(absl::Time now) {
  Refill(now);
  permits_ = std::min(permits_ + options_.per_request, options_.burst);
}

absl::Time RetryBudget::Take(absl::Time now) {
  Refill(now);
  permits_ -= 1;
  return permits_ >= 0 ? now : now + absl::Seconds(-permits_ / options_.per_second);
}

void RetryBudget::Refill(absl::Time now) {
  if (now <= refilled_) return;
  permits_ = std::min(permits_ + absl::ToDoubleSeconds(now - refilled_) * options_.per_second,
                      options_.burst);
  refilled_ = now;
}

absl::Duration RetryJitter(int retry, uint64_t random) {
  constexpr absl::Duration kFirst = absl::Milliseconds(50);
  constexpr absl::Duration kMost = absl::Seconds(2);
  const absl::Duration most = std::min(kFirst * (1 << std::clamp(retry - 1, 0, 10)), kMost);
  return most * (static_cast<double>(random >> 11) * 0x1p-53);
}

}  // namespace lynx::router
