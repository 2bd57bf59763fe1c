#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lynx::cuda {

// Unavailable in CUDA's own words, where it failed `doing` something.
inline absl::Status CudaStatus(cudaError_t error, std::string_view doing) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("CUDA, ", std::string(doing), ": ", cudaGetErrorString(error)));
}

}  // namespace lynx::cuda
