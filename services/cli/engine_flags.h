#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

// Values of flags that the commands which run an engine themselves have in common.
namespace lynx::cli {

// The values of a flag that takes a list of counts, in their order. `flag` is its name with dashes.
//   InvalidArgument  none, or one that is not an integer in [least, most]; names it.
absl::StatusOr<std::vector<int32_t>> ParseCounts(const std::string& flag,
                                                 const std::vector<std::string>& texts,
                                                 int32_t most, int32_t least = 1);

// The values of --batch: up to 4096.
absl::StatusOr<std::vector<int32_t>> ParseBatches(const std::vector<std::string>& texts);

}  // namespace lynx::cli
