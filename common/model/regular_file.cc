#include "common/model/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lynx::model {

absl::StatusOr<RegularFile> RegularFile::Open(const std::filesystem::path& path) {
  RegularFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.fd_ < 0) {
    const int error = errno;
    std::error_code ignored;
    if (error == ENOENT && !std::filesystem::is_symlink(path, ignored)) {
      return absl::NotFoundError(absl::StrCat("no file ", path.string()));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("cannot open ", path.string(), ": ", strerror(error)));
  }
  struct stat status;
  if (fstat(file.fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), " is not a file"));
  }
  file.size_ = status.st_size;
  return file;
}

RegularFile::RegularFile(RegularFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

RegularFile::~RegularFile() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace lynx::model
