#include "services/cli/bench/quantile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "common/base/check.h"

namespace lynx::cli {

double Quantile(std::span<const double> values, double share) {
  LYNX_CHECK(!values.empty());
  std::vector<double> sorted(values.begin(), values.end());
  const auto at = sorted.begin() +
                  static_cast<ptrdiff_t>(std::ceil(share * static_cast<double>(sorted.size() - 1)));
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

double Median(std::span<const double> values) {
  LYNX_CHECK(!values.empty());
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
}

}  // namespace lynx::cli
