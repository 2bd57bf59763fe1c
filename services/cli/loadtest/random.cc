#include "services/cli/loadtest/random.h"

#include <cmath>
#include <numbers>

namespace lynx::loadtest {
namespace {

__extension__ using Wide = unsigned __int128;

}  // namespace

Random::Random(uint64_t seed) : engine_(seed) {}

uint64_t Random::Below(uint64_t bound) {
  // The bias is bound / 2^64: nothing that a load could show.
  return static_cast<uint64_t>((static_cast<Wide>(engine_()) * bound) >> 64);
}

double Random::Uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

double Random::Exponential() { return -std::log1p(-Uniform()); }

double Random::Normal() {
  const double radius = std::sqrt(2 * Exponential());
  return radius * std::cos(2 * std::numbers::pi * Uniform());
}

// Marsaglia and Tsang, "A simple method for generating gamma variables" (2000).
double Random::Gamma(double shape) {
  if (shape < 1) {
    const double boost = std::pow(1 - Uniform(), 1 / shape);
    return Gamma(shape + 1) * boost;
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = Normal();
    const double v = std::pow(1 + c * x, 3);
    if (v <= 0) continue;
    if (std::log1p(-Uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

uint64_t MixSeed(uint64_t seed, uint64_t purpose) {
  // The finaliser of SplitMix64.
  uint64_t x = seed + 0x9E3779B97F4A7C15u * (purpose + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace lynx::loadtest
