#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"

// Values of flags that the commands which run an engine themselves have in common.
namespace lynx::cli {

// The values of --batch, in their order.
//   InvalidArgument  none, or one that is not an integer in [1, 4096]; names it.
absl::StatusOr<std::vector<int32_t>> ParseBatches(const std::vector<std::string>& texts);

// "f32" or "bf16", as the flags' choices are.
DType DTypeOf(const std::string& choice);

}  // namespace lynx::cli
