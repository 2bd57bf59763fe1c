#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lynx {

// Where a process that was started with port 0 really listens ("host:port"; empty: not at all). A
// service writes it to the file named by --announce once its sockets are bound.
struct Announcement {
  std::string http;
  std::string control;
};

absl::Status WriteAnnouncement(const std::filesystem::path& path, const Announcement& announcement);

// NotFound: not written yet. InvalidArgument: not an announcement.
absl::StatusOr<Announcement> ReadAnnouncement(const std::filesystem::path& path);

}  // namespace lynx
