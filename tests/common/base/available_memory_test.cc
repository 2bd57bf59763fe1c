#include "common/base/available_memory.h"

#include <limits>

#include "gtest/gtest.h"

namespace lynx {
namespace {

TEST(AvailableMemoryTest, ReadsWhatTheSystemSays) {
  EXPECT_EQ(AvailableOf("MemTotal:  24 kB\nMemFree: 3 kB\nMemAvailable:   20 kB\nX: 1 kB\n"),
            20 * 1024);
  EXPECT_EQ(AvailableOf("MemTotal: 24 kB\n"), 0);
  EXPECT_EQ(AvailableOf("MemAvailable: many kB\n"), 0);
  EXPECT_EQ(AvailableOf(""), 0);
  EXPECT_GT(AvailableMemory(), 0);
  EXPECT_LT(AvailableMemory(), int64_t{1} << 50);
}

TEST(AvailableMemoryTest, ReadsWhatACgroupLeaves) {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  const char* stat = "anon 1\ninactive_file 300\nfile 500\n";
  EXPECT_EQ(LeftInCgroup("1000\n", "700\n", ""), 300);
  EXPECT_EQ(LeftInCgroup("1000\n", "700\n", stat), 600);
  EXPECT_EQ(LeftInCgroup("1000", "200", stat), 1000);
  EXPECT_EQ(LeftInCgroup("1000", "2000", stat), 0);
  EXPECT_EQ(LeftInCgroup("1000", "700", "inactive_file 1\ntotal_inactive_file 200\n"), 500);
  EXPECT_EQ(LeftInCgroup("max\n", "700\n", stat), kNoLimit);
  EXPECT_EQ(LeftInCgroup("", "", ""), kNoLimit);
}

}  // namespace
}  // namespace lynx
