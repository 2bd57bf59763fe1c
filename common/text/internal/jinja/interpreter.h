#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/text/internal/jinja/ast.h"

namespace lynx::text::jinja {

struct RenderOptions {
  int64_t max_output_bytes = int64_t{64} << 20;
  // Steps and bytes made; bounds time and memory whatever the template does.
  int64_t max_work = int64_t{256} << 20;
  absl::Time now;  // What strftime_now() sees, in UTC.
};

// Runs a parsed template.
//
//   InvalidArgument  raise_exception() (its message as it is), or an error in the template's use of
//                    the data ("line N, column M: ...").
//   OutOfRange       a limit was reached.
absl::StatusOr<Text> Render(const Body& body, std::vector<std::pair<std::string, Value>> variables,
                            const RenderOptions& options);

}  // namespace lynx::text::jinja
