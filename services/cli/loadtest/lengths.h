#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "services/cli/loadtest/random.h"

namespace lynx::loadtest {

inline constexpr int64_t kMaxTokens = 10'000'000;

// A distribution of lengths in tokens.
class Lengths {
 public:
  Lengths() = default;  // Always 1.

  // "512" or "fixed:512"; "uniform:100,900" (both inclusive); "normal:MEAN,SD";
  // "lognormal:MEDIAN,S" (S is the standard deviation of the logarithm); "exponential:MEAN".
  // Samples of the last three are rounded, and clamped to [1, kMaxTokens].
  //   InvalidArgument  anything else; says what is wanted, without naming the flag.
  static absl::StatusOr<Lengths> Parse(std::string_view text);

  int64_t Sample(Random& random) const;

 private:
  enum class Kind { kFixed, kUniform, kNormal, kLognormal, kExponential };
  Lengths(Kind kind, double a, double b) : kind_(kind), a_(a), b_(b) {}

  Kind kind_ = Kind::kFixed;
  double a_ = 1;
  double b_ = 0;
};

}  // namespace lynx::loadtest
