// Any bytes as model.safetensors.index.json beside two shards: a clear error, or those of the
// shards' tensors that it names.
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/model/safetensors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace {

using lynx::testing::SafetensorsBytes;

const lynx::testing::TempDir& Folder() {
  static const lynx::testing::TempDir dir;
  static const bool written = [] {
    dir.Write("a", SafetensorsBytes({{"x", {lynx::DType::kF32, {2}, {1, 2}}},
                                     {"y", {lynx::DType::kBf16, {1, 1}, {3}}}}));
    dir.Write("b", SafetensorsBytes({{"z", {lynx::DType::kF16, {1}, {4}}}}));
    dir.Write("c", "rubbish");
    return true;
  }();
  LYNX_CHECK(written);
  return dir;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto& dir = Folder();
  dir.Write("model.safetensors.index.json", {reinterpret_cast<const char*>(data), size});
  const auto folder = lynx::model::SafetensorsFolder::Open(dir.path());
  if (!folder.ok()) {
    const std::string message(folder.status().message());
    LYNX_CHECK(message.find(dir.path().string()) != std::string::npos && message.size() < 5000);
    LYNX_CHECK(lynx::IsValidUtf8(message));
    return 0;
  }
  LYNX_CHECK(!folder->tensors().empty());
  for (const auto& [name, tensor] : folder->tensors()) {
    LYNX_CHECK(name == "x" || name == "y" || name == "z");
    LYNX_CHECK(!tensor.data.empty());
  }
  return 0;
}
