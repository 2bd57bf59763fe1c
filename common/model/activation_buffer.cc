#include "common/model/activation_buffer.h"

#include "kernels/gemm/gemm.h"

namespace lynx::model {

ActivationBuffer::ActivationBuffer(int64_t max_rows, int64_t width, DType dtype)
    : stride_(kernels::ActivationStride(width, dtype)), dtype_(dtype) {
  const auto row_bytes = static_cast<size_t>(stride_) * SizeOf(dtype);
  lines_.resize((static_cast<size_t>(max_rows) * row_bytes + sizeof(Line) - 1) / sizeof(Line));
}

}  // namespace lynx::model
