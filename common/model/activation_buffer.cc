#include "common/model/activation_buffer.h"

#include "kernels/gemm/gemm.h"

namespace lynx::model {

ActivationBuffer::ActivationBuffer(int64_t max_rows, int64_t width, DType dtype,
                                   kernels::Device* device)
    : stride_(kernels::ActivationStride(width, dtype)),
      dtype_(dtype),
      memory_(device, static_cast<size_t>(max_rows * stride_) * SizeOf(dtype)) {}

}  // namespace lynx::model
