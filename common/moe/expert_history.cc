#include "common/moe/expert_history.h"

#include <algorithm>
#include <cstddef>

namespace lynx::moe {

ExpertHistory::ExpertHistory(int32_t layers, int32_t experts)
    : layers_(static_cast<size_t>(layers)) {
  const auto count = static_cast<size_t>(experts);
  for (Counts& layer : layers_) {
    MutexLock lock(layer.mu);
    layer.needed.resize(count);
    layer.recent.resize(kRecent * count);
    layer.recent_sizes.resize(kRecent);
  }
}

void ExpertHistory::Record(int32_t layer, std::span<const int32_t> active) {
  Counts& counts = layers_[static_cast<size_t>(layer)];
  MutexLock lock(counts.mu);
  counts.steps += 1;
  for (const int32_t expert : active) counts.needed[static_cast<size_t>(expert)] += 1;
  const size_t slot = counts.next++ % kRecent;
  std::ranges::copy(active,
                    counts.recent.begin() + static_cast<ptrdiff_t>(slot * counts.needed.size()));
  counts.recent_sizes[slot] = static_cast<int32_t>(active.size());
}

ExpertHistory::Layer ExpertHistory::Get(int32_t layer) const {
  const Counts& counts = layers_[static_cast<size_t>(layer)];
  Layer copy;
  MutexLock lock(counts.mu);
  copy.steps = counts.steps;
  copy.share = counts.needed;
  for (double& share : copy.share) share /= std::max(counts.steps, 1.0);
  for (size_t i = 0; i < std::min(kRecent, counts.next); ++i) {
    const auto begin = counts.recent.begin() + static_cast<ptrdiff_t>(i * counts.needed.size());
    copy.recent.emplace_back(begin, begin + counts.recent_sizes[i]);
  }
  return copy;
}

void ExpertHistory::Age(double keep) {
  for (Counts& layer : layers_) {
    MutexLock lock(layer.mu);
    layer.steps *= keep;
    for (double& needed : layer.needed) needed *= keep;
  }
}

}  // namespace lynx::moe
