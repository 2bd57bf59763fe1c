#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/model/activation_buffer.h"
#include "common/model/floats.h"
#include "kernels/core/exec_context.h"
#include "kernels/gemm/gemm_args.h"

// Steps that blocks of a layer share.
namespace lynx::model {

// y = norm(x) * gain of rows of gain.size() floats, which follow one another.
absl::Status Normalise(const float* x, const Floats& gain, float epsilon, int64_t rows,
                       ActivationBuffer& y, const kernels::ExecContext& ctx);

// y = w x + bias; rows of y follow one another. An empty bias is none.
kernels::GemmArgs Projection(ActivationBuffer& x, const kernels::Matrix& w, const Floats& bias,
                             int64_t rows, float* y);

}  // namespace lynx::model
