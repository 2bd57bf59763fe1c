#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/kv/kv_arena.h"
#include "kernels/core/device.h"

namespace lynx::model {

// KV in memory of a device, zero at start. Copies go through pinned memory of the host, on a stream
// of their own.
//   ResourceExhausted, Internal  as Device.
absl::StatusOr<std::unique_ptr<kv::RemoteMemory>> MakeDeviceKv(kernels::Device& device,
                                                               size_t bytes);

}  // namespace lynx::model
