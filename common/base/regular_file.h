#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace lynx {

// An open file, closed with this. Never waits for a writer, as opening a FIFO
// does.
class RegularFile {
 public:
  //   NotFound         nothing of that name.
  //   InvalidArgument  it cannot be opened (a link that leads nowhere, no permission) or is no
  //                    regular file; names it.
  static absl::StatusOr<RegularFile> Open(const std::filesystem::path& path);

  RegularFile(RegularFile&& other) noexcept;
  RegularFile& operator=(RegularFile&&) = delete;
  ~RegularFile();

  // All of it. DataLoss: it got shorter, or cannot be read; names nothing.
  absl::StatusOr<std::string> ReadAll() const;

  int fd() const { return fd_; }
  int64_t size() const { return size_; }  // Bytes, when it was opened.

 private:
  explicit RegularFile(int fd) : fd_(fd) {}

  int fd_;
  int64_t size_ = 0;
};

}  // namespace lynx
