#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lynx {

// The longest start of `text` that begins some well-formed sequence, and whether it is a whole one.
// {n, false} with n == text.size() > 0: more bytes may complete it. {0, false}: empty, or a byte
// that can start nothing.
struct Utf8Prefix {
  size_t length;
  bool complete;
};
Utf8Prefix WellFormedUtf8Prefix(std::string_view text);

// Length of the well-formed UTF-8 sequence at the start of `text` (1 to 4), or 0 when there is none
// (empty, malformed, over-long, surrogate, past U+10FFFF, or cut off).
size_t Utf8SequenceLength(std::string_view text);

bool IsValidUtf8(std::string_view text);

// Whatever `code_point`, a surrogate too; at most 0x1FFFFF.
void AppendUtf8(char32_t code_point, std::string& out);

// `text` with U+FFFD for each maximal malformed part, as the Unicode standard recommends
// (and `bytes.decode("utf-8", "replace")` of Python does).
std::string ReplaceInvalidUtf8(std::string_view text);

// Appends `text` as the inside of a JSON string; malformed UTF-8 becomes U+FFFD.
void AppendJsonEscaped(std::string_view text, std::string& out);

}  // namespace lynx
