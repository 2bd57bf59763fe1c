#pragma once

#include <cstdint>
#include <span>

#include "common/kv/kv_arena.h"

namespace lynx::cli {

// Fills blocks with random keys and values, of the size that a model's have. Blocks that nothing
// was ever written to would all be read from the one page of zeros that the system keeps for them.
void FillWithNoise(std::span<const kv::BlockId> blocks, uint32_t seed, kv::KvArena& kv);

}  // namespace lynx::cli
