#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/dtype.h"

namespace lynx::model {

// How the bytes of a tensor stand for its values.
enum class Coding : uint8_t {
  kPlain,
  kE4m3,  // A byte each, to be multiplied by a scale that another tensor holds.
};

// A dense row-major tensor that somebody else keeps in memory, aligned to its element.
struct Tensor {
  DType dtype = DType::kF32;  // Of its values, decoded.
  Coding coding = Coding::kPlain;
  std::vector<int64_t> shape = {};
  std::span<const std::byte> data = {};
};

inline size_t ElementBytes(const Tensor& tensor) {
  return tensor.coding == Coding::kE4m3 ? 1 : SizeOf(tensor.dtype);
}
// For messages and identities.
inline std::string_view TypeName(const Tensor& tensor) {
  return tensor.coding == Coding::kE4m3 ? "f8_e4m3" : Name(tensor.dtype);
}

// The weights of a model by the names of its family.
using TensorMap = std::map<std::string, Tensor>;

}  // namespace lynx::model
