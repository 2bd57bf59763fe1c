#pragma once

#include <cstdint>
#include <random>

namespace lynx::loadtest {

// Seeded draws that are the same on every machine: the standard library's engines are specified
// bit for bit, its distributions are not. Not thread-safe.
class Random {
 public:
  explicit Random(uint64_t seed);

  // [0, bound), bound > 0.
  uint64_t Below(uint64_t bound);
  // [0, 1).
  double Uniform();
  // Mean 1.
  double Exponential();
  // Mean 0, standard deviation 1.
  double Normal();
  // Mean `shape`, scale 1. shape > 0.
  double Gamma(double shape);

 private:
  std::mt19937_64 engine_;
};

// A seed for one purpose among many that share `seed`, so that more draws for one (longer prompts,
// say) do not move another (arrivals).
uint64_t MixSeed(uint64_t seed, uint64_t purpose);

}  // namespace lynx::loadtest
