#include "kernels/cuda/load_plugin.h"

#include <dlfcn.h>

#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/plugin_layout.h"

namespace lynx::cuda {

absl::Status CheckPluginEntry(const PluginEntry& entry, const std::string& path) {
  if (entry.version != kPluginVersion || std::string_view(entry.compiler) != __VERSION__) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": is of version ", entry.version, ", built by ", entry.compiler,
                     "; this program needs version ", kPluginVersion, ", built by ", __VERSION__));
  }
  if (entry.layout != kPluginLayout) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     ": was built of other sources than this program: the arguments of its "
                     "kernels have other sizes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Plugin*> LoadPlugin(const std::string& path) {
  // A name without a slash would be looked for in the system's folders.
  const std::string file = path.find('/') == std::string::npos ? absl::StrCat("./", path) : path;
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError(absl::StrCat("CUDA plug-in: ", dlerror()));
  // It is never closed: CUDA and NCCL leave threads and handlers behind.
  auto* const function = reinterpret_cast<PluginFunction*>(dlsym(library, kPluginSymbol));
  if (function == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": is no CUDA plug-in of Lynx"));
  }
  const PluginEntry* const entry = function();
  LYNX_RETURN_IF_ERROR(CheckPluginEntry(*entry, path));
  return entry->plugin;
}

}  // namespace lynx::cuda
