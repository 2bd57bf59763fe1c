#include "kernels/core/cpu_limit.h"

#include "gtest/gtest.h"

namespace lynx::kernels {
namespace {

TEST(CpuLimitTest, ReadsCgroupQuotas) {
  EXPECT_EQ(CpusFromCgroupMax("max 100000\n"), 0);
  EXPECT_EQ(CpusFromCgroupMax("200000 100000\n"), 2);
  EXPECT_EQ(CpusFromCgroupMax("150000 100000\n"), 2);
  EXPECT_EQ(CpusFromCgroupMax("1000 100000"), 1);
  EXPECT_EQ(CpusFromCgroupMax("-1 100000"), 0);  // How v1 spells "no limit".
}

TEST(CpuLimitTest, TextOfAnotherFormIsNoLimit) {
  for (const char* text : {"", "max", "1 2 3", "a b", "100000 0", "99999999999999999999 1"}) {
    EXPECT_EQ(CpusFromCgroupMax(text), 0) << text;
  }
}

TEST(CpuLimitTest, AtLeastOneCpuIsUsable) { EXPECT_GE(UsableCpus(), 1); }

}  // namespace
}  // namespace lynx::kernels
