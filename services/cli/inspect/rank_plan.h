#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/shard_plan.h"
#include "services/cli/inspect/model_inspection.h"

namespace lynx::cli {

// What one rank of a node holds.
struct PlannedRank {
  model::RankShard shard;
  int64_t weight_bytes = 0;
  int64_t kv_token_bytes = 0;  // In bf16.
};

struct RankPlan {
  model::ParallelLayout layout;
  std::vector<PlannedRank> ranks;
};

// `inspection` has a spec, `given` is as model::CompleteLayout() takes it. Where files hold weights
// of several types, bytes are shared out by the numbers of parameters. InvalidArgument: as
// model::CheckLayout().
absl::StatusOr<RankPlan> PlanRanks(const ModelInspection& inspection,
                                   const model::ParallelLayout& given);

}  // namespace lynx::cli
