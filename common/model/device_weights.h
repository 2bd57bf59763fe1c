#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_weights.h"
#include "kernels/core/device.h"

namespace lynx::model {

// Copies the weights of a whole model to the device, once, and gives the host's memory back: what
// `weights` point to is on the device from then on, in the buffer that this returns.
//   ResourceExhausted, Internal  as Device; `weights` are of no more use.
absl::StatusOr<kernels::DeviceBuffer> MoveToDevice(kernels::Device& device, ModelWeights& weights);

// Whether kernels for GPUs take weights of these types: those of a layer's experts are of one.
//   Unimplemented  names the layer.
absl::Status CheckForDevice(const ModelWeights& weights);

}  // namespace lynx::model
