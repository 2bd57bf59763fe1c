#pragma once

#include <cstdint>

#include "common/base/dtype.h"
#include "common/model/step_memory.h"

namespace lynx::model {

// Rows of activations in the compute type, as matrix products take them: bf16 rows go on with
// zeros.
class ActivationBuffer {
 public:
  // dtype: kF32 or kBf16. Where `device` says, as StepMemory.
  ActivationBuffer(int64_t max_rows, int64_t width, DType dtype, kernels::Device* device = nullptr);

  // [max_rows, width], rows stride() elements apart. What follows a row stays zero.
  void* data() { return memory_.data(); }
  int64_t stride() const { return stride_; }  // Elements between rows.
  DType dtype() const { return dtype_; }

 private:
  const int64_t stride_;
  const DType dtype_;
  StepMemory memory_;
};

}  // namespace lynx::model
