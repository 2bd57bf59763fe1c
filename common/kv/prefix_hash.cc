#include "common/kv/prefix_hash.h"

#include "common/base/check.h"

namespace lynx::kv {
namespace {

// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

PrefixHash RootPrefix(std::string_view salt) {
  uint64_t hash = Mix(salt.size());
  for (const char c : salt) hash = Mix(hash ^ static_cast<unsigned char>(c));
  return hash;
}

PrefixHash NextPrefix(PrefixHash before, std::span<const TokenId> tokens) {
  LYNX_CHECK(tokens.size() == kBlockTokens);
  uint64_t hash = before;
  for (size_t i = 0; i < tokens.size(); i += 2) {
    hash = Mix(hash ^ (static_cast<uint64_t>(static_cast<uint32_t>(tokens[i])) << 32 |
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
