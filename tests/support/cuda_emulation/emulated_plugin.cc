// A plug-in whose one GPU is emulated: programs open it as liblynx_cuda.so. The environment may say
//   LYNX_EMULATED_GPU_BYTES  its memory
#include <cstdlib>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "kernels/cuda/device_kernels.h"
#include "kernels/cuda/plugin.h"
#include "kernels/cuda/plugin_layout.h"
#include "tests/support/cuda_emulation/emulated_device.h"

namespace lynx::testing {
namespace {

class EmulatedPlugin final : public cuda::Plugin {
 public:
  absl::StatusOr<int> Devices() override { return 1; }
  const kernels::DeviceKernels& Kernels() override { return cuda::Kernels(); }
  absl::StatusOr<std::unique_ptr<kernels::Device>> OpenDevice(int index) override {
    if (index == 0) return MakeEmulatedDevice(MemoryBytes());
    return absl::UnavailableError(absl::StrCat("no GPU ", index, ", there is 1"));
  }
  absl::StatusOr<std::unique_ptr<collective::Communicator>> ConnectRanks(
      const cuda::RankOptions&, collective::Rendezvous&) override {
    return absl::UnavailableError("there is one GPU");
  }

 private:
  static size_t MemoryBytes() {
    uint64_t bytes = uint64_t{1} << 30;
    const char* const wanted = std::getenv("LYNX_EMULATED_GPU_BYTES");
    if (wanted != nullptr) LYNX_CHECK(absl::SimpleAtoi(wanted, &bytes));
    return bytes;
  }
};

}  // namespace
}  // namespace lynx::testing

extern "C" __attribute__((visibility("default"))) const lynx::cuda::PluginEntry*
lynx_cuda_plugin() {
  static lynx::testing::EmulatedPlugin plugin;
  static const lynx::cuda::PluginEntry entry = {.version = lynx::cuda::kPluginVersion,
                                                .compiler = __VERSION__,
                                                .plugin = &plugin,
                                                .layout = lynx::cuda::kPluginLayout};
  return &entry;
}
