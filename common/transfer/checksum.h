#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lynx::transfer {

// XXH3-64: what a KV block, a commit body and the self-test pattern are checked with. Finds damage,
// not forgery.
uint64_t Checksum(std::span<const std::byte> bytes);
// Of `parts` back to back.
uint64_t Checksum(std::span<const std::span<const std::byte>> parts);

}  // namespace lynx::transfer
