#include "common/moe/presets.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace lynx::moe {
namespace {

// Gaps measured by the row's own spread: the bins between the first and the last expert of a row's
// top-k, all but the last of which it holds on to.
constexpr double kSelfScaledAlpha = 4;
constexpr int32_t kSelfScaledBeta = 3;

struct Published {
  std::string_view model_type;
  int32_t experts;
  int32_t top_k;
  int32_t hidden_size;    // 0: any.
  std::string_view word;  // In the model's name, lower case; empty: any.
  double alpha;
  int32_t beta;
  std::string_view model;
};

// The first that fits is taken.
constexpr Published kPublished[] = {
    {"qwen2_moe", 64, 8, 0, "", 3, 4, "Qwen2-57B-A14B"},
    {"qwen3_moe", 128, 8, 2048, "", 3, 2, "Qwen3-30B-A3B"},
    {"qwen3_moe", 128, 8, 4096, "thinking", 1, 2, "Qwen3-235B-A22B Thinking"},
    {"qwen3_moe", 128, 8, 4096, "", 3, 2, "Qwen3-235B-A22B Instruct"},
    {"mixtral", 8, 2, 4096, "", 0.7, 1, "Mixtral-8x7B"},
    {"mixtral", 8, 2, 6144, "", 1, 1, "Mixtral-8x22B"},
    {"deepseek_v2", 160, 6, 0, "", 1, 2, "DeepSeek-Coder-V2"},
    {"gpt_oss", 128, 4, 0, "", 3, 2, "gpt-oss-120b"},
    {"llama4", 16, 1, 0, "", 1, Policy::kUnbounded, "Llama-4"},
    {"llama4_text", 16, 1, 0, "", 1, Policy::kUnbounded, "Llama-4"},
};

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

bool Fits(const Published& preset, const ModelFacts& facts) {
  return preset.model_type == facts.model_type && preset.experts == facts.experts &&
         preset.top_k == facts.top_k &&
         (preset.hidden_size == 0 || preset.hidden_size == facts.hidden_size) &&
         Lower(facts.name).find(preset.word) != std::string::npos;
}

}  // namespace

Preset PresetFor(const ModelFacts& facts) {
  Preset preset{.floor = std::min(1, facts.top_k), .off_unless_given = facts.scales_input};
  const auto* const known =
      std::find_if(std::begin(kPublished), std::end(kPublished),
                   [&](const Published& entry) { return Fits(entry, facts); });
  if (known != std::end(kPublished)) {
    preset.alpha = known->alpha;
    preset.beta = known->beta;
    preset.source = absl::StrCat("published for ", std::string(known->model));
  } else {
    const double share = facts.experts > 0 ? static_cast<double>(facts.top_k) / facts.experts : 0;
    preset.alpha = 3;
    preset.beta = static_cast<int32_t>(std::clamp(std::ceil(2 + 16 * share), 1.0, 4.0));
    preset.source = "default for models without a published preset";
  }
  if (preset.off_unless_given) {
    absl::StrAppend(&preset.source,
                    "; off unless parameters are given, because this router scales what an expert "
                    "reads, and a stand-in would replace all that it chose");
  }
  return preset;
}

Policy WithPreset(const Policy& policy, const ModelFacts& facts) {
  const Preset preset = PresetFor(facts);
  Policy filled = policy;
  const auto fill = [](int32_t& field, int32_t value) {
    if (field == Policy::kUnset) field = value;
  };
  switch (policy.kind) {
    case Policy::Kind::kLynx:
    case Policy::Kind::kLynxCompat: {
      const bool bare = policy.alpha == 0 && policy.beta == Policy::kUnset;
      if (bare && preset.off_unless_given) return Policy{};
      if (filled.alpha == 0) filled.alpha = policy.self_scaled ? kSelfScaledAlpha : preset.alpha;
      fill(filled.beta, policy.self_scaled ? kSelfScaledBeta : preset.beta);
      if (policy.kind == Policy::Kind::kLynx) fill(filled.floor, bare ? preset.floor : 0);
      return filled;
    }
    case Policy::Kind::kOea:
      if (policy.k0 == Policy::kUnset && preset.off_unless_given) return Policy{};
      fill(filled.k0, std::max(1, (facts.top_k + 1) / 2));
      return filled;
    case Policy::Kind::kVote:
    case Policy::Kind::kBudget:
    case Policy::Kind::kMarginal:
      fill(filled.floor, 0);
      return filled;
    default:
      return filled;
  }
}

}  // namespace lynx::moe
