#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace lynx::kernels {

// Sums that have the same bits however what is added is ordered and grouped, over ranks or within
// them: summands are multiples of a quantum, and so few and small that sums of double are exact.
inline constexpr double kSummandQuantum = 0x1p-30;  // A float's step at 2^-7.
inline constexpr double kSummandLimit = 0x1p16;
inline constexpr int64_t kMostSummands = 128;  // times the limit, over the quantum: 2^53.

// `value` to the nearest multiple of the quantum, ties to even. NaN where it is not within the
// limit, so that it is seen in the result and not lost there.
inline double ToSummand(double value) {
  constexpr double kShift = 0x1.8p52 * kSummandQuantum;  // Where a double's step is the quantum.
  return std::abs(value) < kSummandLimit ? (value + kShift) - kShift
                                         : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace lynx::kernels
