#pragma once

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace lynx::cli {

// A folder for the files of one run, which goes with this object. A killed run leaves its folder
// behind; the next Create() removes it.
//
// Not thread-safe; any number of processes may share a parent.
class ScratchDirectory {
 public:
  // Removes the folders "<prefix>-*" in `parent` that belong to this user and to no live process,
  // and makes a new one, for this user alone. Unavailable: it cannot be made; names the parent.
  static absl::StatusOr<ScratchDirectory> Create(const std::filesystem::path& parent,
                                                 const std::string& prefix);
  ScratchDirectory(ScratchDirectory&& other) noexcept;
  ScratchDirectory& operator=(ScratchDirectory&&) = delete;
  ~ScratchDirectory();

  const std::filesystem::path& path() const { return path_; }

 private:
  ScratchDirectory(std::filesystem::path path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::filesystem::path path_;
  int lock_;  // Open on the folder, locked as long as its owner lives; -1: moved from.
};

}  // namespace lynx::cli
