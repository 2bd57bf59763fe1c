#include "kernels/cuda/plugin.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device_kernels.h"
#include "kernels/cuda/nccl_communicator.h"
#include "kernels/cuda/plugin_layout.h"

namespace lynx::cuda {
namespace {

class CudaPlugin final : public Plugin {
 public:
  absl::StatusOr<int> Devices() override {
    int count = 0;
    LYNX_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "counting GPUs"));
    if (count == 0) return absl::UnavailableError("no GPU");
    return count;
  }

  const kernels::DeviceKernels& Kernels() override {
#if defined(LYNX_CUDA_KERNELS)
    return cuda::Kernels();
#else
    static constexpr kernels::DeviceKernels kNone;
    return kNone;
#endif
  }

  absl::StatusOr<std::unique_ptr<kernels::Device>> OpenDevice(int index) override {
    return OpenCudaDevice(index, Kernels());
  }

  absl::StatusOr<std::unique_ptr<collective::Communicator>> ConnectRanks(
      const RankOptions& options, collective::Rendezvous& rendezvous) override {
    LYNX_ASSIGN_OR_RETURN(std::unique_ptr<NcclCommunicator> ranks,
                          NcclCommunicator::Connect(options, rendezvous));
    return std::unique_ptr<collective::Communicator>(std::move(ranks));
  }
};

}  // namespace
}  // namespace lynx::cuda

extern "C" __attribute__((visibility("default"))) const lynx::cuda::PluginEntry*
lynx_cuda_plugin() {
  static lynx::cuda::CudaPlugin plugin;
  static const lynx::cuda::PluginEntry entry = {.version = lynx::cuda::kPluginVersion,
                                                .compiler = __VERSION__,
                                                .plugin = &plugin,
                                                .layout = lynx::cuda::kPluginLayout};
  return &entry;
}
