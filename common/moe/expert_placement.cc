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

ReplicaChooser::ReplicaChooser(int32_t max_experts, int32_t max_ranks) {
  for (std::vector<int32_t>* of_experts : {&experts_, &chosen_, &order_}) {
    of_experts->reserve(static_cast<size_t>(max_experts));
  }
  for (std::vector<int32_t>* of_ranks : {&load_, &queue_, &came_by_}) {
    of_ranks->reserve(static_cast<size_t>(max_ranks));
  }
}

void ReplicaChooser::Start(const ExpertPlacement& placement) {
  placement_ = &placement;
  experts_.clear();
  chosen_.clear();
  load_.assign(static_cast<size_t>(placement.ranks), 0);
}

int32_t ReplicaChooser::most() const { return load_.empty() ? 0 : std::ranges::max(load_); }

std::span<const int32_t> ReplicaChooser::Choose(const ExpertPlacement& placement,
                                                std::span<const int32_t> active) {
  Start(placement);
  experts_.assign(active.begin(), active.end());
  chosen_.assign(active.size(), -1);
  order_.clear();
  for (int32_t i = 0; i < static_cast<int32_t>(active.size()); ++i) {
    if (RanksOf(i).size() > 1) {
      order_.push_back(i);
      continue;
    }
    chosen_[static_cast<size_t>(i)] = RanksOf(i).front();
    ++LoadOf(RanksOf(i).front());
  }
  if (order_.empty()) return chosen_;
  std::ranges::sort(order_, {}, [&](int32_t i) { return std::pair(RanksOf(i).size(), i); });
  for (const int32_t index : order_) {
    const int32_t rank =
        *std::ranges::min_element(RanksOf(index), {}, [&](int32_t r) { return LoadOf(r); });
    chosen_[static_cast<size_t>(index)] = rank;
    ++LoadOf(rank);
  }
  // The fullest rank cannot be helped once none that it can reach, by experts handed on from rank
  // to rank, has two fewer: all ranks that it can reach then have nearly as many, and no other may
  // hold their experts.
  while (Relieve(static_cast<int32_t>(std::ranges::max_element(load_) - load_.begin()))) {
  }
  return chosen_;
}

bool ReplicaChooser::Relieve(int32_t rank) {
  came_by_.assign(load_.size(), kUnseen);
  came_by_[static_cast<size_t>(rank)] = kBegin;
  queue_.assign(1, rank);
  if (!HandOn(LoadOf(rank) - 2).has_value()) return false;
  --LoadOf(rank);
  return true;
}

bool ReplicaChooser::Add(int32_t expert, int32_t limit) {
  const auto index = static_cast<int32_t>(experts_.size());
  experts_.push_back(expert);
  chosen_.push_back(-1);
  came_by_.assign(load_.size(), kUnseen);
  const std::vector<int32_t>& ranks = RanksOf(index);
  queue_.assign(ranks.begin(), ranks.end());
  for (const int32_t rank : ranks) came_by_[static_cast<size_t>(rank)] = index;
  if (HandOn(limit - 1).has_value()) return true;
  experts_.pop_back();
  chosen_.pop_back();
  return false;
}

std::optional<int32_t> ReplicaChooser::HandOn(int32_t most) {
  for (size_t next = 0; next < queue_.size(); ++next) {
    int32_t at = queue_[next];
    if (LoadOf(at) <= most) {
      ++LoadOf(at);
      while (at >= 0 && came_by_[static_cast<size_t>(at)] >= 0) {
        const auto moved = static_cast<size_t>(came_by_[static_cast<size_t>(at)]);
        at = std::exchange(chosen_[moved], at);
      }
      return at;
    }
    for (size_t i = 0; i < experts_.size(); ++i) {
      if (chosen_[i] != at) continue;
      for (const int32_t to : RanksOf(static_cast<int32_t>(i))) {
        if (came_by_[static_cast<size_t>(to)] != kUnseen) continue;
        came_by_[static_cast<size_t>(to)] = static_cast<int32_t>(i);
        queue_.push_back(to);
      }
    }
  }
  return std::nullopt;
}

}  // namespace lynx::moe
