#pragma once

#include <span>

namespace lynx::cli {

// The value at rank `share` of all but the last, 0.5 being the median: one of `values`, of which
// there is at least one. share in [0, 1].
double Quantile(std::span<const double> values, double share);

}  // namespace lynx::cli
