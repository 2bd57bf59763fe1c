#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace lynx::cli {

// Bytes a second of UCX's own benchmark, `ucx_perftest -t ucp_am_bw`, between two processes of this
// machine: `messages` active messages of `message_bytes`, all from one buffer into another.
// `transports` as UCX_TLS. Its files go into the folder `scratch`.
//   NotFound     the program is not installed (Debian's ucx-utils).
//   Unavailable  it failed or said nothing; DeadlineExceeded: it took too long.
absl::StatusOr<double> MeasureUcxPerftest(const std::string& transports, int64_t message_bytes,
                                          int64_t messages, const std::string& scratch);

// Of what the program prints with -f -v. Unavailable where there is no figure.
absl::StatusOr<double> ReadUcxPerftest(const std::string& text);

}  // namespace lynx::cli
