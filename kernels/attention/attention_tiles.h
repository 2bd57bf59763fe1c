#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/paged_attention_backends.h"

namespace lynx::kernels::internal {

// Cuts rows of `group` queries each into tiles, in order.
std::vector<AttentionTile> MakeAttentionTiles(const AttentionRow* rows, int64_t row_count,
                                              int64_t group);

}  // namespace lynx::kernels::internal
