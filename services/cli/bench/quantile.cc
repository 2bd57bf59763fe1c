#include "services/cli/bench/quantile.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/base/check.h"

namespace lynx::cli {

double Quantile(std::span<const double> values, double share) {
  LYNX_CHECK(!values.empty());
  std::vector<double> sorted(values.begin(), values.end());
  const auto at =
      sorted.begin() + static_cast<ptrdiff_t>(share * static_cast<double>(sorted.size() - 1));
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

}  // namespace lynx::cli
