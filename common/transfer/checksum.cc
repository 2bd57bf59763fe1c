#include "common/transfer/checksum.h"

#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // The widest instruction set of the machine; the values are the same.
#else
#include <xxhash.h>
#endif

namespace lynx::transfer {

uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace lynx::transfer
