#include "services/cli/bench/quantile.h"

#include <vector>

#include "gtest/gtest.h"

namespace lynx::cli {
namespace {

TEST(QuantileTest, TheMedianLiesInTheMiddle) {
  EXPECT_EQ(Median(std::vector<double>{3}), 3);
  EXPECT_EQ(Median(std::vector<double>{4, 1}), 2.5) << "not the lower of two";
  EXPECT_EQ(Median(std::vector<double>{9, 1, 2}), 2);
  EXPECT_EQ(Median(std::vector<double>{8, 1, 2, 4}), 3);
}

TEST(QuantileTest, QuantilesAreValuesThatWereSeen) {
  const std::vector<double> values = {5, 1, 4, 2, 3};
  EXPECT_EQ(Quantile(values, 0), 1);
  EXPECT_EQ(Quantile(values, 0.99), 5) << "never less than the median";
  EXPECT_EQ(Quantile(values, 1), 5);
}

}  // namespace
}  // namespace lynx::cli
