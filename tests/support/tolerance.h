#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace lynx::testing {

// Bound on the error of a float32 sum of `terms` terms, relative to the sum of their magnitudes,
// against the same sum in double. Rounding errors of a reordered sum grow like sqrt(terms) for
// unrelated terms; the 8 covers the few roundings outside the sum. Derived, not fitted: a test that
// needs it raised has found something.
inline double ReductionTolerance(int64_t terms) {
  return 8.0 * std::sqrt(static_cast<double>(terms)) *
         static_cast<double>(std::numeric_limits<float>::epsilon());
}

}  // namespace lynx::testing
