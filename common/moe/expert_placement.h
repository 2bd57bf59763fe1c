#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace lynx::moe {

// Which ranks hold which experts of one layer. An expert has one copy or several, on distinct
// ranks.
struct ExpertPlacement {
  int32_t ranks = 0;
  std::vector<std::vector<int32_t>> ranks_of = {};  // [experts], each ascending and not empty.

  int32_t experts() const { return static_cast<int32_t>(ranks_of.size()); }
};

// What there is to place them on. Ranks of a host are neighbours.
struct PlacementShape {
  int32_t experts = 0;
  int32_t ranks = 0;
  int32_t slots = 0;  // Experts that a rank has memory for.
  int32_t hosts = 1;  // Divides the ranks.
  // Expert groups that routers limit their choice to, of neighbours and equal size: each stays
  // whole on a host, so that a token's experts are on few of them. 1: no such groups.
  int32_t groups = 1;
};
// That all experts find a place.
//   InvalidArgument  names the sizes that do not fit.
absl::Status CheckPlacementShape(const PlacementShape& shape);

// As many neighbours to each rank, within one, a copy each: what needs no knowledge.
ExpertPlacement PlaceEvenly(int32_t experts, int32_t ranks);

// By what experts cost their ranks (>= 0, in any unit; of `shape`, which passed
// CheckPlacementShape): first groups, or experts where there are none, over hosts; then, within a
// host, its spare slots one by one to the expert with most cost a copy; then copies over its ranks,
// the heaviest first and each to the rank with least. A slot stays empty where only second copies
// of one rank would be left for it. Greedy; ties go to the lower number.
ExpertPlacement PlaceByCost(std::span<const double> cost, const PlacementShape& shape);

// Costs from counts of how many tokens chose each expert, out of `tokens`, for steps of `batch`
// rows: the probability that a step needs the expert at all. A step that memory bounds reads an
// expert once for however many rows, so a very popular expert costs little more than a popular one.
std::vector<double> ActivityCost(std::span<const int64_t> counts, int64_t tokens, int32_t batch);

// Chooses, step by step, which rank computes each active expert, all of its rows there: the fullest
// rank gets as few as the copies allow. Deterministic, so ranks that know the same active set agree
// without a word. Holds scratch memory, all of it made by the constructor; one thread.
class ReplicaChooser {
 public:
  // The largest placement it will see.
  ReplicaChooser(int32_t max_experts, int32_t max_ranks);

  // `active`: distinct experts of `placement`. The rank of each; valid until the next call.
  // O(active
  // * ranks) for each expert that the first, greedy choice has to give away again, of which there
  // are few.
  std::span<const int32_t> Choose(const ExpertPlacement& placement,
                                  std::span<const int32_t> active);

  // One by one instead: begins with none, and adds `expert`, a new one, if there is a choice by
  // which no rank has more than `limit`, as there was before. False: there is none. Experts added
  // so, each if it fits, heaviest first, are the heaviest set that fits. `placement` outlives it.
  void Start(const ExpertPlacement& placement);
  bool Add(int32_t expert, int32_t limit);

  // Experts of the fullest rank.
  int32_t most() const;

 private:
  const std::vector<int32_t>& RanksOf(int32_t index) const {
    return placement_->ranks_of[static_cast<size_t>(experts_[static_cast<size_t>(index)])];
  }
  int32_t& LoadOf(int32_t rank) { return load_[static_cast<size_t>(rank)]; }
  // Hands an expert of `rank` on, and maybe another from there, to a rank with two fewer or less.
  bool Relieve(int32_t rank);
  // Searches on from queue_ for a rank with `most` experts or fewer, and moves an expert to each
  // rank on the way there. Where the way began, or -1 if that is no rank; none is found: nothing.
  std::optional<int32_t> HandOn(int32_t most);

  static constexpr int32_t kUnseen = -1;
  static constexpr int32_t kBegin = -2;

  const ExpertPlacement* placement_ = nullptr;
  std::vector<int32_t> experts_;  // Those of the choice;
  std::vector<int32_t> chosen_;   // of each its rank, -1: none yet.
  std::vector<int32_t> order_;    // Indices of those with copies, the least choice first.
  std::vector<int32_t> load_;     // [ranks]
  std::vector<int32_t> queue_;    // Ranks, of the search.
  // [ranks] The index of the expert that would move there, or one of the constants.
  std::vector<int32_t> came_by_;
};

}  // namespace lynx::moe
