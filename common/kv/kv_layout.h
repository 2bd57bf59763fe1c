#pragma once

#include <cstdint>
#include <string>

#include "common/base/dtype.h"

namespace lynx::kv {

// Tokens in a block, everywhere (DESIGN: a block is 16 tokens of all layers).
inline constexpr int32_t kBlockTokens = 16;

// Shape of the KV cache one rank holds for grouped-query attention. Per layer:
//   [block][K|V][kv_heads][kBlockTokens][head_dim]
// so that a tensor-parallel peer can take a contiguous slice of heads.
struct KvLayout {
  int32_t layers = 0;    // > 0
  int32_t kv_heads = 0;  // > 0, held by this rank
  int32_t head_dim = 0;  // > 0
  DType dtype = DType::kBf16;

  // Bytes of one block in one layer: what a hand-off ships and checksums as a unit.
  int64_t BlockLayerBytes() const {
    return int64_t{2} * kv_heads * kBlockTokens * head_dim * static_cast<int64_t>(SizeOf(dtype));
  }
  int64_t BlockBytes() const { return BlockLayerBytes() * layers; }

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

// Blocks that hold `tokens` tokens.
constexpr int64_t BlocksFor(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace lynx::kv
