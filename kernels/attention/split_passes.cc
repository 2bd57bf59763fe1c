#include "kernels/attention/split_passes.h"

#include <algorithm>

#include "common/base/check.h"

namespace lynx::kernels::internal {
namespace {

// Of a pass that holds nothing but one sequence: enough for the last to end at about the same time.
constexpr int64_t kItemsPerThread = 8;

}  // namespace

SplitPasses::SplitPasses(int64_t capacity, int64_t threads, Run run, Lists& lists)
    : carried_(capacity / 8),
      window_(capacity - 2 * carried_),
      threads_(threads),
      run_(run),
      lists_(lists) {
  LYNX_CHECK(capacity >= kLeastCapacity);
  lists_.items.clear();
  lists_.merges.clear();
}

void SplitPasses::AddWhole(const AttentionTile& tile, int64_t head_begin, int64_t head_end) {
  lists_.items.push_back(
      {.tile = &tile,
       .part = {head_begin, head_end, tile.first_split, tile.first_split + tile.splits}});
}

void SplitPasses::AddCut(std::span<const SplitUnit> units, int32_t step) {
  while (!units.empty()) {
    size_t count = 0;
    int64_t width = 0;
    while (count < units.size() && width + units[count].queries() <= carried_) {
      width += units[count++].queries();
    }
    AddTurns(units.first(count), width, step);
    units = units.subspan(count);
  }
}

void SplitPasses::AddTurns(std::span<const SplitUnit> units, int64_t width, int32_t step) {
  int32_t most = 0;
  for (const SplitUnit& unit : units) most = std::max(most, unit.tile->splits);
  for (int32_t begin = 0; begin < most;) {
    auto count = static_cast<int32_t>(std::min<int64_t>(most - begin, (window_ - used_) / width));
    if (count < std::min(step, most - begin) && used_ > 0) {
      RunPass();
      continue;
    }
    const bool carried = count < most;
    int32_t item_splits = step;
    if (carried) {
      const int64_t share =
          count * static_cast<int64_t>(units.size()) / (threads_ * kItemsPerThread);
      item_splits = static_cast<int32_t>(std::clamp<int64_t>(share, 1, std::min(step, count)));
      if (begin + count < most) count -= count % item_splits;
    }
    AddWindow(units, begin, count, item_splits, carried);
    begin += count;
    if (begin < most) RunPass();
    if (carried && begin == most) carried_set_ ^= 1;
  }
}

void SplitPasses::AddWindow(std::span<const SplitUnit> units, int32_t begin, int32_t count,
                            int32_t step, bool carried) {
  const auto end_of = [&](const SplitUnit& unit) {
    return std::min(begin + count, unit.tile->splits);
  };
  const int64_t places = used_;
  for (int32_t split = begin; split < begin + count; split += step) {
    int64_t first = places;
    for (const SplitUnit& unit : units) {
      if (const int32_t end = end_of(unit); split < end) {
        lists_.items.push_back(
            {.tile = unit.tile,
             .part = {unit.head_begin, unit.head_end, unit.tile->first_split + split,
                      unit.tile->first_split + std::min(split + step, end)},
             .sums = first + (split - begin) * unit.queries()});
      }
      first += count * unit.queries();
    }
  }
  int64_t carry = window_ + carried_set_ * carried_;
  for (const SplitUnit& unit : units) {
    for (int64_t i = 0; i < unit.queries() && begin < end_of(unit); ++i) {
      lists_.merges.push_back({.tile = unit.tile,
                               .part = {.head = unit.head_begin + i / unit.tile->queries,
                                        .query = static_cast<int32_t>(i % unit.tile->queries),
                                        .split_begin = unit.tile->first_split + begin,
                                        .split_end = unit.tile->first_split + end_of(unit),
                                        .stride = unit.queries()},
                               .sums = used_ + i,
                               .into = carried ? carry + i : used_ + i});
    }
    used_ += count * unit.queries();
    carry += unit.queries();
  }
}

void SplitPasses::Finish() { RunPass(); }

void SplitPasses::RunPass() {
  run_(lists_.items, lists_.merges);
  lists_.items.clear();
  lists_.merges.clear();
  used_ = 0;
}

}  // namespace lynx::kernels::internal
