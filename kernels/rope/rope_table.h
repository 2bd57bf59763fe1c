#pragma once

#include <cstdint>
#include <vector>

namespace lynx::kernels {

// Cosines and sines for RopeArgs. Frequencies and angles are products in float32, as the model
// families define them; the functions of the angle are then correctly rounded in all but rare
// cases.
struct RopeTable {
  std::vector<float> cosines;  // [positions, head_dim / 2]
  std::vector<float> sines;
};

// positions > 0, head_dim > 0 and even, theta > 0.
RopeTable MakeRopeTable(int64_t positions, int64_t head_dim, double theta);

}  // namespace lynx::kernels
