#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lynx::model {

// SHA-256 (FIPS 180-4), for identities that operators compare; speed does not matter here.
class Sha256 {
 public:
  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view text) { Update(std::as_bytes(std::span(text))); }
  // 64 lower-case hex digits of all that was added. Call once.
  std::string HexDigest();

 private:
  void Compress(const std::byte* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_;
  uint64_t bytes_ = 0;
};

}  // namespace lynx::model
