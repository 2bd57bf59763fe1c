#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>

namespace lynx {

// Who a request belongs to, for sharing work out evenly; 0: those of whom nothing is known.
using TenantId = uint64_t;

// Shares a server among tenants by what their work costs (start-time fair queueing): each stands at
// a place in virtual time that moves on with what it asks for, and who stands further back goes
// first. While several have work they get equal shares; what one leaves the others may use, and is
// held against nobody later.
//
// Work that is given the place of its tenant when it arrives, and goes in the order of places, of
// equal ones in order of arrival, cannot starve: virtual time itself moves on with what is served,
// and nobody who comes is placed before it. With one tenant that is the order of arrival.
//
// Pure bookkeeping; not thread-safe. Costs are in any unit, the same for all.
class FairShare {
 public:
  // Where the tenant's next work stands.
  double Place(TenantId tenant) const;
  // The tenant asks for, or uses, so much more. >= 0
  void Charge(TenantId tenant, double cost);
  // Work of that place has its turn now: nobody who comes later stands before it.
  void Advance(double place);
  // So much work was done, whosever it was.
  void Serve(double cost);

  // Tenants ahead of virtual time; the others are forgotten, as they stand where any newcomer does.
  size_t tenants() const { return ahead_.size(); }

 private:
  // More tenants than this are not told apart: a client that makes up names gains nothing by it.
  static constexpr size_t kMostTenants = 16384;

  void MoveTo(double now);

  double now_ = 0;
  std::unordered_map<TenantId, double> ahead_;  // Places past now_.
  std::set<std::pair<double, TenantId>> by_place_;
};

}  // namespace lynx
