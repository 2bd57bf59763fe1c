#include "services/router/admission/admission_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lynx::router {

absl::Status AdmissionQueue::Enter(const Newcomer& newcomer, absl::Time now, Ticket& ticket,
                                   std::optional<uint64_t>& displaced) {
  ticket = {.priority = newcomer.priority,
            .place = shares_.Place(newcomer.tenant),
            .arrival = next_,
            .tokens = newcomer.tokens};
  displaced.reset();
  const bool full = queue_.size() >= options_.max_queued && !(queue_.empty() && may_dispatch());
  if (full) {
    const auto last = std::find_if(queue_.rbegin(), queue_.rend(), [&](const auto& waiting) {
      return !returned_.contains(waiting.first.arrival);
    });
    if (last != queue_.rend() && ticket < last->first) displaced = last->second;
  }
  if (full && !displaced.has_value()) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", queue_.size(),
                                                     " requests wait and ", in_flight_,
                                                     " are being served"));
  }
  if (queue_.empty()) last_dispatch_ = now;  // The pace of an idle queue says nothing.
  ++next_;
  shares_.Charge(newcomer.tenant, static_cast<double>(newcomer.tokens));
  queue_.emplace(ticket, newcomer.id);
  return absl::OkStatus();
}

void AdmissionQueue::Dispatch(Ticket ticket, absl::Time now) {
  LYNX_CHECK(queue_.erase(ticket) == 1);
  returned_.erase(ticket.arrival);
  ++in_flight_;
  shares_.Advance(ticket.place);
  shares_.Serve(static_cast<double>(ticket.tokens));
  mean_gap_ = mean_gap_ * 0.9 + std::max(now - last_dispatch_, absl::ZeroDuration()) * 0.1;
  last_dispatch_ = now;
}

void AdmissionQueue::Requeue(Ticket ticket, uint64_t id) {
  LYNX_CHECK(in_flight_ > 0);
  LYNX_CHECK(queue_.emplace(ticket, id).second);
  returned_.insert(ticket.arrival);
  --in_flight_;
}

void AdmissionQueue::Leave(Ticket ticket) {
  returned_.erase(ticket.arrival);
  if (queue_.erase(ticket) == 1) return;
  LYNX_CHECK(in_flight_ > 0);
  --in_flight_;
}

void AdmissionQueue::Used(TenantId tenant, int64_t tokens) {
  shares_.Charge(tenant, static_cast<double>(tokens));
  shares_.Serve(static_cast<double>(tokens));
}

absl::Duration AdmissionQueue::ExpectedWait() const {
  return mean_gap_ * static_cast<double>(queue_.size());
}

absl::Duration AdmissionQueue::RetryAfter() const {
  const absl::Duration wait = mean_gap_ * static_cast<double>(queue_.size() + 1);
  return std::clamp(absl::Ceil(wait, absl::Seconds(1)), absl::Seconds(1), absl::Seconds(60));
}

}  // namespace lynx::router
