#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/internal/json_file.h"

namespace lynx::text::internal {

// The "post_processor" of tokenizer.json, for single texts: the ids that go before and behind one.
struct PostProcessor {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};

// BertProcessing, ByteLevel (which only moves offsets), RobertaProcessing, TemplateProcessing, and
// a Sequence in which one adds tokens; null adds none. Any other type is refused by name.
absl::StatusOr<PostProcessor> CreatePostProcessor(const Json* config, std::string_view place);

}  // namespace lynx::text::internal
