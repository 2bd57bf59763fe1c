#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/plugin.h"

namespace lynx::cuda {

// Opens the plug-in at `path`, which stays loaded until the process ends.
//   NotFound            it cannot be loaded: no such file, or libraries that it needs are missing;
//                       says which.
//   FailedPrecondition  it is no plug-in of Lynx, or not of this version and these sources.
absl::StatusOr<Plugin*> LoadPlugin(const std::string& path);

// That what a plug-in says of itself fits this program: FailedPrecondition.
absl::Status CheckPluginEntry(const PluginEntry& entry, const std::string& path);

}  // namespace lynx::cuda
