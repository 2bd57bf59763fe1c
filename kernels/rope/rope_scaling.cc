#include "kernels/rope/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lynx::kernels {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// Long waves are stretched, short ones are kept, those between change over.
double Llama3(double frequency, const RopeScaling& scaling) {
  const double turns = static_cast<double>(scaling.original_positions) * frequency / kTurn;
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  if (turns > scaling.high_freq_factor) return frequency;
  const double band = scaling.high_freq_factor - scaling.low_freq_factor;
  if (band == 0) return frequency;
  const double kept = (turns - scaling.low_freq_factor) / band;
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

// The dimensions over which yarn changes from kept frequencies to stretched ones.
struct Ramp {
  double low;
  double high;
};

Ramp YarnRamp(int64_t rotary_dim, double theta, const RopeScaling& scaling) {
  const auto dims = static_cast<double>(rotary_dim);
  // Where a wave makes that many turns over the original positions.
  auto dimension = [&](double turns) {
    return dims * std::log(static_cast<double>(scaling.original_positions) / (turns * kTurn)) /
           (2 * std::log(theta));
  };
  Ramp ramp = {dimension(scaling.beta_fast), dimension(scaling.beta_slow)};
  if (scaling.truncate) ramp = {std::floor(ramp.low), std::ceil(ramp.high)};
  ramp = {std::max(ramp.low, 0.0), std::min(ramp.high, dims - 1)};
  if (ramp.low == ramp.high) ramp.high += 0.001;
  return ramp;
}

double YarnAttentionFactor(const RopeScaling& scaling) {
  if (scaling.attention_factor != 0) return scaling.attention_factor;
  if (scaling.mscale != 0 && scaling.mscale_all_dim != 0) {
    return YarnMscale(scaling.factor, scaling.mscale) /
           YarnMscale(scaling.factor, scaling.mscale_all_dim);
  }
  return YarnMscale(scaling.factor, 1);
}

}  // namespace

double YarnMscale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

absl::Status CheckRopeScaling(int64_t rotary_dim, double theta, const RopeScaling& scaling) {
  auto wrong = [](std::string_view name, auto value, std::string_view want) {
    return absl::InvalidArgumentError(
        absl::StrCat("RoPE: ", std::string(name), " is ", value, ", must be ", std::string(want)));
  };
  auto positive = [](double value) { return value > 0 && std::isfinite(value); };
  if (rotary_dim <= 0 || rotary_dim % 2 != 0) {
    return wrong("rotary_dim", rotary_dim, "positive and even");
  }
  if (!positive(theta)) return wrong("rope_theta", theta, "positive");
  if (scaling.kind == RopeScalingKind::kNone) return absl::OkStatus();
  if (!positive(scaling.factor)) return wrong("factor", scaling.factor, "positive");
  if (scaling.kind == RopeScalingKind::kLinear) return absl::OkStatus();
  if (scaling.original_positions <= 0) {
    return wrong("original_positions", scaling.original_positions, "positive");
  }
  if (scaling.kind == RopeScalingKind::kLlama3) {
    if (!positive(scaling.low_freq_factor)) {
      return wrong("low_freq_factor", scaling.low_freq_factor, "positive");
    }
    if (!(scaling.high_freq_factor >= scaling.low_freq_factor) ||
        !std::isfinite(scaling.high_freq_factor)) {
      return wrong("high_freq_factor", scaling.high_freq_factor,
                   absl::StrCat("at least low_freq_factor, ", scaling.low_freq_factor));
    }
    return absl::OkStatus();
  }
  if (!(theta > 1)) return wrong("rope_theta", theta, "above 1 for yarn");
  if (!positive(scaling.beta_fast)) return wrong("beta_fast", scaling.beta_fast, "positive");
  if (!positive(scaling.beta_slow)) return wrong("beta_slow", scaling.beta_slow, "positive");
  const double attention_factor = YarnAttentionFactor(scaling);
  if (!positive(attention_factor)) return wrong("attention_factor", attention_factor, "positive");
  return absl::OkStatus();
}

RopeFrequencies MakeRopeFrequencies(int64_t rotary_dim, double theta, const RopeScaling& scaling) {
  const absl::Status status = CheckRopeScaling(rotary_dim, theta, scaling);
  LYNX_CHECK_MSG(status.ok(), status.ToString());
  const bool yarn = scaling.kind == RopeScalingKind::kYarn;
  const Ramp ramp = yarn ? YarnRamp(rotary_dim, theta, scaling) : Ramp{};
  auto scaled = [&](int64_t j, double frequency) {
    switch (scaling.kind) {
      case RopeScalingKind::kNone:
        break;
      case RopeScalingKind::kLinear:
        return frequency / scaling.factor;
      case RopeScalingKind::kLlama3:
        return Llama3(frequency, scaling);
      case RopeScalingKind::kYarn: {
        const double at = (static_cast<double>(j) - ramp.low) / (ramp.high - ramp.low);
        const double stretched = std::clamp(at, 0.0, 1.0);
        return frequency / scaling.factor * stretched + frequency * (1 - stretched);
      }
    }
    return frequency;
  };
  RopeFrequencies frequencies;
  for (int64_t j = 0; j < rotary_dim / 2; ++j) {
    const double exponent = static_cast<double>(2 * j) / static_cast<double>(rotary_dim);
    frequencies.inverse.push_back(static_cast<float>(scaled(j, 1.0 / std::pow(theta, exponent))));
  }
  if (yarn) frequencies.attention_factor = static_cast<float>(YarnAttentionFactor(scaling));
  return frequencies;
}

}  // namespace lynx::kernels
