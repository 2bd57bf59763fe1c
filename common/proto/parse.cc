#include "common/proto/parse.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message_lite.h>

#include <cstdint>
#include <limits>

namespace lynx::proto {

bool ParseMessage(std::span<const std::byte> bytes, google::protobuf::MessageLite& message) {
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max())) return false;
  google::protobuf::io::CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()),
                                               static_cast<int>(bytes.size()));
  input.SetRecursionLimit(kMaxNesting);
  return message.ParseFromCodedStream(&input) && input.ConsumedEntireMessage();
}

}  // namespace lynx::proto
