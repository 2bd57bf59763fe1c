#include "kernels/cuda/choose_device.h"

#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/load_plugin.h"

namespace lynx::cuda {
namespace {

// Of GPUs on one host.
constexpr int kMostDevices = 1024;

// Which GPU a name is of; -1: the CPUs.
absl::StatusOr<int> IndexOf(const std::string& name) {
  if (name == "cpu") return -1;
  if (name == "cuda" || name == "auto") return 0;
  int index = 0;
  std::string_view number = name;
  if (number.substr(0, 5) == "cuda:" && number.size() > 5 && number[5] >= '0' && number[5] <= '9' &&
      absl::SimpleAtoi(absl::string_view(number.data() + 5, number.size() - 5), &index) &&
      index < kMostDevices) {
    return index;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--device ", name, ": wanted auto, cpu, cuda or cuda:N"));
}

absl::StatusOr<std::string> FindPlugin() {
  constexpr char kName[] = "liblynx_cuda.so";
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return absl::NotFoundError(absl::StrCat(
        "CUDA plug-in: cannot tell where this program is, to look beside it: /proc/self/exe: ",
        error.message()));
  }
  std::vector<std::string> looked;
  for (const char* folder : {"../lib", "../" LYNX_INSTALL_LIBDIR "/lynx"}) {
    const std::filesystem::path path = (program.parent_path() / folder / kName).lexically_normal();
    if (std::filesystem::exists(path, error)) return path.string();
    looked.push_back(path.string());
  }
  return absl::NotFoundError(
      absl::StrCat("CUDA plug-in: there is none at ", absl::StrJoin(looked, " or ")));
}

absl::StatusOr<ChosenDevice> Open(int index, const std::string& plugin) {
  std::string path = plugin;
  if (path.empty()) {
    LYNX_ASSIGN_OR_RETURN(path, FindPlugin());
  }
  LYNX_ASSIGN_OR_RETURN(Plugin * loaded, LoadPlugin(path));
  if (loaded->Kernels().gemm == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": was built without the kernels, which need nvcc"));
  }
  ChosenDevice chosen;
  LYNX_ASSIGN_OR_RETURN(chosen.device, loaded->OpenDevice(index));
  LYNX_ASSIGN_OR_RETURN(const kernels::DeviceMemoryInfo memory, chosen.device->Memory());
  const kernels::DeviceInfo& info = chosen.device->info();
  chosen.why = absl::StrFormat("GPU %d, %s, sm_%d%d, %.2f of %.2f GB free", info.index, info.name,
                               info.major, info.minor, static_cast<double>(memory.free) / 1e9,
                               static_cast<double>(memory.total) / 1e9);
  return chosen;
}

}  // namespace

absl::Status CheckDeviceName(const std::string& name) { return IndexOf(name).status(); }

absl::StatusOr<ChosenDevice> ChooseDevice(const std::string& name, const std::string& plugin) {
  LYNX_ASSIGN_OR_RETURN(const int index, IndexOf(name));
  if (index < 0) return ChosenDevice{.device = nullptr, .why = "the CPUs, as asked for"};
  absl::StatusOr<ChosenDevice> chosen = Open(index, plugin);
  if (chosen.ok() || name != "auto") return chosen;
  return ChosenDevice{
      .device = nullptr,
      .why = absl::StrCat("the CPUs: ", absl::string_view(chosen.status().message()))};
}

}  // namespace lynx::cuda
