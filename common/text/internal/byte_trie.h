#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace lynx::text::internal {

// A set of byte strings, each with a number, walked one byte at a time. Thread-safe once filled.
class ByteTrie {
 public:
  using Node = uint32_t;
  static constexpr Node kRoot = 0;
  static constexpr Node kNone = UINT32_MAX;

  // Of equal keys the first keeps its value. `value` must not be negative.
  void Insert(std::string_view key, int32_t value) {
    Node node = kRoot;
    for (const char c : key) {
      const auto [edge, is_new] =
          edges_.try_emplace(Key(node, c), static_cast<uint32_t>(values_.size()));
      if (is_new) values_.push_back(-1);
      node = edge->second;
    }
    if (values_[node] < 0) values_[node] = value;
  }

  // Where `byte` leads, or kNone when no key goes on so.
  Node Next(Node node, char byte) const {
    const auto edge = edges_.find(Key(node, byte));
    return edge == edges_.end() ? kNone : edge->second;
  }
  // Of the key that ends here, or -1.
  int32_t Value(Node node) const { return values_[node]; }

 private:
  static uint64_t Key(Node node, char byte) {
    return (uint64_t{node} << 8) | static_cast<uint8_t>(byte);
  }

  absl::flat_hash_map<uint64_t, Node> edges_;
  std::vector<int32_t> values_ = {-1};
};

}  // namespace lynx::text::internal
