#include "common/base/announcement.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"

namespace lynx {

absl::Status WriteAnnouncement(const std::filesystem::path& path,
                               const Announcement& announcement) {
  return WriteFileAtomically(
      path, absl::StrCat("http=", announcement.http, "\ncontrol=", announcement.control, "\n"));
}

absl::StatusOr<Announcement> ReadAnnouncement(const std::filesystem::path& path) {
  LYNX_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, 4096));
  Announcement announcement;
  for (const absl::string_view part : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::string line(part);
    if (absl::StartsWith(line, "http=")) {
      announcement.http = line.substr(5);
    } else if (absl::StartsWith(line, "control=")) {
      announcement.control = line.substr(8);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(path.string(), ": not an announcement: ", line));
    }
  }
  return announcement;
}

}  // namespace lynx
