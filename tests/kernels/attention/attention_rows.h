#pragma once

// What tests of both attentions take their rows from.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "common/base/dtype.h"
#include "kernels/attention/paged_attention_args.h"
#include "kernels/core/exec_context.h"

namespace lynx::kernels {

inline constexpr int32_t kBlocks = 48;  // Of every arena here: three splits of 256 tokens.

// Block tables of sequences as long as they come here, and shorter ones.
inline std::vector<int32_t> Blocks(uint32_t seed, size_t count = kBlocks) {
  std::vector<int32_t> blocks(kBlocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(seed));
  blocks.resize(count);
  return blocks;
}

// A last position, and tables that reach it: of the same blocks again and again.
inline constexpr int32_t kLongPosition = 20 * 256 + 37;
inline std::vector<int32_t> LongBlocks(uint32_t seed) {
  const std::vector<int32_t> some = Blocks(seed);
  std::vector<int32_t> blocks;
  while (blocks.size() <= kLongPosition / 16) {
    blocks.insert(blocks.end(), some.begin(), some.end());
  }
  return blocks;
}

struct Types {
  DType kv;
  DType compute;
};
inline constexpr Types kTypes[] = {{DType::kF32, DType::kF32},
                                   {DType::kBf16, DType::kF32},
                                   {DType::kF32, DType::kBf16},
                                   {DType::kBf16, DType::kBf16}};

// Runs rows [0, n) in pieces of `chunk`.
template <typename Problem>
std::vector<float> RunInChunks(const Problem& p, const std::vector<float>& q,
                               const std::vector<AttentionRow>& rows, size_t chunk,
                               const ExecContext& ctx) {
  const auto at = [](size_t i) { return static_cast<std::ptrdiff_t>(i); };
  std::vector<float> pieces;
  for (size_t r = 0; r < rows.size(); r += chunk) {
    const size_t end = std::min(rows.size(), r + chunk);
    const auto part =
        p.Run({q.begin() + at(r * p.QuerySize()), q.begin() + at(end * p.QuerySize())},
              {rows.begin() + at(r), rows.begin() + at(end)}, ctx);
    pieces.insert(pieces.end(), part.begin(), part.end());
  }
  return pieces;
}

}  // namespace lynx::kernels
