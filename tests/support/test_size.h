#pragma once

#include <cstdlib>
#include <string_view>

namespace lynx::testing {

// How much a test with an open-ended number of rounds does: few under a sanitizer (LYNX_SHORT=1,
// set by those presets), many on request (LYNX_LONG=1, ./test.sh --long).
template <typename T>
T ForTestSize(T few, T usual, T many) {
  const auto is_set = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && std::string_view(value) == "1";
  };
  if (is_set("LYNX_LONG")) return many;
  return is_set("LYNX_SHORT") ? few : usual;
}

}  // namespace lynx::testing
