#include "kernels/rope/rope_table.h"

#include <cmath>

#include "common/base/check.h"

namespace lynx::kernels {

RopeTable MakeRopeTable(int64_t positions, int64_t head_dim, double theta) {
  LYNX_CHECK(positions > 0 && head_dim > 0 && head_dim % 2 == 0 && theta > 0);
  const int64_t half = head_dim / 2;
  RopeTable table;
  table.cosines.reserve(static_cast<size_t>(positions * half));
  table.sines.reserve(static_cast<size_t>(positions * half));
  std::vector<float> inv_freq;
  for (int64_t j = 0; j < half; ++j) {
    const double exponent = static_cast<double>(2 * j) / static_cast<double>(head_dim);
    inv_freq.push_back(static_cast<float>(1.0 / std::pow(theta, exponent)));
  }
  for (int64_t p = 0; p < positions; ++p) {
    for (float frequency : inv_freq) {
      const float angle = static_cast<float>(p) * frequency;
      table.cosines.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
      table.sines.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
    }
  }
  return table;
}

}  // namespace lynx::kernels
