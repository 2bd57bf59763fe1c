#pragma once

#include <cstdint>

// What options may be at most: beyond lies a slip of the pen, or memory without bound.
namespace lynx::loadtest {

inline constexpr double kMinRate = 0.001;  // Requests a second.
inline constexpr double kMaxRate = 100'000;
inline constexpr int64_t kMaxRequests = 1'000'000;  // Of one run; some 100 bytes each are kept.
inline constexpr int64_t kMaxOpen = 100'000;

}  // namespace lynx::loadtest
