#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "services/router/placement/placement_policy.h"

namespace lynx::router {

// What --placement takes.
const std::vector<std::string>& PlacementNames();

// One of these; aborts on another. `seed` should differ between routers.
std::unique_ptr<PlacementPolicy> MakePlacement(const std::string& name, uint64_t seed);

}  // namespace lynx::router
