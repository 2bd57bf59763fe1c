#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lynx::cli {

struct FloatMatrix {
  size_t rows = 0;
  size_t columns = 0;
  std::vector<float> values;  // [rows, columns]
};

// Reads a NumPy .npy file's content: two dimensions, little-endian float32, C order.
//   InvalidArgument  anything else; says what it is and what was wanted.
absl::StatusOr<FloatMatrix> ParseNpy(std::string_view bytes);

}  // namespace lynx::cli
