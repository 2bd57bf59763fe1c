#pragma once

#include <cstdint>

namespace lynx::moe {

// How the experts of a decode step are chosen, with its parameters: a value, cheap to copy.
struct Policy {
  enum class Kind : uint8_t {
    kExact,  // Every row has its own top-k.
  };
  Kind kind = Kind::kExact;
  friend bool operator==(const Policy&, const Policy&) = default;
};

}  // namespace lynx::moe
