#include "services/cli/loadtest/lengths.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lynx::loadtest {

absl::StatusOr<Lengths> Lengths::Parse(std::string_view text) {
  const auto wanted = absl::InvalidArgumentError(
      absl::StrCat("a number of tokens from 1 to ", kMaxTokens,
                   ", or fixed:N, uniform:LOW,HIGH, normal:MEAN,SD, lognormal:MEDIAN,SIGMA or "
                   "exponential:MEAN"));
  const size_t colon = text.find(':');
  const std::string_view name = colon == std::string_view::npos ? "fixed" : text.substr(0, colon);
  const std::string_view rest = colon == std::string_view::npos ? text : text.substr(colon + 1);
  std::vector<double> numbers;
  for (absl::string_view part : absl::StrSplit(absl::string_view(rest.data(), rest.size()), ',')) {
    double number = 0;
    if (!absl::SimpleAtod(part, &number) || !std::isfinite(number)) return wanted;
    numbers.push_back(number);
  }
  const auto is_count = [](double x) {
    return x >= 1 && x <= static_cast<double>(kMaxTokens) && x == std::floor(x);
  };
  const auto is_centre = [](double x) { return x >= 1 && x <= static_cast<double>(kMaxTokens); };
  const double a = numbers[0];
  if (numbers.size() == 1) {
    if (name == "fixed" && is_count(a)) return Lengths(Kind::kFixed, a, 0);
    if (name == "exponential" && is_centre(a)) return Lengths(Kind::kExponential, a, 0);
    return wanted;
  }
  if (numbers.size() != 2) return wanted;
  const double b = numbers[1];
  if (name == "uniform" && is_count(a) && is_count(b) && a <= b) {
    return Lengths(Kind::kUniform, a, b);
  }
  if (name == "normal" && is_centre(a) && b >= 0 && b <= static_cast<double>(kMaxTokens)) {
    return Lengths(Kind::kNormal, a, b);
  }
  if (name == "lognormal" && is_centre(a) && b >= 0 && b <= 10) {
    return Lengths(Kind::kLognormal, a, b);
  }
  return wanted;
}

int64_t Lengths::Sample(Random& random) const {
  double x = a_;
  switch (kind_) {
    case Kind::kFixed:
      break;
    case Kind::kUniform:
      return static_cast<int64_t>(a_) +
             static_cast<int64_t>(random.Below(static_cast<uint64_t>(b_ - a_) + 1));
    case Kind::kNormal:
      x = a_ + b_ * random.Normal();
      break;
    case Kind::kLognormal:
      x = a_ * std::exp(b_ * random.Normal());
      break;
    case Kind::kExponential:
      x = a_ * random.Exponential();
      break;
  }
  return static_cast<int64_t>(std::llround(std::clamp(x, 1.0, static_cast<double>(kMaxTokens))));
}

}  // namespace lynx::loadtest
