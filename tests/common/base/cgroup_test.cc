#include "common/base/cgroup.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CgroupTest, ClimbsFromTheProcessToTheRoot) {
  EXPECT_THAT(CgroupFoldersOf("0::/a.slice/b\n", "memory", "/cg"),
              ElementsAre("/cg/a.slice/b", "/cg/a.slice", "/cg"));
  EXPECT_THAT(CgroupFoldersOf("5:cpu,cpuacct:/x\n4:memory:/a/b\n", "memory", "/cg"),
              ElementsAre("/cg/memory/a/b", "/cg/memory/a", "/cg/memory"));
  EXPECT_THAT(CgroupFoldersOf("5:cpu,cpuacct:/x\n4:memory:/a/b\n0::/\n", "cpu", "/cg"),
              ElementsAre("/cg/cpu/x", "/cg/cpu", "/cg/", "/cg"));
}

TEST(CgroupTest, TextOfAnotherFormIsNoFolder) {
  for (const char* text : {"", "\n", "memory", "1:name=systemd:/memory", "3:cpuset:/cpu"}) {
    EXPECT_THAT(CgroupFoldersOf(text, "cpu", "/cg"), IsEmpty()) << text;
  }
}

}  // namespace
}  // namespace lynx
