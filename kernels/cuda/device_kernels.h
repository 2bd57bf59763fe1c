#pragma once

#include "kernels/core/device_kernels.h"

namespace lynx::cuda {

// The table of what kernels/ has for GPUs.
const kernels::DeviceKernels& Kernels();

}  // namespace lynx::cuda
