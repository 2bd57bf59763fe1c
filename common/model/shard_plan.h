#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_spec.h"

namespace lynx::model {

inline constexpr int32_t kMaxRanks = 1024;

// How the ranks of a node share a model. Attention, dense feed-forwards, shared experts and the
// vocabulary are split over `tp` ranks, of which there are `dp` replicas with sequences of their
// own: replica r is the ranks [r * tp, (r + 1) * tp). Routed experts are split over all ranks: into
// `ep` parts by expert, and each expert over the world() / ep ranks of a part by columns.
struct ParallelLayout {
  int32_t tp = 1;
  int32_t dp = 1;
  int32_t ep = 1;
  int32_t ep_spare = 0;  // Experts of each layer that a rank has memory for beyond its part.

  int32_t world() const { return tp * dp; }
  int32_t expert_tp() const { return world() / ep; }
  int32_t ReplicaOf(int32_t rank) const { return rank / tp; }
};

// [begin, end)
struct ShardRange {
  int32_t begin = 0;
  int32_t end = 0;

  int32_t size() const { return end - begin; }
  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

// What one rank holds. Everything else, such as norms, routers and latents, every rank holds whole.
struct RankShard {
  ShardRange query_heads;
  ShardRange kv_heads;        // Those that its query heads read; several ranks may hold the same.
  ShardRange vocabulary;      // Rows of the embedding and of the output head.
  ShardRange dense_columns;   // Of what is between the products of a dense feed-forward,
  ShardRange shared_columns;  // of shared experts,
  ShardRange expert_columns;  // and of each routed expert that it holds.
  std::vector<int32_t> experts;  // Those, as loaded: of every layer the same, slot by slot.
};

// `layout` as options give it, of which ep may be 0: then it becomes 1, or with replicas of a model
// with experts the number of ranks. Fails as CheckLayout().
absl::StatusOr<ParallelLayout> CompleteLayout(const ModelSpec& spec, ParallelLayout layout);

// That the model can be shared so. Experts and vocabulary need not divide evenly; heads and columns
// do.
//   InvalidArgument  names the size and the width that do not fit.
absl::Status CheckLayout(const ModelSpec& spec, const ParallelLayout& layout);

// `layout` fits; rank in [0, world()). Ranks of one replica, and those that share experts, are
// neighbours.
RankShard ShardOf(const ModelSpec& spec, const ParallelLayout& layout, int32_t rank);

// [ep][slots] The experts that each part is loaded with: as many neighbours as the others, within
// one, and in its spare slots copies of what the parts after it hold, of each as many, within one.
// `layout` fits.
std::vector<std::vector<int32_t>> FirstExperts(int32_t experts, const ParallelLayout& layout);

// The model as that rank's weights and KV cache see it: heads, columns, experts and vocabulary are
// the rank's own. Its router still ranks all experts, so spec.experts is not what a plan is made
// for.
ModelSpec SpecOfShard(const ModelSpec& spec, const RankShard& shard);

}  // namespace lynx::model
