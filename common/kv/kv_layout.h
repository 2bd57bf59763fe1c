#pragma once

#include <cstdint>
#include <string>

#include "common/base/dtype.h"
#include "common/kv/kv_groups.h"

namespace lynx::kv {

// Tokens in a block, everywhere: a block is 16 tokens of the layers of one group.
inline constexpr int32_t kBlockTokens = 16;

enum class KvKind : uint8_t {
  // Grouped-query attention: [K|V][kv_heads][kBlockTokens][head_dim] a block and layer, so that a
  // tensor-parallel peer can take a contiguous slice of heads.
  kGroupedHeads,
  // Multi-head latent attention: [kBlockTokens][head_dim]. The one vector of a token, its latent
  // and then its rotated key, is K and V of all heads; every tensor-parallel rank holds it.
  kLatent,
};

// Shape of the KV cache that one rank holds.
struct KvLayout {
  KvKind kind = KvKind::kGroupedHeads;
  int32_t layers = 0;    // > 0
  int32_t kv_heads = 0;  // > 0, held by this rank; latents: 1
  int32_t head_dim = 0;  // > 0
  DType dtype = DType::kBf16;
  KvGroups groups = {};  // Of these layers.

  // Bytes of one block in one layer: what a hand-off ships and checksums as a unit.
  int64_t BlockLayerBytes() const {
    return Halves() * kv_heads * kBlockTokens * head_dim * static_cast<int64_t>(SizeOf(dtype));
  }
  int64_t BlockBytes() const { return BlockLayerBytes() * BlockLayers(); }
  // Layers of a block.
  int32_t BlockLayers() const { return layers / groups.count(); }
  // K and V, or what is both.
  int64_t Halves() const { return kind == KvKind::kLatent ? 1 : 2; }

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

// Blocks that hold `tokens` tokens.
constexpr int64_t BlocksFor(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace lynx::kv
