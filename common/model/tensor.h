#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/base/dtype.h"

namespace lynx::model {

// A dense row-major tensor that somebody else keeps in memory, aligned to its element.
struct Tensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// The weights of a model by the names of its family.
using TensorMap = std::map<std::string, Tensor>;

}  // namespace lynx::model
