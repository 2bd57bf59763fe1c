#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "kernels/core/exec_context.h"
#include "kernels/rope/rope_table.h"

namespace lynx::model {

// The rotary position embedding of a model.
class Rotary {
 public:
  // Positions [0, positions) can be rotated.
  Rotary(const ModelSpec& spec, int64_t positions);

  // The first rotary_dim elements of each of `heads` heads of the rows of x, in place. Strides in
  // elements, between heads and between rows.
  absl::Status Rotate(std::span<const int32_t> positions, int64_t heads, int64_t head_stride,
                      int64_t stride, float* x, const kernels::ExecContext& ctx) const;

 private:
  const int64_t rotary_dim_;
  const int64_t positions_;
  const kernels::RopeTable table_;
};

}  // namespace lynx::model
