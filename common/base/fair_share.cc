#include "common/base/fair_share.h"

#include <algorithm>

#include "common/base/check.h"

namespace lynx {

double FairShare::Place(TenantId tenant) const {
  const auto it = ahead_.find(tenant);
  return it == ahead_.end() ? now_ : it->second;
}

void FairShare::Charge(TenantId tenant, double cost) {
  LYNX_CHECK(cost >= 0);
  if (ahead_.size() >= kMostTenants && !ahead_.contains(tenant)) tenant = 0;
  const double before = Place(tenant);
  const double after = before + cost;
  if (after <= now_) return;
  by_place_.erase({before, tenant});
  by_place_.insert({after, tenant});
  ahead_[tenant] = after;
}

void FairShare::Advance(double place) {
  if (place > now_) MoveTo(place);
}

void FairShare::Serve(double cost) {
  MoveTo(now_ + cost / static_cast<double>(std::max<size_t>(1, ahead_.size())));
}

void FairShare::MoveTo(double now) {
  now_ = now;
  while (!by_place_.empty() && by_place_.begin()->first <= now_) {
    ahead_.erase(by_place_.begin()->second);
    by_place_.erase(by_place_.begin());
  }
}

}  // namespace lynx
