#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace lynx::kernels {

enum class RopeScalingKind : uint8_t { kNone, kLinear, kLlama3, kYarn };

// How a model stretches its positions beyond those it was first trained on, by the names of its
// config.json. Each kind reads only the fields named with it.
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1;               // Linear, llama3, yarn: > 0.
  int64_t original_positions = 0;  // Llama3, yarn: > 0.
  double low_freq_factor = 1;      // Llama3: in (0, high_freq_factor].
  double high_freq_factor = 4;     // Llama3.
  double beta_fast = 32;           // Yarn: > 0.
  double beta_slow = 1;            // Yarn: > 0.
  double mscale = 0;               // Yarn; 0: not given.
  double mscale_all_dim = 0;       // Yarn; 0: not given.
  double attention_factor = 0;     // Yarn; 0: not given.
  bool truncate = true;            // Yarn: the ramp begins and ends at whole dimensions.

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

struct RopeFrequencies {
  std::vector<float> inverse;     // [rotary_dim / 2], radians per position
  float attention_factor = 1.0f;  // Multiplies cosines and sines.
};

// InvalidArgument, naming the field, unless MakeRopeFrequencies takes these.
absl::Status CheckRopeScaling(int64_t rotary_dim, double theta, const RopeScaling& scaling);

// rotary_dim > 0 and even; theta > 0, for yarn > 1. Computed in double precision and rounded once.
RopeFrequencies MakeRopeFrequencies(int64_t rotary_dim, double theta, const RopeScaling& scaling);

// What yarn multiplies attention by at `factor`; 1 where it does not stretch. Models whose scores
// are to be scaled by it, too, square it.
double YarnMscale(double factor, double mscale);

}  // namespace lynx::kernels
