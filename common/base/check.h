#pragma once

#include <string>

#include "absl/status/status.h"

// LYNX_CHECK(condition) aborts when the condition is false, in every build type. It is for broken
// invariants of our own, never for what a user, a peer or the network can cause: those are
// absl::Status. The orchestrator restarts the process; the failure model covers it.
#define LYNX_CHECK(condition)                                              \
  (__builtin_expect(!(condition), 0)                                       \
       ? ::lynx::internal::CheckFailed(#condition, "", __FILE__, __LINE__) \
       : static_cast<void>(0))

// As LYNX_CHECK, with a message (a std::string expression, evaluated only on failure).
#define LYNX_CHECK_MSG(condition, message)                                        \
  (__builtin_expect(!(condition), 0)                                              \
       ? ::lynx::internal::CheckFailed(#condition, (message), __FILE__, __LINE__) \
       : static_cast<void>(0))

namespace lynx::internal {
[[noreturn]] void CheckFailed(const char* condition, const std::string& message, const char* file,
                              int line);
}  // namespace lynx::internal
