#include "common/text/internal/model.h"

#include "common/base/status_macros.h"
#include "common/text/internal/bpe.h"
#include "common/text/internal/unigram.h"

namespace lynx::text::internal {

absl::StatusOr<std::unique_ptr<Model>> CreateModel(const Json& model, std::string_view place) {
  std::string type = "BPE";  // Files written before the field existed hold byte-pair models.
  if (FindField(model, "type") != nullptr) {
    LYNX_ASSIGN_OR_RETURN(type, StringField(model, "type", place));
  }
  if (type == "BPE") return Bpe::Create(model, place);
  if (type == "Unigram") return Unigram::Create(model, place);
  return BadJson(place, "model type '" + type + "' is not supported (BPE, Unigram)");
}

}  // namespace lynx::text::internal
