#include "common/text/internal/added_tokens.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <utility>

namespace lynx::text::internal {
namespace {

// \w of the reference: letters and other alphabetic, marks, digits, connectors, joiners.
bool IsWordChar(UChar32 c) {
  const uint32_t mask = U_GET_GC_MASK(c);
  return u_hasBinaryProperty(c, UCHAR_ALPHABETIC) || u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) ||
         (mask & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

UChar32 FirstChar(std::string_view text, int32_t& length) {
  UChar32 c = 0;
  length = 0;
  U8_NEXT_OR_FFFD(reinterpret_cast<const uint8_t*>(text.data()), length,
                  static_cast<int32_t>(text.size()), c);
  return c;
}

UChar32 LastChar(std::string_view text, int32_t& length) {
  UChar32 c = 0;
  auto end = static_cast<int32_t>(text.size());
  U8_PREV_OR_FFFD(reinterpret_cast<const uint8_t*>(text.data()), 0, end, c);
  length = static_cast<int32_t>(text.size()) - end;
  return c;
}

size_t TrailingSpace(std::string_view text) {
  const size_t size = text.size();
  while (!text.empty()) {
    int32_t length = 0;
    if (!u_isUWhiteSpace(LastChar(text, length))) break;
    text.remove_suffix(static_cast<size_t>(length));
  }
  return size - text.size();
}

size_t LeadingSpace(std::string_view text) {
  const size_t size = text.size();
  while (!text.empty()) {
    int32_t length = 0;
    if (!u_isUWhiteSpace(FirstChar(text, length))) break;
    text.remove_prefix(static_cast<size_t>(length));
  }
  return size - text.size();
}

bool TouchesWord(std::string_view before, std::string_view after) {
  int32_t length = 0;
  return (!before.empty() && IsWordChar(LastChar(before, length))) ||
         (!after.empty() && IsWordChar(FirstChar(after, length)));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens,
                                   const std::vector<std::string>& spellings)
    : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (spellings[i].empty()) continue;
    spellings_.Insert(spellings[i], static_cast<int32_t>(i));
    starts_[static_cast<uint8_t>(spellings[i][0])] = true;
  }
}

int32_t AddedTokenFinder::LongestAt(std::string_view text, size_t& length) const {
  int32_t found = -1;
  ByteTrie::Node node = ByteTrie::kRoot;
  for (size_t i = 0; i < text.size(); ++i) {
    node = spellings_.Next(node, text[i]);
    if (node == ByteTrie::kNone) break;
    if (const int32_t index = spellings_.Value(node); index >= 0) {
      found = index;
      length = i + 1;
    }
  }
  return found;
}

bool AddedTokenFinder::HasSpecial(std::string_view text) const {
  const std::vector<Range> ranges = Find(text);
  return std::any_of(ranges.begin(), ranges.end(), [this](const Range& range) {
    return range.id >= 0 && std::any_of(tokens_.begin(), tokens_.end(), [&](const AddedToken& t) {
             return t.special && t.id == range.id;
           });
  });
}

std::vector<AddedTokenFinder::Range> AddedTokenFinder::Find(
    std::string_view text, std::span<const TextRange> plain) const {
  std::vector<Range> ranges;
  size_t covered = 0;
  auto next_plain = plain.begin();
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    const int32_t index =
        starts_[static_cast<uint8_t>(text[at])] ? LongestAt(text.substr(at), length) : -1;
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = at;
    size_t end = at + length;
    at = end;
    if (token.special) {
      while (next_plain != plain.end() && next_plain->end <= begin) ++next_plain;
      if (next_plain != plain.end() && next_plain->begin < end) continue;
    }
    if (token.single_word && TouchesWord(text.substr(0, begin), text.substr(end))) continue;
    // White space that the previous token took along is not taken twice.
    if (token.lstrip) begin = std::max(begin - TrailingSpace(text.substr(0, begin)), covered);
    if (begin >= end) continue;  // And one that is white space itself may be all taken.
    if (token.rstrip) end += LeadingSpace(text.substr(end));
    if (covered < begin) ranges.push_back({covered, begin, -1});
    ranges.push_back({begin, end, token.id});
    covered = end;
  }
  if (covered < text.size()) ranges.push_back({covered, text.size(), -1});
  return ranges;
}

}  // namespace lynx::text::internal
