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
  kE4m3,   // A byte each, to be multiplied by a scale that another tensor holds.
  kBytes,  // Codes or scales of MXFP4, as the name says.
};

// A dense row-major tensor that somebody else keeps in memory, aligned to its element.
struct Tensor {
  DType dtype = DType::kF32;  // Of its values, decoded.
  Coding coding = Coding::kPlain;
  std::vector<int64_t> shape = {};
  std::span<const std::byte> data = {};
  std::string file = {};  // Where it is from, for messages; may be empty.
};

inline size_t ElementBytes(const Tensor& tensor) {
  return tensor.coding == Coding::kPlain ? SizeOf(tensor.dtype) : 1;
}
// For messages and identities.
inline std::string_view TypeName(const Tensor& tensor) {
  switch (tensor.coding) {
    case Coding::kPlain:
      return Name(tensor.dtype);
    case Coding::kE4m3:
      return "f8_e4m3";
    case Coding::kBytes:
      return "u8";
  }
  return "?";
}

// The weights of a model by the names of its family.
using TensorMap = std::map<std::string, Tensor>;

}  // namespace lynx::model
