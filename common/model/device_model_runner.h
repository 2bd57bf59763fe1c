#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/model/memory_need.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "common/model/model_weights.h"

namespace lynx::model {

// Whether a device serves the model as `options` ask for it.
//   Unimplemented  names what it does not: several ranks, spare slots, a feature of the family that
//                  no kernel does, or sizes beyond a kernel's.
absl::Status CheckForDevice(const RunnerOptions& options, const ModelSpec& spec);

// What options.device has for such a model.
//   Internal  as Device.
absl::StatusOr<DeviceRoom> RoomOnDevice(const RunnerOptions& options, const ModelSpec& spec,
                                        int64_t weight_bytes);

// A ModelRunner that computes on options.device. `weights` are of the whole model, on the host;
// `identity` is of them.
//   Unimplemented                as above, of the weights' types.
//   ResourceExhausted, Internal  as Device.
absl::StatusOr<std::unique_ptr<ModelRunner>> MakeDeviceModelRunner(const RunnerOptions& options,
                                                                   ModelSpec spec,
                                                                   ModelWeights weights,
                                                                   std::string_view identity);

}  // namespace lynx::model
