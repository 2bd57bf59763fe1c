#pragma once

#include <cstddef>
#include <functional>

#include "absl/status/status.h"

namespace lynx::collective {

// Runs `body` for ranks 0 to `ranks` - 1 at once, each in a thread of its own, and returns when all
// have: what the lowest rank that failed did.
absl::Status OnEachRank(size_t ranks, const std::function<absl::Status(size_t rank)>& body);

}  // namespace lynx::collective
