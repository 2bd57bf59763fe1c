#include "kernels/core/cpu_limit.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST(CpuListTest, ReadsNumbersAndRanges) {
  EXPECT_THAT(*ParseCpuList("3"), ElementsAre(3));
  EXPECT_THAT(*ParseCpuList("8,0-2,2,10-10"), ElementsAre(0, 1, 2, 8, 10));
  EXPECT_THAT(*ParseCpuList("1023"), ElementsAre(1023));
}

TEST(CpuListTest, RefusesWhatIsNoList) {
  for (const char* text : {"", ",", "1,", "a", "-1", "1-", "3-2", "1-2-3", "+1", " 1", "1024",
                           "0-99999999999", "0x1"}) {
    EXPECT_THAT(ParseCpuList(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr(std::string("'") + text + "'")));
  }
}

TEST(CpuListTest, AConfinedThreadAndItsChildrenStayThere) {
  const std::vector<int32_t> allowed = AllowedCpus();
  ASSERT_FALSE(allowed.empty());
  const std::vector<int32_t> one = {allowed.back()};
  std::thread([&] {
    EXPECT_THAT(ConfineThisThread(one), IsOk());
    EXPECT_EQ(AllowedCpus(), one);
    EXPECT_EQ(UsableCpus(), 1);
    std::thread([&] { EXPECT_EQ(AllowedCpus(), one); }).join();
  }).join();
  EXPECT_EQ(AllowedCpus(), allowed);
}

TEST(CpuListTest, ACpuOutOfReachIsNamedAndChangesNothing) {
  const std::vector<int32_t> allowed = AllowedCpus();
  const std::vector<int32_t> cpus = {allowed.front(), 1023};
  EXPECT_THAT(ConfineThisThread(cpus),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("CPU 1023")));
  EXPECT_EQ(AllowedCpus(), allowed);
}

}  // namespace
}  // namespace lynx::kernels
