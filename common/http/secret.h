#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lynx::http {

// What stands for a secret where the secret itself must not be kept.
using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(std::string_view text);

// Takes as long whether and wherever they differ.
bool EqualInConstantTime(const Sha256Digest& a, const Sha256Digest& b);

}  // namespace lynx::http
