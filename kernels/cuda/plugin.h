#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/collective/communicator.h"
#include "common/collective/rendezvous.h"
#include "kernels/core/device.h"

namespace lynx::cuda {

// One rank of a node whose ranks have a GPU each.
struct RankOptions {
  int rank = 0;
  int size = 1;
  int device = 0;                                      // [0, devices()) of this process.
  absl::Duration connect_timeout = absl::Seconds(60);  // For all ranks to come.
  absl::Duration timeout = absl::Seconds(2);           // Of each call.
};

// What liblynx_cuda.so offers to programs that know neither CUDA nor NCCL: they run where neither
// is installed. Any thread may call.
class Plugin {
 public:
  virtual ~Plugin() = default;

  // GPUs that this process may use, at least one.
  //   Unavailable  there is no driver, none that fits, or no GPU; says which.
  virtual absl::StatusOr<int> Devices() = 0;

  // The operations of ExecContext::device, of the plug-in. All null where it was built without
  // nvcc.
  virtual const kernels::DeviceKernels& Kernels() = 0;

  // GPU `index` in [0, Devices()), with Kernels(). Several of one GPU do not know of each other.
  //   Unavailable  no such GPU, or what CUDA says of it.
  virtual absl::StatusOr<std::unique_ptr<kernels::Device>> OpenDevice(int index) = 0;

  // Connects to all other ranks over NCCL, which do the same. Blocks.
  //   InvalidArgument   rank or size out of range.
  //   AlreadyExists     another process is this rank.
  //   DeadlineExceeded  ranks that did not come in time; names them.
  //   Unavailable       no such device, or what CUDA or NCCL says.
  virtual absl::StatusOr<std::unique_ptr<collective::Communicator>> ConnectRanks(
      const RankOptions& options, collective::Rendezvous& rendezvous) = 0;
};

// To be raised with every change of what is above or of what it uses.
inline constexpr uint32_t kPluginVersion = 6;

// What the plug-in says of itself before anything else of it is used, in plain C.
struct PluginEntry {
  uint32_t version;
  const char* compiler;  // Classes do not go from one compiler to the other.
  Plugin* plugin;        // Of the plug-in, for as long as it is loaded.
  uint64_t layout;       // kPluginLayout (plugin_layout.h), should the version be forgotten.
};
inline constexpr char kPluginSymbol[] = "lynx_cuda_plugin";
using PluginFunction = const PluginEntry*();

}  // namespace lynx::cuda
