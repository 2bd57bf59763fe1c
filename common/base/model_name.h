#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace lynx {

// The name of a model by default: that of its folder, without what "/", "." and ".." at the end of
// `path` add. Empty, "." or "..": the path names none.
std::string FolderName(const std::string& path);

// InvalidArgument: the name cannot stand in JSON and on the wire; it says what to do.
absl::Status CheckModelName(std::string_view name);

}  // namespace lynx
