#include "common/text/internal/post_processor.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::text::internal {
namespace {

// The ids that "TemplateProcessing" puts around one sequence.
absl::StatusOr<PostProcessor> ReadTemplate(const Json& config, std::string_view place) {
  PostProcessor out;
  const Json* single = FindField(config, "single");
  if (single == nullptr || !single->is_array()) return BadJson(place, "'single' must be an array");
  const Json* specials = FindField(config, "special_tokens");
  bool behind = false;
  for (const Json& item : *single) {
    if (FindField(item, "Sequence") != nullptr) {
      if (behind) return BadJson(place, "'single' names the sequence twice");
      behind = true;
      continue;
    }
    const Json* reference = FindField(item, "SpecialToken");
    if (reference == nullptr) return BadJson(place, "'single' holds an unknown item");
    LYNX_ASSIGN_OR_RETURN(const std::string name, StringField(*reference, "id", place));
    const Json* definition = specials == nullptr ? nullptr : FindField(*specials, name);
    const Json* ids = definition == nullptr ? nullptr : FindField(*definition, "ids");
    if (ids == nullptr || !ids->is_array()) {
      return BadJson(place, "special token '" + name + "' has no ids");
    }
    for (const Json& id : *ids) {
      LYNX_ASSIGN_OR_RETURN(const int32_t value, ToTokenId(id, place));
      (behind ? out.suffix : out.prefix).push_back(value);
    }
  }
  if (!behind) return BadJson(place, "'single' does not name the sequence");
  return out;
}

// The id in a pair of a spelling and an id.
absl::StatusOr<int32_t> ReadPair(const Json& config, const char* key, std::string_view place) {
  const Json* pair = FindField(config, key);
  if (pair == nullptr || !pair->is_array() || pair->size() != 2) {
    return BadJson(place, std::string("'") + key + "' must be a pair of a token and its id");
  }
  return ToTokenId((*pair)[1], place);
}

absl::StatusOr<PostProcessor> ReadSequence(const Json& config, std::string_view place) {
  const Json* parts = FindField(config, "processors");
  if (parts == nullptr || !parts->is_array()) {
    return BadJson(place, "'processors' must be an array");
  }
  PostProcessor out;
  for (size_t i = 0; i < parts->size(); ++i) {
    const std::string here = absl::StrCat(std::string(place), ".processors[", i, "]");
    LYNX_ASSIGN_OR_RETURN(PostProcessor part, CreatePostProcessor(&(*parts)[i], here));
    if (part.prefix.empty() && part.suffix.empty()) continue;
    if (!out.prefix.empty() || !out.suffix.empty()) {
      return BadJson(here, "a second processor that adds tokens is not supported");
    }
    out = std::move(part);
  }
  return out;
}

}  // namespace

absl::StatusOr<PostProcessor> CreatePostProcessor(const Json* config, std::string_view place) {
  if (config == nullptr) return PostProcessor();
  LYNX_ASSIGN_OR_RETURN(const std::string type, StringField(*config, "type", place));
  if (type == "ByteLevel") return PostProcessor();
  if (type == "TemplateProcessing") return ReadTemplate(*config, place);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    LYNX_ASSIGN_OR_RETURN(const int32_t first, ReadPair(*config, "cls", place));
    LYNX_ASSIGN_OR_RETURN(const int32_t last, ReadPair(*config, "sep", place));
    return PostProcessor{{first}, {last}};
  }
  if (type == "Sequence") return ReadSequence(*config, place);
  return BadJson(place, "post_processor type '" + type +
                            "' is not supported (BertProcessing, ByteLevel, RobertaProcessing, "
                            "Sequence, TemplateProcessing)");
}

}  // namespace lynx::text::internal
