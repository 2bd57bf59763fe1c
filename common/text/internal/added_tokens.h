#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/internal/byte_trie.h"
#include "common/text/text_range.h"

namespace lynx::text::internal {

// A token that is found in the text itself, before the model splits anything.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool normalized = false;   // Searched in the normalised text, else in the raw one.
  bool lstrip = false;       // Takes the white space before it along.
  bool rstrip = false;       // And behind it.
  bool single_word = false;  // Found only where no word character touches it.
};

// Finds added tokens: leftmost, and the longest of those that start there. Immutable; thread-safe.
class AddedTokenFinder {
 public:
  struct Range {
    size_t begin;
    size_t end;
    int32_t id;  // -1: ordinary text.
  };

  AddedTokenFinder() = default;
  // `spellings[i]` is how tokens[i] is spelt in the searched text; of equal ones the first wins.
  AddedTokenFinder(std::vector<AddedToken> tokens, const std::vector<std::string>& spellings);

  // Covers `text` with tokens and the text between them, in order. Special tokens that touch a
  // range of `plain` (in order, apart) are ordinary text.
  std::vector<Range> Find(std::string_view text, std::span<const TextRange> plain = {}) const;
  // Whether the spelling of a special token is found in `text`.
  bool HasSpecial(std::string_view text) const;

 private:
  // The index in tokens_ of the longest token at the start of `text`, or -1; and its length.
  int32_t LongestAt(std::string_view text, size_t& length) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> starts_{};  // Bytes that some spelling starts with.
  ByteTrie spellings_;              // Their values are indices of tokens_.
};

}  // namespace lynx::text::internal
