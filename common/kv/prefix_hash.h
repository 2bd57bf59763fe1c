#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/dtype.h"
#include "common/kv/kv_layout.h"

namespace lynx::kv {

// Stands for all tokens up to the end of a block, and for whose they are. The same in every
// process. Not proof against collisions: whoever acts on one compares the tokens, too.
using PrefixHash = uint64_t;

// Longest salt, in bytes.
inline constexpr size_t kMaxSaltBytes = 256;

// Before the first block. Prompts of different salts share nothing.
PrefixHash RootPrefix(std::string_view salt);

// `tokens`: one block.
PrefixHash NextPrefix(PrefixHash before, std::span<const TokenId> tokens);

// After each full block of `tokens`.
std::vector<PrefixHash> PrefixHashes(std::string_view salt, std::span<const TokenId> tokens);

}  // namespace lynx::kv
