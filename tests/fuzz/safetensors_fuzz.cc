// Any bytes as model.safetensors: a clear error, or tensors that lie in the file and are as large
// as their shapes say.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/model/safetensors.h"
#include "tests/support/temp_dir.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const lynx::testing::TempDir dir;
  dir.Write("model.safetensors", {reinterpret_cast<const char*>(data), size});
  const auto folder = lynx::model::SafetensorsFolder::Open(dir.path());
  if (!folder.ok()) {
    const std::string message(folder.status().message());
    LYNX_CHECK(message.find("model.safetensors") != std::string::npos && message.size() < 5000);
    LYNX_CHECK(lynx::IsValidUtf8(message));
    return 0;
  }
  for (const auto& [name, tensor] : folder->tensors()) {
    size_t bytes = lynx::model::ElementBytes(tensor);
    for (const int64_t extent : tensor.shape) bytes *= static_cast<size_t>(extent);
    LYNX_CHECK(bytes == tensor.data.size() && bytes <= size);
    // A sanitizer sees where it lies.
    LYNX_CHECK(std::count(tensor.data.begin(), tensor.data.end(), std::byte{0}) >= 0);
    folder->Release(tensor.data);
  }
  return 0;
}
