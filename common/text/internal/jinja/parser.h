#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/text/internal/jinja/ast.h"

namespace lynx::text::jinja {

// Parses a template. What this implementation lacks (tags, filters, tests, functions, methods) is
// refused here, with the line, so that it shows when a model is loaded and not at a request.
absl::StatusOr<Body> Parse(std::string_view source);

}  // namespace lynx::text::jinja
