#include "services/cli/scratch_directory.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace lynx::cli {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;

class ScratchDirectoryTest : public ::testing::Test {
 protected:
  ScratchDirectory Make() {
    auto made = ScratchDirectory::Create(parent_.path(), "run");
    EXPECT_THAT(made, IsOk());
    return *std::move(made);
  }
  int Folders() const {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(parent_.path())) {
      count += entry.is_directory() ? 1 : 0;
    }
    return count;
  }

  testing::TempDir parent_;
};

TEST_F(ScratchDirectoryTest, GoesWithItsOwner) {
  std::optional<ScratchDirectory> scratch = Make();
  const std::filesystem::path path = scratch->path();
  std::ofstream(path / "file") << "x";
  EXPECT_TRUE(std::filesystem::exists(path / "file"));
  ScratchDirectory moved = *std::move(scratch);
  scratch.reset();
  EXPECT_TRUE(std::filesystem::exists(path));
  { ScratchDirectory last = std::move(moved); }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(ScratchDirectoryTest, LeavesThoseOfLiveOwnersAlone) {
  const ScratchDirectory first = Make();
  const ScratchDirectory second = Make();
  EXPECT_NE(first.path(), second.path());
  EXPECT_TRUE(std::filesystem::exists(first.path()));
}

TEST_F(ScratchDirectoryTest, RemovesThoseOfKilledOwnersAndNothingElse) {
  std::filesystem::create_directory(parent_.path() / "runner");
  std::filesystem::create_directory(parent_.path() / "else");
  std::filesystem::create_directory_symlink(parent_.path() / "else", parent_.path() / "run-link");
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto scratch = ScratchDirectory::Create(parent_.path(), "run");
    const bool written = scratch.ok() && (std::ofstream(scratch->path() / "file") << "x").good();
    const char byte = written ? '1' : '0';
    if (write(ready[1], &byte, 1) == 1) pause();
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, '1');
  const int before = Folders();
  { const ScratchDirectory other = Make(); }
  EXPECT_EQ(Folders(), before) << "its owner lives";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  { const ScratchDirectory other = Make(); }
  EXPECT_EQ(Folders(), before - 1);
  EXPECT_TRUE(std::filesystem::exists(parent_.path() / "runner"));
  EXPECT_TRUE(std::filesystem::exists(parent_.path() / "else"));
  close(ready[0]);
  close(ready[1]);
}

TEST_F(ScratchDirectoryTest, AParentThatIsNotThereIsNamed) {
  EXPECT_THAT(ScratchDirectory::Create(parent_.path() / "none", "run"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("none")));
}

}  // namespace
}  // namespace lynx::cli
