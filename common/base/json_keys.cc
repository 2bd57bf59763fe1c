#include "common/base/json_keys.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/base/utf8.h"

namespace lynx {
namespace {

// What the escaped text between two quotes stands for.
std::string Unescaped(std::string_view text) {
  std::string out;
  const auto unit = [text](size_t at) {
    const std::string digits(text.substr(std::min(at, text.size()), 4));
    return static_cast<uint32_t>(std::strtoul(digits.c_str(), nullptr, 16));
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char sign = text[++i];
    if (sign != 'u') {
      constexpr std::string_view kSigns = "bfnrt";
      const size_t at = kSigns.find(sign);
      out += at == std::string_view::npos ? sign : "\b\f\n\r\t"[at];
      continue;
    }
    uint32_t code = unit(i + 1);
    i += 4;
    if (code >= 0xD800 && code < 0xDC00) {
      code = 0x10000 + ((code - 0xD800) << 10) + (unit(i + 3) & 0x3FF);
      i += 6;
    }
    AppendUtf8(code, out);
  }
  return out;
}

}  // namespace

std::optional<std::string> RepeatedJsonKey(std::string_view json) {
  struct Open {
    bool is_object;
    std::unordered_set<std::string> keys;
  };
  std::vector<Open> open;  // What the current place is inside of.
  bool wants_key = false;  // The next string is a key.
  for (size_t i = 0; i < json.size(); ++i) {
    switch (json[i]) {
      case '{':
      case '[':
        open.push_back({json[i] == '{', {}});
        wants_key = open.back().is_object;
        break;
      case '}':
      case ']':
        if (!open.empty()) open.pop_back();
        wants_key = false;
        break;
      case ',':
        wants_key = !open.empty() && open.back().is_object;
        break;
      case '"': {
        const size_t begin = ++i;
        bool escapes = false;
        for (; i < json.size() && json[i] != '"'; ++i) {
          if (json[i] != '\\') continue;
          escapes = true;
          ++i;
        }
        if (!std::exchange(wants_key, false) || i > json.size()) break;
        const std::string_view text = json.substr(begin, i - begin);
        std::string key = escapes ? Unescaped(text) : std::string(text);
        if (!open.back().keys.insert(key).second) return key;
        break;
      }
      default:
        break;
    }
  }
  return std::nullopt;
}

}  // namespace lynx
