#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/device.h"

namespace lynx::cuda {

// What --device takes: auto, cpu, cuda, which is the first GPU that the process may use, or
// cuda:N.
//   InvalidArgument  it is none of them.
absl::Status CheckDeviceName(const std::string& name);

struct ChosenDevice {
  std::unique_ptr<kernels::Device> device;  // Null: the CPUs.
  std::string why;                          // For people, one line.
};

// Opens what a name of CheckDeviceName() asks for. `plugin` is a path; empty: liblynx_cuda.so where
// builds and packages put it, seen from the program. auto takes the first GPU, or the CPUs and says
// why.
//   InvalidArgument  the name.
//   NotFound, FailedPrecondition, Unavailable  a GPU was asked for, and the plug-in, a plug-in of
//                    this version, or a driver and that GPU are not there.
absl::StatusOr<ChosenDevice> ChooseDevice(const std::string& name, const std::string& plugin);

}  // namespace lynx::cuda
