#include "services/cli/loadtest/arrivals.h"

namespace lynx::loadtest {

double Arrivals::Gap() {
  switch (process_) {
    case ArrivalProcess::kPoisson:
      return random_.Exponential();
    case ArrivalProcess::kGamma:
      return random_.Gamma(burstiness_) / burstiness_;
    case ArrivalProcess::kFixed:
      return 1;
  }
  return 1;
}

absl::Duration Arrivals::Next() {
  at_s_ += Gap() / rate_;
  return absl::Seconds(at_s_);
}

}  // namespace lynx::loadtest
