#include "tests/support/rank_group_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/collective/rank_threads.h"
#include "common/collective/thread_communicator.h"

namespace lynx::testing {

absl::StatusOr<std::unique_ptr<RankGroupRunner>> RankGroupRunner::Load(
    model::RunnerOptions options) {
  std::unique_ptr<RankGroupRunner> runner(new RankGroupRunner);
  runner->group_ =
      collective::ThreadCommunicator::MakeGroup(options.layout.world(), absl::Seconds(60));
  runner->ranks_.resize(runner->group_.size());
  LYNX_RETURN_IF_ERROR(
      collective::OnEachRank(runner->group_.size(), [&](size_t rank) -> absl::Status {
        model::RunnerOptions own = options;
        own.ranks = runner->group_[rank].get();
        LYNX_ASSIGN_OR_RETURN(runner->ranks_[rank], model::ModelRunner::Load(own));
        return absl::OkStatus();
      }));
  return runner;
}

absl::Status RankGroupRunner::Step(std::span<const model::SequenceRows> batch,
                                   model::StepObserver* observer) {
  LYNX_RETURN_IF_ERROR(collective::OnEachRank(ranks_.size(), [&](size_t rank) {
    return ranks_[rank]->Step(batch, rank == 0 ? observer : nullptr);
  }));
  for (size_t rank = 1; rank < ranks_.size(); ++rank) {
    const std::span<const float> logits = ranks_[rank]->logits();
    if (logits.empty()) continue;  // Of several replicas all but rank 0.
    if (std::memcmp(logits.data(), ranks_[0]->logits().data(), logits.size_bytes()) != 0) {
      return absl::InternalError(absl::StrCat("rank ", rank, " has other logits than rank 0"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lynx::testing
