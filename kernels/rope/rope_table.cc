#include "kernels/rope/rope_table.h"

#include <cmath>

#include "common/base/check.h"

namespace lynx::kernels {

RopeTable MakeRopeTable(int64_t positions, const RopeFrequencies& frequencies) {
  LYNX_CHECK(positions > 0);
  RopeTable table;
  const size_t size = static_cast<size_t>(positions) * frequencies.inverse.size();
  table.cosines.reserve(size);
  table.sines.reserve(size);
  const float factor = frequencies.attention_factor;
  for (int64_t p = 0; p < positions; ++p) {
    for (float frequency : frequencies.inverse) {
      const float angle = static_cast<float>(p) * frequency;
      table.cosines.push_back(static_cast<float>(std::cos(static_cast<double>(angle))) * factor);
      table.sines.push_back(static_cast<float>(std::sin(static_cast<double>(angle))) * factor);
    }
  }
  return table;
}

}  // namespace lynx::kernels
