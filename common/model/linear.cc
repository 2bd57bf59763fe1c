#include "common/model/linear.h"

#include "common/model/model_weights.h"
#include "kernels/norm/rms_norm.h"

namespace lynx::model {

absl::Status Normalise(const float* x, const Floats& gain, float epsilon, int64_t rows,
                       ActivationBuffer& y, const kernels::ExecContext& ctx) {
  const auto width = static_cast<int64_t>(gain.size());
  return kernels::RmsNorm({.x = x,
                           .gain = gain.data(),
                           .y = y.data(),
                           .rows = rows,
                           .hidden = width,
                           .x_stride = width,
                           .y_stride = y.stride(),
                           .epsilon = epsilon,
                           .y_dtype = y.dtype()},
                          ctx);
}

kernels::GemmArgs Projection(ActivationBuffer& x, const kernels::Matrix& w, const Floats& bias,
                             int64_t rows, float* y) {
  return {.x = x.data(),
          .w = w,
          .y = y,
          .rows = rows,
          .x_stride = x.stride(),
          .y_stride = w.out,
          .x_dtype = x.dtype(),
          .bias = DataOrNull(bias)};
}

}  // namespace lynx::model
