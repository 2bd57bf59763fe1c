#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"

namespace lynx::cuda {

// GPU `index` of this process, whose operations are `kernels`, which outlives it.
//   Unavailable  no such GPU, or what CUDA says.
absl::StatusOr<std::unique_ptr<kernels::Device>> OpenCudaDevice(
    int index, const kernels::DeviceKernels& kernels);

}  // namespace lynx::cuda
