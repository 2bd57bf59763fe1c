#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace lynx {

using TokenId = int32_t;

// Element type of weights, activations and KV.
enum class DType : uint8_t { kF32 = 0, kBf16 = 1, kF16 = 2 };

constexpr size_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

constexpr std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "f16";
  }
  return "?";
}

// The type of that Name(), if there is one.
constexpr std::optional<DType> DTypeNamed(std::string_view name) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    if (Name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace lynx
