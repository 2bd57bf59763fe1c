#include "common/kv/prefix_hash.h"

#include "common/base/check.h"
#include "common/base/mix.h"

namespace lynx::kv {
PrefixHash RootPrefix(std::string_view salt) { return SplitMixText(SplitMix(salt.size()), salt); }

PrefixHash NextPrefix(PrefixHash before, std::span<const TokenId> tokens) {
  LYNX_CHECK(tokens.size() == kBlockTokens);
  uint64_t hash = before;
  for (size_t i = 0; i < tokens.size(); i += 2) {
    hash = SplitMix(hash ^ (static_cast<uint64_t>(static_cast<uint32_t>(tokens[i])) << 32 |
                            static_cast<uint32_t>(tokens[i + 1])));
  }
  return hash;
}

std::vector<PrefixHash> PrefixHashes(std::string_view salt, std::span<const TokenId> tokens) {
  std::vector<PrefixHash> hashes;
  PrefixHash hash = RootPrefix(salt);
  for (; tokens.size() >= kBlockTokens; tokens = tokens.subspan(kBlockTokens)) {
    hash = NextPrefix(hash, tokens.first(kBlockTokens));
    hashes.push_back(hash);
  }
  return hashes;
}

}  // namespace lynx::kv
