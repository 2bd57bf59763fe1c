#include "common/moe/expert_placement.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lynx::moe {
namespace {

// `indices` by descending `weight`; the lower index first among equals.
void SortHeaviestFirst(std::vector<int32_t>& indices, std::span<const double> weight) {
  std::ranges::stable_sort(indices, [&](int32_t a, int32_t b) {
    return weight[static_cast<size_t>(a)] > weight[static_cast<size_t>(b)];
  });
}

std::vector<int32_t> Iota(int32_t count) {
  std::vector<int32_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

struct Bin {
  double weight = 0;
  int32_t items = 0;
};

// The bin of least weight, then fewest items, among those that `fits`; none: -1.
template <typename Fits>
int32_t Lightest(std::span<const Bin> bins, Fits fits) {
  int32_t best = -1;
  for (size_t i = 0; i < bins.size(); ++i) {
    if (!fits(i)) continue;
    if (best >= 0) {
      const Bin& least = bins[static_cast<size_t>(best)];
      if (std::pair(bins[i].weight, bins[i].items) >= std::pair(least.weight, least.items)) {
        continue;
      }
    }
    best = static_cast<int32_t>(i);
  }
  return best;
}

// What is placed on hosts as one.
int32_t Units(const PlacementShape& shape) {
  return shape.groups > 1 ? shape.groups : shape.experts;
}

int32_t UnitsOfHost(const PlacementShape& shape) {
  return (Units(shape) + shape.hosts - 1) / shape.hosts;
}

// [hosts] The experts of each, ascending.
std::vector<std::vector<int32_t>> OverHosts(std::span<const double> cost,
                                            const PlacementShape& shape) {
  const int32_t units = Units(shape);
  const int32_t size = shape.experts / units;
  std::vector<double> weight(static_cast<size_t>(units));
  for (int32_t e = 0; e < shape.experts; ++e) {
    weight[static_cast<size_t>(e / size)] += cost[static_cast<size_t>(e)];
  }
  std::vector<int32_t> order = Iota(units);
  SortHeaviestFirst(order, weight);
  std::vector<Bin> hosts(static_cast<size_t>(shape.hosts));
  std::vector<std::vector<int32_t>> experts(hosts.size());
  for (const int32_t unit : order) {
    const auto host = static_cast<size_t>(
        Lightest(hosts, [&](size_t h) { return hosts[h].items < UnitsOfHost(shape); }));
    hosts[host].weight += weight[static_cast<size_t>(unit)];
    ++hosts[host].items;
    for (int32_t i = 0; i < size; ++i) experts[host].push_back(unit * size + i);
  }
  for (std::vector<int32_t>& of_host : experts) std::ranges::sort(of_host);
  return experts;
}

// Places `experts` on the ranks [first, first + ranks).
void OverRanks(std::span<const int32_t> experts, std::span<const double> cost, int32_t first,
               int32_t ranks, int32_t slots, ExpertPlacement& placement) {
  std::vector<int32_t> copies(experts.size(), 1);
  const auto share = [&](size_t i) { return cost[static_cast<size_t>(experts[i])] / copies[i]; };
  for (int64_t spare = int64_t{ranks} * slots - std::ssize(experts); spare > 0; --spare) {
    size_t heaviest = experts.size();
    for (size_t i = 0; i < experts.size(); ++i) {
      if (copies[i] == ranks) continue;
      if (heaviest == experts.size() || share(i) > share(heaviest)) heaviest = i;
    }
    if (heaviest == experts.size()) break;
    ++copies[heaviest];
  }
  std::vector<int32_t> items;  // Indices of experts, one for each copy.
  std::vector<double> weight;
  for (size_t i = 0; i < experts.size(); ++i) {
    weight.push_back(share(i));
    items.insert(items.end(), static_cast<size_t>(copies[i]), static_cast<int32_t>(i));
  }
  SortHeaviestFirst(items, weight);
  std::vector<Bin> bins(static_cast<size_t>(ranks));
  for (const int32_t item : items) {
    std::vector<int32_t>& held =
        placement.ranks_of[static_cast<size_t>(experts[static_cast<size_t>(item)])];
    const int32_t bin = Lightest(bins, [&](size_t r) {
      return bins[r].items < slots &&
             std::ranges::find(held, first + static_cast<int32_t>(r)) == held.end();
    });
    if (bin < 0) continue;
    bins[static_cast<size_t>(bin)].weight += weight[static_cast<size_t>(item)];
    ++bins[static_cast<size_t>(bin)].items;
    held.push_back(first + bin);
  }
}

}  // namespace

absl::Status CheckPlacementShape(const PlacementShape& shape) {
  if (shape.experts < 1 || shape.ranks < 1 || shape.slots < 1 || shape.hosts < 1 ||
      shape.groups < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        shape.experts, " experts in ", shape.groups, " groups on ", shape.ranks, " ranks of ",
        shape.hosts, " hosts with ", shape.slots, " slots each: all have to be 1 or more"));
  }
  if (shape.ranks % shape.hosts != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape.ranks, " ranks cannot be shared evenly by ", shape.hosts, " hosts"));
  }
  if (shape.experts % shape.groups != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape.experts, " experts are not ", shape.groups, " equal groups"));
  }
  const int64_t of_host = int64_t{UnitsOfHost(shape)} * (shape.experts / Units(shape));
  const int64_t room = int64_t{shape.ranks / shape.hosts} * shape.slots;
  if (of_host > room) {
    return absl::InvalidArgumentError(
        absl::StrCat("a host gets up to ", of_host, " of ", shape.experts, " experts, but its ",
                     shape.ranks / shape.hosts, " ranks have ", shape.slots, " slots each"));
  }
  return absl::OkStatus();
}

