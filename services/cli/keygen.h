#pragma once

#include <filesystem>
#include <ostream>

#include "absl/status/status.h"

namespace lynx::cli {

// Makes a CURVE key pair (common/rpc/curve_keys.h) in two files: STEM.key, and STEM.key_secret with
// mode 0600. AlreadyExists: one of them is there; neither is touched. Unavailable: cannot be
// written. Both name the file.
absl::Status WriteCurvePair(const std::filesystem::path& stem);

// `lynx keygen`. Returns the exit status of the program.
int RunKeygen(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
