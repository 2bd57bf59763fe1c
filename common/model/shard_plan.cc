#include "common/model/shard_plan.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "kernels/moe/order_free_sum.h"

namespace lynx::model {
namespace {

// Parts differ by one at most.
ShardRange Part(int32_t total, int32_t parts, int32_t index) {
  const auto at = [&](int64_t i) { return static_cast<int32_t>(total * i / parts); };
  return {at(index), at(index + 1)};
}

absl::Status CheckColumns(std::string_view name, int32_t columns, std::string_view width_name,
                          int32_t width) {
  if (columns % width == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(name), " ", columns,
                                                 " cannot be split over ", std::string(width_name),
                                                 " ", width));
}

absl::Status CheckSpareSlots(const ModelSpec& spec, const ParallelLayout& layout) {
  if (layout.ep_spare > 0 && layout.ep == 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ep-spare ", layout.ep_spare,
        " needs an ep of 2 or more: with ep 1 every rank has its columns of all experts"));
  }
  if (layout.ep_spare > 0 && layout.dp > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("ep-spare ", layout.ep_spare, " with dp ", layout.dp,
                     ": what replicas send each other is added by rank, not by expert"));
  }
  // A copy of an expert that the part has already would be of no use.
  const int32_t most = (layout.ep - 1) * (spec.experts / layout.ep);
  if (layout.ep_spare < 0 || layout.ep_spare > most) {
    return absl::InvalidArgumentError(absl::StrCat("ep-spare ", layout.ep_spare, " is not in [0, ",
                                                   most, "], of ", spec.experts, " experts in ",
                                                   layout.ep, " parts"));
  }
  const int32_t summands = spec.experts_per_token * layout.expert_tp() +
                           (spec.shared_intermediate_size > 0 ? layout.tp : 0);
  if (layout.ep_spare > 0 && summands > kernels::kMostSummands) {
    return absl::InvalidArgumentError(
        absl::StrCat("ep-spare ", layout.ep_spare, ": a row is the sum of ", summands,
                     " parts of experts, and of ", kernels::kMostSummands, " at most"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParallelLayout> CompleteLayout(const ModelSpec& spec, ParallelLayout layout) {
  if (layout.ep == 0) {
    layout.ep = layout.dp > 1 && spec.has_moe() ? std::min(layout.world(), kMaxRanks) : 1;
  }
  LYNX_RETURN_IF_ERROR(CheckLayout(spec, layout));
  return layout;
}

absl::Status CheckLayout(const ModelSpec& spec, const ParallelLayout& layout) {
  for (const auto& [name, width] :
       {std::pair{"tp", layout.tp}, std::pair{"dp", layout.dp}, std::pair{"ep", layout.ep}}) {
    if (width < 1 || width > kMaxRanks) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " ", width, " is not in [1, ", kMaxRanks, "]"));
    }
  }
  if (layout.world() > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat("tp ", layout.tp, " times dp ", layout.dp,
                                                   " is more than ", kMaxRanks, " ranks"));
  }
  if (layout.world() % layout.ep != 0) {
    return absl::InvalidArgumentError(absl::StrCat("ep ", layout.ep, " does not divide the ",
                                                   layout.world(), " ranks of tp ", layout.tp,
                                                   " times dp ", layout.dp));
  }
  const int32_t tp = layout.tp;
  if (spec.query_heads % tp != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.query_heads, " query heads cannot be split over tp ", tp));
  }
  if (spec.kv_heads % tp != 0 && tp % spec.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(spec.kv_heads,
                                                   " KV heads can neither be split over tp ", tp,
                                                   " nor held by equally many ranks each"));
  }
  if (tp > spec.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("a vocabulary of ", spec.vocab_size, " cannot be split over tp ", tp));
  }
  LYNX_RETURN_IF_ERROR(
      CheckColumns("the dense feed-forward's width", spec.dense_intermediate_size, "tp", tp));
  LYNX_RETURN_IF_ERROR(
      CheckColumns("the shared experts' width", spec.shared_intermediate_size, "tp", tp));
  if (!spec.has_moe()) {
    if (layout.ep == 1 && layout.ep_spare == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("ep ", layout.ep,
                                                   layout.ep_spare > 0 ? " with spare slots" : "",
                                                   ", but the model has no experts"));
  }
  if (layout.ep > spec.experts) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.experts, " experts cannot be split over ep ", layout.ep));
  }
  LYNX_RETURN_IF_ERROR(CheckSpareSlots(spec, layout));
  return CheckColumns("an expert's width", spec.expert_intermediate_size, "ranks",
                      layout.expert_tp());
}

RankShard ShardOf(const ModelSpec& spec, const ParallelLayout& layout, int32_t rank) {
  LYNX_CHECK(rank >= 0 && rank < layout.world());
  const int32_t tp = layout.tp;
  const int32_t index = rank % tp;
  RankShard shard;
  shard.query_heads = Part(spec.query_heads, tp, index);
  const auto kv_head = [&](int32_t query_head) {
    return query_head / (spec.query_heads / spec.kv_heads);
  };
  shard.kv_heads = {kv_head(shard.query_heads.begin), kv_head(shard.query_heads.end - 1) + 1};
  shard.vocabulary = Part(spec.vocab_size, tp, index);
  shard.dense_columns = Part(spec.dense_intermediate_size, tp, index);
  shard.shared_columns = Part(spec.shared_intermediate_size, tp, index);
  const int32_t expert_tp = layout.expert_tp();
  shard.expert_columns = Part(spec.expert_intermediate_size, expert_tp, rank % expert_tp);
  shard.experts = FirstExperts(spec.experts, layout)[static_cast<size_t>(rank / expert_tp)];
  return shard;
}

std::vector<std::vector<int32_t>> FirstExperts(int32_t experts, const ParallelLayout& layout) {
  std::vector<std::vector<int32_t>> slots(static_cast<size_t>(layout.ep));
  for (int32_t part = 0; part < layout.ep; ++part) {
    const ShardRange own = Part(experts, layout.ep, part);
    for (int32_t e = own.begin; e < own.end; ++e) slots[static_cast<size_t>(part)].push_back(e);
    for (int32_t spare = 0; spare < layout.ep_spare; ++spare) {
      const int32_t others = layout.ep - 1;
      const ShardRange other = Part(experts, layout.ep, (part + 1 + spare % others) % layout.ep);
      // Beginning where no other part does, so that not all copy the same experts.
      slots[static_cast<size_t>(part)].push_back(other.begin +
                                                 (part + spare / others) % other.size());
    }
  }
  return slots;
}

ModelSpec SpecOfShard(const ModelSpec& spec, const RankShard& shard) {
  ModelSpec local = spec;
  local.query_heads = shard.query_heads.size();
  local.kv_heads = shard.kv_heads.size();
  local.vocab_size = shard.vocabulary.size();
  local.dense_intermediate_size = shard.dense_columns.size();
  local.shared_intermediate_size = shard.shared_columns.size();
  local.expert_intermediate_size = shard.expert_columns.size();
  local.experts = static_cast<int32_t>(shard.experts.size());
  return local;
}

}  // namespace lynx::model
