#include "common/transfer/checksum.h"

#include <xxhash.h>

namespace lynx::transfer {

uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace lynx::transfer
