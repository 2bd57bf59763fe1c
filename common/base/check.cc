#include "common/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace lynx::internal {

void CheckFailed(const char* condition, const std::string& message, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s%s\n", file, line, condition,
               message.empty() ? "" : ": ", message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace lynx::internal
