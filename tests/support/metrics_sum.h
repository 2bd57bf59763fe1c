#pragma once

#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace lynx::testing {

// The sum of the series of a metrics page whose lines begin with `prefix`; some must.
inline double MetricsSum(const std::string& page, const std::string& prefix) {
  double sum = 0;
  bool found = false;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(prefix)) continue;
    sum += std::stod(line.substr(line.rfind(' ')));
    found = true;
  }
  EXPECT_TRUE(found) << prefix;
  return sum;
}

}  // namespace lynx::testing
