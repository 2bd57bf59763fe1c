#pragma once

#include <cstddef>

namespace lynx::text {

// Bytes [begin, end) of some text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;

  friend bool operator==(const TextRange&, const TextRange&) = default;
};

}  // namespace lynx::text
