#include "common/base/utf8.h"

#include <cstdint>

namespace lynx {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

// Bounds of the second byte: Unicode 15, table 3-7.
Utf8Prefix WellFormedUtf8Prefix(std::string_view text) {
  if (text.empty()) return {0, false};
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true};
  size_t want = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    want = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    want = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    want = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {0, false};
  }
  for (size_t i = 1; i < want; ++i) {
    if (i >= text.size() || byte(i) < low || byte(i) > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {want, true};
}

size_t Utf8SequenceLength(std::string_view text) {
  const Utf8Prefix prefix = WellFormedUtf8Prefix(text);
  return prefix.complete ? prefix.length : 0;
}

void AppendUtf8(char32_t code_point, std::string& out) {
  const auto put = [&out](char32_t byte) { out += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Prefix prefix = WellFormedUtf8Prefix(text);
    if (prefix.complete) {
      out.append(text.substr(0, prefix.length));
      text.remove_prefix(prefix.length);
    } else {
      out.append(kReplacement);
      text.remove_prefix(prefix.length == 0 ? 1 : prefix.length);
    }
  }
  return out;
}

void AppendJsonEscaped(std::string_view text, std::string& out) {
  static constexpr char kHex[] = "0123456789abcdef";
  while (!text.empty()) {
    const char c = text[0];
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x80) {
      const Utf8Prefix prefix = WellFormedUtf8Prefix(text);
      out.append(prefix.complete ? text.substr(0, prefix.length) : kReplacement);
      text.remove_prefix(prefix.length == 0 ? 1 : prefix.length);
      continue;
    }
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (byte < 0x20 || byte == 0x7F) {
          out += "\\u00";
          out += kHex[byte >> 4];
          out += kHex[byte & 15];
        } else {
          out += c;
        }
    }
    text.remove_prefix(1);
  }
}

}  // namespace lynx
