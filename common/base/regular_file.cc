#include "common/base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lynx {

absl::StatusOr<RegularFile> RegularFile::Open(const std::filesystem::path& path) {
  RegularFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.fd_ < 0) {
    const int error = errno;
    std::error_code ignored;
    if (error != ENOENT) {
      return absl::InvalidArgumentError(
          absl::StrCat(path.string(), ": cannot be opened: ", strerror(error)));
    }
    if (!std::filesystem::is_symlink(path, ignored)) {
      return absl::NotFoundError(absl::StrCat(path.string(), ": no such file"));
    }
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": a link to no file"));
  }
  struct stat status;
  if (fstat(file.fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": not a regular file"));
  }
  file.size_ = status.st_size;
  return file;
}

absl::StatusOr<std::string> RegularFile::ReadAll() const {
  std::string content(static_cast<size_t>(size_), '\0');
  for (size_t at = 0; at < content.size();) {
    const ssize_t got =
        pread(fd_, content.data() + at, content.size() - at, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return absl::DataLossError("could not be read whole");
    at += static_cast<size_t>(got);
  }
  return content;
}

RegularFile::RegularFile(RegularFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

RegularFile::~RegularFile() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace lynx
