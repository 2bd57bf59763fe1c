#pragma once

#include <ostream>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/config/flag_set.h"

namespace lynx::cli {

// What every mode of `lynx bench` does: reads the arguments, of which argv[1] is the mode, by
// `flags`, then calls `run`, and says to `err` what went wrong. Returns the exit status: 0, 2 where
// arguments are wrong or `run` finds them so (InvalidArgument), or 1.
int RunMode(config::FlagSet& flags, int argc, const char* const* argv, std::ostream& err,
            absl::FunctionRef<absl::Status()> run);

// For modes that run parts of a cluster in this process.
void LogWarningsOnly();

}  // namespace lynx::cli
