#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/paged_attention_backends.h"

namespace lynx::kernels::internal {

// Cuts rows of `group` queries each into tiles, in order, in place of what `tiles` holds.
void MakeAttentionTiles(const AttentionRow* rows, int64_t row_count, int64_t group,
                        std::vector<AttentionTile>& tiles);

}  // namespace lynx::kernels::internal
