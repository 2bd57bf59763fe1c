#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/dtype.h"

namespace lynx::model {

// Rows of activations in the compute type, as matrix products take them: bf16 rows go on with
// zeros.
class ActivationBuffer {
 public:
  // dtype: kF32 or kBf16
  ActivationBuffer(int64_t max_rows, int64_t width, DType dtype);

  // [max_rows, width], rows stride() elements apart. What follows a row stays zero.
  void* data() { return lines_.data(); }
  int64_t stride() const { return stride_; }  // Elements between rows.
  DType dtype() const { return dtype_; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  const int64_t stride_;
  const DType dtype_;
  std::vector<Line> lines_;
};

}  // namespace lynx::model
