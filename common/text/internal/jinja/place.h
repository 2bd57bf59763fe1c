#pragma once

namespace lynx::text::jinja {

// In the source of a template, for messages; both from 1, columns in characters.
struct Place {
  int line = 1;
  int column = 1;
};

}  // namespace lynx::text::jinja
