// Any files as a model's folder: what `lynx inspect` finds no fault with is loaded, and nothing
// else is.
//
// The input is config.json, generation_config.json, the index of the weights (empty: none) and the
// header of model.safetensors, with a byte 0x1e between them; the data behind the header is zeros.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/model/json_file.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "services/cli/inspect/model_inspection.h"
#include "tests/support/temp_dir.h"

namespace {

constexpr uint64_t kMaxData = 1 << 18;

// Data enough for what the header says, within bounds.
std::string WeightFile(std::string_view header) {
  uint64_t end = 0;
  const auto parsed = lynx::model::ParseJson(header, "header");
  if (parsed.ok() && parsed->is_object()) {
    for (const auto& [name, entry] : parsed->items()) {
      if (!entry.is_object() || !entry.contains("data_offsets")) continue;
      const auto& offsets = entry["data_offsets"];
      if (!offsets.is_array() || offsets.empty() || !offsets.back().is_number_unsigned()) continue;
      end = std::max(end, offsets.back().get<uint64_t>());
    }
  }
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  bytes += header;
  return bytes + std::string(std::min(end, kMaxData), '\0');
}

// Whether a node's other memory is of no account.
bool IsSmall(const lynx::model::ModelSpec& spec) {
  return lynx::model::KvLayoutOf(spec, lynx::DType::kF32).BlockBytes() < 1 << 24;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const lynx::testing::TempDir dir;
  std::vector<std::string_view> parts;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  for (int i = 0; i < 4; ++i) {
    const size_t end = i < 3 ? std::min(rest.find('\x1e'), rest.size()) : rest.size();
    parts.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  dir.Write("config.json", parts[0]);
  dir.Write("generation_config.json", parts[1]);
  const std::filesystem::path index = dir.path() / "model.safetensors.index.json";
  std::filesystem::remove(index);
  if (!parts[2].empty()) dir.Write(index.filename().string(), parts[2]);
  dir.Write("model.safetensors", WeightFile(parts[3]));

  const auto found = lynx::cli::InspectModel(dir.path().string());
  LYNX_CHECK_MSG(found.ok(), found.status().ToString());
  for (const std::string& problem : found->problems) LYNX_CHECK(lynx::IsValidUtf8(problem));
  if (found->spec.has_value() && !IsSmall(*found->spec)) return 0;
  const auto runner = lynx::model::ModelRunner::Load({.model_dir = dir.path(),
                                                      .compute_dtype = lynx::DType::kF32,
                                                      .kv_dtype = lynx::DType::kF32,
                                                      .kv_blocks = 1,
                                                      .max_step_rows = 1,
                                                      .max_step_logits = 1,
                                                      .threads = 1});
  if (runner.ok()) {
    LYNX_CHECK_MSG(found->problems.empty(), found->problems.front());
  } else {
    LYNX_CHECK_MSG(!found->problems.empty(), runner.status().ToString());
  }
  return 0;
}
