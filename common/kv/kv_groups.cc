#include "common/kv/kv_groups.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/base/check.h"
#include "common/kv/kv_layout.h"

namespace lynx::kv {

int32_t Reach::FirstFor(int32_t position) const {
  const int32_t in_window = window > 0 ? position - window + 1 : 0;
  const int32_t in_chunk = chunk > 0 ? position / chunk * chunk : 0;
  return std::max({0, in_window, in_chunk});
}

KvGroups::KvGroups(std::span<const Reach> layers) {
  LYNX_CHECK(!layers.empty());
  struct Kind {
    Reach reach;
    int32_t layers = 0;
  };
  std::vector<Kind> kinds;  // In order of appearance.
  const auto kind_of = [&](const Reach& reach) -> Kind& {
    const auto it = std::find_if(kinds.begin(), kinds.end(),
                                 [&](const Kind& kind) { return kind.reach == reach; });
    return it != kinds.end() ? *it : kinds.emplace_back(Kind{reach});
  };
  for (const Reach& reach : layers) ++kind_of(reach).layers;
  if (kinds.size() == 1 && !layers[0].bounded()) return;

  int32_t size = 0;
  for (const Kind& kind : kinds) size = std::gcd(size, kind.layers);
  reaches_.clear();
  std::vector<int32_t> first_groups;  // Of each kind.
  for (Kind& kind : kinds) {
    first_groups.push_back(count());
    reaches_.insert(reaches_.end(), static_cast<size_t>(kind.layers / size), kind.reach);
    kind.layers = 0;  // From here on: those placed.
  }
  for (const Reach& reach : layers) {
    Kind& kind = kind_of(reach);
    const int32_t first = first_groups[static_cast<size_t>(&kind - kinds.data())];
    places_.push_back({first + kind.layers / size, kind.layers % size});
    ++kind.layers;
  }
}

int32_t KvGroups::FirstBlock(int32_t group, int32_t position) const {
  return reach(group).FirstFor(position) / kBlockTokens;
}

int64_t KvGroups::BlocksHeld(int32_t position, int64_t end_block) const {
  int64_t blocks = 0;
  for (int32_t g = 0; g < count(); ++g) {
    blocks += std::max<int64_t>(0, end_block - FirstBlock(g, position));
  }
  return blocks;
}

int64_t KvGroups::MostBlocks(int64_t tokens, int32_t step_rows) const {
  int64_t blocks = 0;
  for (int32_t g = 0; g < count(); ++g) {
    const int64_t most = MostBlocksOf(g, step_rows);
    blocks += most > 0 ? std::min(BlocksFor(tokens), most) : BlocksFor(tokens);
  }
  return blocks;
}

int64_t KvGroups::MostBlocksOf(int32_t group, int32_t step_rows) const {
  const Reach& one = reach(group);
  if (!one.bounded()) return 0;
  const int64_t before = one.window == 0  ? one.chunk
                         : one.chunk == 0 ? one.window
                                          : std::min(one.window, one.chunk);
  // So many tokens in a row, wherever they begin.
  const int64_t tokens = before - 1 + step_rows;
  return (tokens + kBlockTokens - 2) / kBlockTokens + 1;
}

int64_t KvGroups::MostTokens(int64_t blocks) const {
  const auto whole = std::count_if(reaches_.begin(), reaches_.end(),
                                   [](const Reach& one) { return !one.bounded(); });
  return whole == 0 ? std::numeric_limits<int64_t>::max() : blocks / whole * kBlockTokens;
}

}  // namespace lynx::kv
