#pragma once

#include <cstdint>
#include <string_view>

namespace lynx {

// SplitMix64 (Steele, Lea and Flood, 2014): of a counter in steps of kSplitMixStep a sequence of
// random numbers, and of any number one that differs in about half of its bits from that of any
// other. The same in every process; no protection against somebody who wants equal ones.
inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15;

constexpr uint64_t SplitMix(uint64_t x) {
  x += kSplitMixStep;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Continues `hash` with the bytes of a text.
constexpr uint64_t SplitMixText(uint64_t hash, std::string_view text) {
  for (const char c : text) hash = SplitMix(hash ^ static_cast<unsigned char>(c));
  return hash;
}

}  // namespace lynx
