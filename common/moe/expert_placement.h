#pragma once

#include <cstdint>
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
// without a word. Holds scratch memory; one thread.
class ReplicaChooser {
 public:
  explicit ReplicaChooser(ExpertPlacement placement);

  // `active`: distinct experts. The rank of each; valid until the next call. O(active * ranks) for
  // each expert that the first, greedy choice has to give away again, of which there are few.
  std::span<const int32_t> Choose(std::span<const int32_t> active);
  // Experts of the fullest rank, of the last call.
  int32_t most() const { return most_; }

 private:
  bool Relieve(std::span<const int32_t> active, int32_t rank);

  const ExpertPlacement placement_;
  std::vector<int32_t> chosen_;
  std::vector<int32_t> load_;   // [ranks]
  std::vector<int32_t> order_;  // Of the active: indices, the least choice first.
  std::vector<int32_t> queue_;  // Ranks, of the search.
  std::vector<int32_t>
      came_by_;  // [ranks] The index of the expert that would move there; -1: none.
  int32_t most_ = 0;
};

}  // namespace lynx::moe
