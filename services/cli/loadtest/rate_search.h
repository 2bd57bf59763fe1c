#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lynx::loadtest {

// The rates of a ramp.
struct RampPlan {
  std::vector<double> rates;  // A list, ascending; or
  double low = 0;             // a search between these two.
  double high = 0;
};

// "1,2,4,8" (each of these, ascending) or "LOW:HIGH" (a search), in requests a second.
//   InvalidArgument  says what is wanted, without naming the flag.
absl::StatusOr<RampPlan> ParseRamp(std::string_view text);

// Finds the highest rate that holds, from runs made one after another. A list is run through. A
// search doubles from the lowest rate until one fails or the highest has held, then halves the
// bracket (in ratio) until it is narrower than `precision`. Pure.
//
// Assumes that what holds at a rate holds at lower ones; one unlucky run is taken at its word.
class RateSearch {
 public:
  // `precision` > 0: 0.05 ends a search when the rate that fails is at most 5 % over one that
  // holds.
  RateSearch(RampPlan plan, double precision);

  // The rate to try next; nullopt: over.
  std::optional<double> Next() const;
  // Whether the rate of Next() held.
  void Report(bool holds);

  // The highest rate under all that failed, of those that held. nullopt: none held.
  std::optional<double> highest() const { return highest_; }
  // The lowest that failed. nullopt: none did, so capacity may be higher still.
  std::optional<double> lowest_failed() const { return lowest_failed_; }

 private:
  const RampPlan plan_;
  const double precision_;
  size_t tried_ = 0;
  std::optional<double> highest_;
  std::optional<double> lowest_failed_;
};

}  // namespace lynx::loadtest
