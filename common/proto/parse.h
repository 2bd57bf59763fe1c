#pragma once

#include <cstddef>
#include <span>

namespace google::protobuf {
class MessageLite;
}

namespace lynx::proto {

// Our messages nest this deep at most, so whoever nests deeper is not one of ours.
inline constexpr int kMaxNesting = 16;

// Parses all of `bytes` into `message`. False when they are malformed, nested deeper than
// kMaxNesting, or followed by others; `message` is then unspecified.
bool ParseMessage(std::span<const std::byte> bytes, google::protobuf::MessageLite& message);

}  // namespace lynx::proto
