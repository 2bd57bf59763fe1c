#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/dtype.h"

// What Hugging Face transformers computed in float32 (tests/golden/make_golden.py), and how far
// from it a result may be.
namespace lynx::testing {

// float32: both sides sum in float32 in different orders. Half a hundred sums of up to a few
// hundred terms in a row, each good to about 1e-6, stay two orders below this. Of a logit, relative
// to the largest |logit| at its position.
inline constexpr double kGoldenBoundF32 = 2e-4;
// bf16, the same measure: at the worst position, one where rounding flips a routing choice between
// two experts of almost equal weight; transformers' own bf16 run of the demo model is 9.3 % off its
// float32 run there.
inline constexpr double kGoldenBoundBf16 = 8e-2;
// bf16, KL in nats, of models that bf16 makes route no differently; transformers' own bf16 run
// stays below 5e-4.
inline constexpr double kGoldenDivergenceBf16 = 1e-3;

// One prompt and what follows it.
struct GoldenPrompt {
  std::vector<TokenId> tokens;
  std::vector<int32_t> full_positions;        // All, of a variant.
  std::vector<std::vector<float>> full;       // Logits there.
  std::vector<std::vector<int32_t>> top_ids;  // Of every position.
  std::vector<std::vector<float>> top;
  std::vector<float> largest;  // |logit| of every position.
  std::vector<TokenId> greedy;
  std::vector<double> greedy_gaps;  // Between the two best, relative to the largest |logit|.
};

// `base` is the path without extension.
std::vector<GoldenPrompt> LoadGoldenFixture(const std::string& base);

// Random models of every family with odd sizes; between them every switch of each.
inline constexpr const char* kGoldenVariants[] = {"deepseek-v2",
                                                  "deepseek-v2-grouped",
                                                  "deepseek-v3",
                                                  "deepseek-v3-fp8",
                                                  "deepseek-v3-plain",
                                                  "dense-untied-f32",
                                                  "sparse-step-tied-f16",
                                                  "glm4-moe",
                                                  "glm4-moe-plain",
                                                  "gpt-oss",
                                                  "gpt-oss-mxfp4",
                                                  "granitemoe",
                                                  "granitemoeshared",
                                                  "llama",
                                                  "llama-biased",
                                                  "llama3-scaled",
                                                  "llama4",
                                                  "llama4-text",
                                                  "mistral",
                                                  "mistral-window",
                                                  "mixtral",
                                                  "mixtral-window",
                                                  "olmoe",
                                                  "olmoe-clipped",
                                                  "qwen2",
                                                  "qwen2-late-windows",
                                                  "qwen2-layer-types",
                                                  "qwen2-moe",
                                                  "qwen2-moe-windows",
                                                  "qwen3",
                                                  "qwen3-moe-fp8",
                                                  "qwen3-moe-window",
                                                  "qwen3-window",
                                                  "qwen3-yarn"};

// The model folder of a variant, and the base of its fixture.
std::string GoldenVariantPath(const std::string& variant);

// "deepseek-v2" as a part of a test's name.
inline std::string GoldenTestName(std::string variant) {
  std::ranges::replace(variant, '-', '_');
  return variant;
}

double LogSumExp(std::span<const float> logits);
// KL(softmax(want), softmax(got)) in nats; infinite when there is a NaN.
double Divergence(std::span<const float> want, std::span<const float> got);
// Largest |got - want|, relative to the largest |want|; infinite when there is a NaN.
double RelativeDifference(std::span<const float> want, std::span<const float> got);

}  // namespace lynx::testing
