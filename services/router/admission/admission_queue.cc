#include "services/router/admission/admission_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lynx::router {

absl::Status AdmissionQueue::Enter(uint64_t id, absl::Time now, Ticket& ticket) {
  if (queue_.size() >= options_.max_queued && !(queue_.empty() && may_dispatch())) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", queue_.size(),
                                                     " requests wait and ", in_flight_,
                                                     " are being served"));
  }
  if (queue_.empty()) last_dispatch_ = now;  // The pace of an idle queue says nothing.
  ticket = next_++;
  queue_.emplace(ticket, id);
  return absl::OkStatus();
}

void AdmissionQueue::Dispatch(Ticket ticket, absl::Time now) {
  LYNX_CHECK(queue_.erase(ticket) == 1);
  ++in_flight_;
  mean_gap_ = mean_gap_ * 0.9 + std::max(now - last_dispatch_, absl::ZeroDuration()) * 0.1;
  last_dispatch_ = now;
}

void AdmissionQueue::Requeue(Ticket ticket, uint64_t id) {
  LYNX_CHECK(in_flight_ > 0);
  LYNX_CHECK(queue_.emplace(ticket, id).second);
  --in_flight_;
}

void AdmissionQueue::Leave(Ticket ticket) {
  if (queue_.erase(ticket) == 1) return;
  LYNX_CHECK(in_flight_ > 0);
  --in_flight_;
}

absl::Duration AdmissionQueue::ExpectedWait() const {
  return mean_gap_ * static_cast<double>(queue_.size());
}

absl::Duration AdmissionQueue::RetryAfter() const {
  const absl::Duration wait = mean_gap_ * static_cast<double>(queue_.size() + 1);
  return std::clamp(absl::Ceil(wait, absl::Seconds(1)), absl::Seconds(1), absl::Seconds(60));
}

}  // namespace lynx::router
