#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/text/internal/jinja/place.h"

namespace lynx::text::jinja {

struct Token {
  enum class Kind {
    kData,  // Text outside of tags, white-space control already applied.
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,  // Escapes resolved.
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  std::string text;
  Place place;
};

// "line N, column M: message", InvalidArgument.
absl::Status TemplateError(const Place& place, std::string_view message);

// Cuts a template as the reference environment does with trim_blocks and lstrip_blocks on, and
// drops one newline at its end.
absl::StatusOr<std::vector<Token>> Lex(std::string_view source);

}  // namespace lynx::text::jinja
