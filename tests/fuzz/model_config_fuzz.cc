// Any bytes as a config.json: a clear error, or a spec that holds together; and where its model is
// small, a step of it, with weights of ones.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/model/json_file.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "common/model/model_weights.h"
#include "kernels/core/float_convert.h"
#include "tests/support/spec_invariants.h"

namespace {

using lynx::DType;
using lynx::model::ModelRunner;
using lynx::model::ModelSpec;
using lynx::model::TensorMap;

constexpr int64_t kMaxElements = 1 << 18;

// Absent where they are too many.
std::optional<TensorMap> Ones(const ModelSpec& spec) {
  static const std::vector<uint16_t> ones(kMaxElements, lynx::kernels::F32ToBf16(1.0f));
  TensorMap tensors;
  int64_t all = 0;
  for (const auto& [name, shape] : lynx::model::TensorShapes(spec)) {
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    all += elements;
    if (all > kMaxElements) return std::nullopt;
    tensors[name] = {.dtype = DType::kBf16,
                     .shape = shape,
                     .data = std::as_bytes(std::span(ones).first(static_cast<size_t>(elements)))};
  }
  return tensors;
}

void Step(const ModelSpec& spec, const TensorMap& tensors) {
  const auto runner = ModelRunner::Create({.model_dir = {},
                                           .compute_dtype = DType::kF32,
                                           .kv_dtype = DType::kF32,
                                           .kv_blocks = spec.layers,
                                           .max_step_rows = 3,
                                           .max_step_logits = 1,
                                           .threads = 1},
                                          spec, tensors, "ones");
  LYNX_CHECK_MSG(runner.ok(), runner.status().ToString());
  const std::vector<lynx::TokenId> tokens(spec.max_positions < 3 ? 1 : 3, spec.vocab_size - 1);
  // One for each group of layers.
  std::vector<lynx::kv::BlockId> blocks(
      static_cast<size_t>((*runner)->kv().layout().groups.count()));
  std::iota(blocks.begin(), blocks.end(), 0);
  const lynx::model::SequenceRows rows{
      .tokens = tokens, .start = 0, .blocks = blocks, .logits_rows = 1};
  const absl::Status done = (*runner)->Step({&rows, 1}, nullptr);
  LYNX_CHECK_MSG(done.ok(), done.ToString());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config =
      lynx::model::ParseJson({reinterpret_cast<const char*>(data), size}, "config.json");
  absl::StatusOr<ModelSpec> spec =
      config.ok() ? lynx::model::ParseModelSpec(*config, "config.json") : config.status();
  if (!spec.ok()) {
    const std::string message(spec.status().message());
    LYNX_CHECK(message.find("config.json") != std::string::npos && message.size() < 2000);
    LYNX_CHECK(lynx::IsValidUtf8(message));
    return 0;
  }
  const std::string broken = lynx::testing::BrokenInvariant(*spec);
  LYNX_CHECK_MSG(broken.empty(), broken);
  if (lynx::model::KvLayoutOf(*spec, DType::kF32).BlockBytes() > 1 << 24) return 0;
  spec->mxfp4_experts = false;  // Ones are not quantised.
  if (const std::optional<TensorMap> tensors = Ones(*spec)) Step(*spec, *tensors);
  return 0;
}
