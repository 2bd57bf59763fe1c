#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lynx {

inline constexpr int kMaxJsonDepth = 64;

// Refuses JSON text whose shape alone is an attack, before a JSON library sees it: such libraries
// recurse when they copy, print or destroy a document, so that a few thousand '[' end the process.
//
// Counts nesting and elements (values, an object member counting once) outside strings. It is not
// a parser: text that passes may still be malformed, which the parser then reports.
//
//   InvalidArgument  deeper than `max_depth`, or more than `max_elements`; names the byte.
//
// One pass, no allocation. Thread-safe.
inline absl::Status CheckJsonShape(std::string_view text, int max_depth = kMaxJsonDepth,
                                   int64_t max_elements = 1'000'000) {
  int depth = 0;
  int64_t elements = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        for (++i; i < text.size() && text[i] != '"'; ++i) {
          if (text[i] == '\\') ++i;
        }
        break;
      case '[':
      case '{':
        if (++depth > max_depth) {
          return absl::InvalidArgumentError(
              absl::StrCat("JSON is nested too deep: over ", max_depth, " levels at byte ", i));
        }
        ++elements;
        break;
      case ']':
      case '}':
        if (depth > 0) --depth;
        break;
      case ',':
        ++elements;
        break;
      default:
        break;
    }
    if (elements > max_elements) {
      return absl::InvalidArgumentError(
          absl::StrCat("JSON has too many elements: over ", max_elements, " at byte ", i));
    }
  }
  return absl::OkStatus();
}

}  // namespace lynx
