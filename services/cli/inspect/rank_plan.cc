#include "services/cli/inspect/rank_plan.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/kv/kv_layout.h"

namespace lynx::cli {
namespace {

int64_t ParametersOf(const model::ModelSpec& spec, const model::RankShard& shard) {
  const int64_t own = CountParameters(model::SpecOfShard(spec, shard)).total;
  if (!spec.has_moe()) return own;
  // Routers rank all experts.
  const int64_t moe_layers =
      std::count(spec.feed_forward.begin(), spec.feed_forward.end(), model::FeedForwardKind::kMoe);
  const int64_t of_expert =
      spec.hidden_size + (spec.router_bias ? 1 : 0) + (spec.ranking_bias ? 1 : 0);
  return own + moe_layers * (spec.experts - std::ssize(shard.experts)) * of_expert;
}

}  // namespace

absl::StatusOr<RankPlan> PlanRanks(const ModelInspection& inspection,
                                   const model::ParallelLayout& given) {
  const model::ModelSpec& spec = *inspection.spec;
  LYNX_ASSIGN_OR_RETURN(const model::ParallelLayout layout, model::CompleteLayout(spec, given));
  const double parameter_bytes = static_cast<double>(inspection.weight_bytes) /
                                 static_cast<double>(inspection.parameters.total);
  RankPlan plan{.layout = layout, .ranks = {}};
  for (int32_t rank = 0; rank < layout.world(); ++rank) {
    const model::RankShard shard = model::ShardOf(spec, layout, rank);
    const kv::KvLayout kv = model::KvLayoutOf(model::SpecOfShard(spec, shard), DType::kBf16);
    plan.ranks.push_back(
        {.shard = shard,
         .weight_bytes =
             static_cast<int64_t>(parameter_bytes * static_cast<double>(ParametersOf(spec, shard))),
         .kv_token_bytes = kv.BlockBytes() * kv.groups.count() / kv::kBlockTokens});
  }
  return plan;
}

}  // namespace lynx::cli
