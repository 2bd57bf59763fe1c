#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/text/internal/json_file.h"

namespace lynx::text::internal {

// Text cut into words: the model merges inside a word only.
struct SplitText {
  struct Word {
    size_t begin;
    size_t end;
    bool at_start;  // Nothing of the caller's text comes before this word.
  };
  std::string text;
  std::vector<Word> words;
};

// The "pre_tokenizer" of tokenizer.json. Immutable; thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cuts every word further, and may rewrite it. Leaves no empty word.
  virtual absl::Status Apply(SplitText& split) const = 0;
};

// ByteLevel, CharDelimiterSplit, Digits, Metaspace, Punctuation, Sequence, Split, Whitespace and
// WhitespaceSplit; null gives one that changes nothing. Any other type is refused by name.
absl::StatusOr<std::unique_ptr<PreTokenizer>> CreatePreTokenizer(const Json* config,
                                                                 std::string_view place);

// The code point that byte-level vocabularies write for `byte`, and back (-1 when it stands for
// none). Printable bytes stand for themselves, the others are moved to U+0100 and up.
char32_t ByteLevelCodePoint(unsigned char byte);
int ByteOfCodePoint(char32_t code_point);

}  // namespace lynx::text::internal
