#include "common/model/families/family.h"

#include "absl/strings/str_join.h"

namespace lynx::model {
namespace {

constexpr const Family* kFamilies[] = {
    &kDeepseekV2, &kDeepseekV3, &kGlm4Moe,    &kGptOss,   &kGraniteMoe, &kGraniteMoeShared,
    &kLlama,      &kLlama4,     &kLlama4Text, &kMistral,  &kMixtral,    &kOlmoe,
    &kQwen2,      &kQwen2Moe,   &kQwen3,      &kQwen3Moe,
};

}  // namespace

const Family* FindFamily(std::string_view model_type) {
  for (const Family* family : kFamilies) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

std::string FamilyNames() {
  return absl::StrJoin(kFamilies, ", ", [](std::string* to, const Family* family) {
    to->append(family->model_type);
  });
}

}  // namespace lynx::model
