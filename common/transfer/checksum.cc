#include "common/transfer/checksum.h"

#define XXH_STATIC_LINKING_ONLY  // For a state on the stack.
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // The widest instruction set of the machine; the values are the same.
#else
#include <xxhash.h>
#endif

namespace lynx::transfer {

uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t Checksum(std::span<const std::span<const std::byte>> parts) {
  if (parts.size() == 1) return Checksum(parts[0]);
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const auto& part : parts) XXH3_64bits_update(&state, part.data(), part.size());
  return XXH3_64bits_digest(&state);
}

}  // namespace lynx::transfer