ExpertPlacement PlaceEvenly(int32_t experts, int32_t ranks) {
  ExpertPlacement placement{.ranks = ranks};
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const auto at = [&](int64_t i) { return static_cast<int32_t>(experts * i / ranks); };
    for (int32_t e = at(rank); e < at(rank + 1); ++e) placement.ranks_of.push_back({rank});
  }
  return placement;
}

ExpertPlacement PlaceByCost(std::span<const double> cost, const PlacementShape& shape) {
  LYNX_CHECK(cost.size() == static_cast<size_t>(shape.experts));
  ExpertPlacement placement{.ranks = shape.ranks};
  placement.ranks_of.resize(cost.size());
  const int32_t ranks = shape.ranks / shape.hosts;
  const std::vector<std::vector<int32_t>> hosts = OverHosts(cost, shape);
  for (size_t host = 0; host < hosts.size(); ++host) {
    OverRanks(hosts[host], cost, static_cast<int32_t>(host) * ranks, ranks, shape.slots, placement);
  }
  for (std::vector<int32_t>& held : placement.ranks_of) std::ranges::sort(held);
  return placement;
}

std::vector<double> ActivityCost(std::span<const int64_t> counts, int64_t tokens, int32_t batch) {
  std::vector<double> cost;
  for (const int64_t count : counts) {
    const double share = tokens > 0 ? static_cast<double>(count) / static_cast<double>(tokens) : 0;
    cost.push_back(1 - std::pow(1 - share, batch));
  }
  return cost;
}

ReplicaChooser::ReplicaChooser(ExpertPlacement placement)
    : placement_(std::move(placement)),
      load_(static_cast<size_t>(placement_.ranks)),
      came_by_(static_cast<size_t>(placement_.ranks)) {}

std::span<const int32_t> ReplicaChooser::Choose(std::span<const int32_t> active) {
  const auto ranks_of = [&](int32_t index) -> const std::vector<int32_t>& {
    return placement_.ranks_of[static_cast<size_t>(active[static_cast<size_t>(index)])];
  };
  std::ranges::fill(load_, 0);
  chosen_.assign(active.size(), -1);
  order_.resize(active.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::ranges::stable_sort(
      order_, [&](int32_t a, int32_t b) { return ranks_of(a).size() < ranks_of(b).size(); });
  for (const int32_t index : order_) {
    const std::vector<int32_t>& ranks = ranks_of(index);
    const int32_t rank = *std::ranges::min_element(
        ranks, {}, [&](int32_t r) { return load_[static_cast<size_t>(r)]; });
    chosen_[static_cast<size_t>(index)] = rank;
    ++load_[static_cast<size_t>(rank)];
  }
  // The fullest rank cannot be helped once none that it can reach, by experts handed on from rank
  // to rank, has two fewer: all ranks that it can reach then have nearly as many, and no other may
  // hold their experts.
  for (;;) {
    const auto fullest = std::ranges::max_element(load_);
    most_ = *fullest;
    if (!Relieve(active, static_cast<int32_t>(fullest - load_.begin()))) return chosen_;
  }
}

// Hands an expert of `rank` on, and maybe another from there, to a rank with two fewer or less.
bool ReplicaChooser::Relieve(std::span<const int32_t> active, int32_t rank) {
  const int32_t enough = load_[static_cast<size_t>(rank)] - 2;
  std::ranges::fill(came_by_, -1);
  queue_.assign(1, rank);
  for (size_t next = 0; next < queue_.size(); ++next) {
    const int32_t from = queue_[next];
    for (size_t i = 0; i < active.size(); ++i) {
      if (chosen_[i] != from) continue;
      for (const int32_t to : placement_.ranks_of[static_cast<size_t>(active[i])]) {
        if (to == rank || came_by_[static_cast<size_t>(to)] >= 0) continue;
        came_by_[static_cast<size_t>(to)] = static_cast<int32_t>(i);
        queue_.push_back(to);
        if (load_[static_cast<size_t>(to)] > enough) continue;
        ++load_[static_cast<size_t>(to)];
        --load_[static_cast<size_t>(rank)];
        for (int32_t at = to; at != rank;) {
          const auto moved = static_cast<size_t>(came_by_[static_cast<size_t>(at)]);
          at = std::exchange(chosen_[moved], at);
        }
        return true;
      }
    }
  }
  return false;
}

}  // namespace lynx::moe
