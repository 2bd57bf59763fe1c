#include "kernels/attention/attention_tiles.h"

#include <algorithm>

namespace lynx::kernels::internal {

void MakeAttentionTiles(const AttentionRow* rows, int64_t row_count, int64_t group,
                        std::vector<AttentionTile>& tiles) {
  tiles.clear();
  for (int64_t begin = 0, end = 0; begin < row_count; begin = end) {
    while (end < row_count && rows[end].blocks == rows[begin].blocks) ++end;
    const int64_t queries = (end - begin) * group;
    for (int64_t first = 0; first < queries; first += kTileQueries) {
      const int64_t last = std::min(first + kTileQueries, queries) - 1;
      int32_t first_token = rows[begin + first / group].first;
      int32_t last_token = 0;
      for (int64_t i = first / group; i <= last / group; ++i) {
        first_token = std::min(first_token, rows[begin + i].first);
        last_token = std::max(last_token, rows[begin + i].position);
      }
      tiles.push_back({.row = begin + first / group,
                       .first = first % group,
                       .queries = static_cast<int32_t>(last - first + 1),
                       .first_split = first_token / kSplitTokens,
                       .splits = last_token / kSplitTokens + 1 - first_token / kSplitTokens});
    }
  }
}

}  // namespace lynx::kernels::internal
