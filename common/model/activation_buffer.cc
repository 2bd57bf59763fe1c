#include "common/model/activation_buffer.h"

#include <algorithm>

#include "kernels/core/float_convert.h"
#include "kernels/gemm/gemm.h"

namespace lynx::model {

ActivationBuffer::ActivationBuffer(int64_t max_rows, int64_t width, DType dtype)
    : width_(width), stride_(kernels::ActivationStride(width, dtype)), dtype_(dtype) {
  const auto row_bytes = static_cast<size_t>(stride_) * SizeOf(dtype);
  lines_.resize((static_cast<size_t>(max_rows) * row_bytes + sizeof(Line) - 1) / sizeof(Line));
}

void ActivationBuffer::Take(const float* from, int64_t rows, int64_t from_stride) {
  for (int64_t r = 0; r < rows; ++r, from += from_stride) {
    if (dtype_ == DType::kF32) {
      std::copy_n(from, width_, reinterpret_cast<float*>(lines_.data()) + r * stride_);
    } else {
      std::transform(from, from + width_, reinterpret_cast<uint16_t*>(lines_.data()) + r * stride_,
                     kernels::F32ToBf16);
    }
  }
}

}  // namespace lynx::model
