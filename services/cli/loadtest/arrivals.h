#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "services/cli/loadtest/random.h"

namespace lynx::loadtest {

enum class ArrivalProcess {
  kPoisson,  // Exponential gaps: many users who know nothing of each other.
  kGamma,    // Gamma gaps; burstiness 1 is Poisson, smaller comes in bursts, larger is more even.
  kFixed,    // Equal gaps.
};

// When the requests of an open loop are due, whatever the server does. Pure; not thread-safe.
class Arrivals {
 public:
  // `rate` in requests a second, > 0. `burstiness` > 0 is the gamma distribution's shape: the
  // coefficient of variation of the gaps is 1 / sqrt(burstiness).
  Arrivals(ArrivalProcess process, double rate, double burstiness, uint64_t seed)
      : process_(process), rate_(rate), burstiness_(burstiness), random_(seed) {}

  // Time of the next arrival after the start; never decreases. The first one is one gap after it.
  absl::Duration Next();

 private:
  double Gap();

  const ArrivalProcess process_;
  const double rate_;
  const double burstiness_;
  Random random_;
  double at_s_ = 0;
};

}  // namespace lynx::loadtest
