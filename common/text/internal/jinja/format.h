#pragma once

#include "absl/status/statusor.h"
#include "common/text/internal/jinja/functions.h"
#include "common/text/internal/jinja/text.h"
#include "common/text/internal/jinja/value.h"

namespace lynx::text::jinja {

// Python's `format % values`: values is a tuple, a mapping for %(name)s, or one value. Covers %d,
// %i, %s, %r, %x, %X, %o, %f, %e, %g and %% with flags, width and precision.
absl::StatusOr<Text> FormatPercent(const Text& format, const Value& values, Budget& budget);

// Fills `text` with `fill` (one character) up to `width` characters: behind it for -1, before it
// for 1, and on both sides for 0, as Python's str.center() does.
absl::StatusOr<Text> Pad(const Text& text, int64_t width, std::string_view fill, int side,
                         Budget& budget);

}  // namespace lynx::text::jinja
