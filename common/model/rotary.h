#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "common/model/step_memory.h"
#include "kernels/core/exec_context.h"

namespace lynx::model {

// The rotary position embedding of a model.
class Rotary {
 public:
  // Positions [0, positions) can be rotated, where `device` says (StepMemory).
  Rotary(const ModelSpec& spec, int64_t positions, kernels::Device* device = nullptr);

  // The first rotary_dim elements of each of `heads` heads of the rows of x, in place. Strides in
  // elements, between heads and between rows.
  absl::Status Rotate(std::span<const int32_t> positions, int64_t heads, int64_t head_stride,
                      int64_t stride, float* x, const kernels::ExecContext& ctx);

 private:
  const int64_t rotary_dim_;
  const int64_t positions_;
  // [positions, rotary_dim / 2]
  StepArray<float> cosines_;
  StepArray<float> sines_;
};

}  // namespace lynx::model
