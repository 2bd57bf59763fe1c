#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/child_process.h"
#include "common/config/flag_set.h"

namespace lynx::node {

// What one rank computes on.
struct RankCpus {
  int32_t threads = 0;        // As --threads.
  std::vector<int32_t> cpus;  // Empty: not pinned.
};

// Deals CPUs out to `ranks` ranks of one host, none to two of them. `pinned` are those of --cpus;
// when empty, ranks get cores of their own where all of `allowed` may be used at once (`usable`)
// and each gets two or more, and otherwise only their share of threads.
//   InvalidArgument  more ranks, or ranks times `threads`, than CPUs in `pinned`.
absl::StatusOr<std::vector<RankCpus>> DealCpus(int32_t ranks, int32_t threads,
                                               std::span<const int32_t> pinned,
                                               std::span<const int32_t> allowed, int32_t usable);

// The further ranks of a node that starts them itself: this program again, with the same flags.
// They are killed with the process that started them. Used by one thread.
class RankProcesses {
 public:
  // `cpus` is of all ranks, that of this process included; `leader` is where it listens. Fails as
  // ChildProcess::Start.
  static absl::StatusOr<RankProcesses> Start(const config::FlagSet& flags,
                                             const std::string& leader,
                                             std::span<const RankCpus> cpus);
  // Unavailable: one has ended; says which and how.
  absl::Status Check();
  // Waits for their end, up to `grace`, then kills.
  void Stop(absl::Duration grace);

 private:
  std::vector<ChildProcess> children_;
};

}  // namespace lynx::node
