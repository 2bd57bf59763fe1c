#pragma once

#include <cstdint>
#include <vector>

#include "kernels/rope/rope_scaling.h"  // IWYU pragma: export

namespace lynx::kernels {

// Cosines and sines for RopeArgs, times the attention factor. Angles are products in float32, as
// the model families define them; the functions of the angle are then correctly rounded in all but
// rare cases.
struct RopeTable {
  std::vector<float> cosines;  // [positions, rotary_dim / 2]
  std::vector<float> sines;
};

// positions > 0.
RopeTable MakeRopeTable(int64_t positions, const RopeFrequencies& frequencies);

}  // namespace lynx::kernels
