#include "common/node/rank_processes.h"

#include <signal.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace lynx::node {

absl::StatusOr<std::vector<RankCpus>> DealCpus(int32_t ranks, int32_t threads,
                                               std::span<const int32_t> pinned,
                                               std::span<const int32_t> allowed, int32_t usable) {
  const int32_t least = std::max(1, threads);
  if (!pinned.empty() && int64_t{ranks} * least > static_cast<int64_t>(pinned.size())) {
    return absl::InvalidArgumentError(absl::StrCat("--cpus has ", pinned.size(), " CPUs for ",
                                                   ranks, " ranks of ", least, " threads or more"));
  }
  const int32_t share = std::max(1, usable / ranks);
  std::vector<RankCpus> all(static_cast<size_t>(ranks));
  std::span<const int32_t> own = pinned;
  const int32_t wanted = threads > 0 ? threads : share;
  if (own.empty() && wanted >= 2 && static_cast<size_t>(usable) == allowed.size() &&
      int64_t{wanted} * ranks <= usable) {
    own = allowed.first(static_cast<size_t>(wanted * ranks));
  }
  const size_t each = own.size() / all.size();
  for (size_t rank = 0; rank < all.size(); ++rank) {
    all[rank].threads = threads > 0 || !own.empty() ? threads : share;
    const auto cpus = own.subspan(rank * each, each);
    all[rank].cpus.assign(cpus.begin(), cpus.end());
  }
  return all;
}

absl::StatusOr<RankProcesses> RankProcesses::Start(const config::FlagSet& flags,
                                                   const std::string& leader,
                                                   std::span<const RankCpus> cpus) {
  // Each rank's own, or the leader's alone.
  static const std::set<std::string> kOwn = {"rank", "leader",  "threads", "cpus",
                                             "http", "control", "announce"};
  std::vector<std::string> same = {ProgramPath()};
  for (const auto& [name, value] : flags.Values()) {
    if (!kOwn.contains(name) && !value.empty())
      same.push_back(absl::StrCat("--", name, "=", value));
  }
  RankProcesses ranks;
  for (size_t rank = 1; rank < cpus.size(); ++rank) {
    std::vector<std::string> argv = same;
    argv.insert(argv.end(), {absl::StrCat("--rank=", rank), absl::StrCat("--leader=", leader),
                             absl::StrCat("--threads=", cpus[rank].threads), "--http=127.0.0.1:0"});
    if (!cpus[rank].cpus.empty()) {
      argv.push_back(absl::StrCat("--cpus=", absl::StrJoin(cpus[rank].cpus, ",")));
    }
    // Killed: one that stands still would not end otherwise.
    LYNX_ASSIGN_OR_RETURN(ChildProcess child,
                          ChildProcess::Start(absl::StrCat("rank ", rank), argv, "", SIGKILL));
    ranks.children_.push_back(std::move(child));
  }
  return ranks;
}

absl::Status RankProcesses::Check() {
  for (ChildProcess& child : children_) {
    if (const auto ended = child.Ended()) {
      return absl::UnavailableError(absl::StrCat(child.name(), " has ended: ", *ended));
    }
  }
  return absl::OkStatus();
}

void RankProcesses::Stop(absl::Duration grace) {
  const absl::Time deadline = SteadyClock::Instance().Now() + grace;
  for (ChildProcess& child : children_) {
    child.Stop(std::max(deadline - SteadyClock::Instance().Now(), absl::ZeroDuration()));
  }
}

}  // namespace lynx::node
