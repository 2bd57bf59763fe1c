#include "services/cli/scratch_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lynx::cli {
namespace {

constexpr int kAttempts = 10;

// A descriptor of the folder with its lock, or -1: not ours, or somebody else's.
int OpenLocked(const std::filesystem::path& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return -1;
  struct stat info;
  if (fstat(folder, &info) == 0 && info.st_uid == geteuid() &&
      flock(folder, LOCK_EX | LOCK_NB) == 0) {
    return folder;
  }
  close(folder);
  return -1;
}

void RemoveStale(const std::filesystem::path& parent, const std::string& prefix) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(parent, error), end; !error && it != end;
       it.increment(error)) {
    if (!it->path().filename().string().starts_with(prefix + "-")) continue;
    const int folder = OpenLocked(it->path());
    if (folder < 0) continue;
    std::error_code ignored;
    std::filesystem::remove_all(it->path(), ignored);
    close(folder);
  }
}

}  // namespace

absl::StatusOr<ScratchDirectory> ScratchDirectory::Create(const std::filesystem::path& parent,
                                                          const std::string& prefix) {
  RemoveStale(parent, prefix);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::string path = (parent / (prefix + "-XXXXXX")).string();
    if (mkdtemp(path.data()) == nullptr) {
      return absl::UnavailableError(
          absl::StrCat("cannot make a folder in ", parent.string(), ": ", strerror(errno)));
    }
    // Another process may have taken it for stale before it was locked, and removed it.
    const int lock = OpenLocked(path);
    struct stat locked;
    struct stat named;
    if (lock >= 0 && fstat(lock, &locked) == 0 && lstat(path.c_str(), &named) == 0 &&
        locked.st_dev == named.st_dev && locked.st_ino == named.st_ino) {
      return ScratchDirectory(std::move(path), lock);
    }
    if (lock >= 0) close(lock);
  }
  return absl::UnavailableError(absl::StrCat("folders made in ", parent.string(), " vanish"));
}

ScratchDirectory::ScratchDirectory(ScratchDirectory&& other) noexcept
    : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}

ScratchDirectory::~ScratchDirectory() {
  if (lock_ < 0) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  close(lock_);
}

}  // namespace lynx::cli
