#pragma once

#include <span>

namespace lynx::cli {

// The value at rank `share` of all but the last, rounded up: one of `values`, of which there is at
// least one. share in [0, 1].
double Quantile(std::span<const double> values, double share);
// The middle one, or the mean of the middle two.
double Median(std::span<const double> values);

}  // namespace lynx::cli
