#include "common/config/config_file.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lynx::config {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\r'; }

bool IsKeyChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

// Reads one line from left to right. Functions return nullopt or false when the text is malformed.
class LineReader {
 public:
  explicit LineReader(std::string_view text) : text_(text) {}

  void SkipSpace() {
    while (!text_.empty() && IsSpace(text_.front())) text_.remove_prefix(1);
  }
  bool Take(char c) {
    SkipSpace();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  // Nothing but a comment is left.
  bool AtEnd() {
    SkipSpace();
    return text_.empty() || text_.front() == '#';
  }
  std::string Key() {
    SkipSpace();
    size_t n = 0;
    while (n < text_.size() && IsKeyChar(text_[n])) ++n;
    std::string key(text_.substr(0, n));
    text_.remove_prefix(n);
    return key;
  }
  std::optional<std::string> Scalar() {
    SkipSpace();
    if (!text_.empty() && text_.front() == '"') return Quoted();
    constexpr std::string_view kEnds = " \t\r#,[]\"";
    const size_t n = std::min(text_.find_first_of(kEnds), text_.size());
    if (n == 0) return std::nullopt;
    std::string word(text_.substr(0, n));
    text_.remove_prefix(n);
    return word;
  }
  std::optional<std::vector<std::string>> Value() {
    std::vector<std::string> values;
    if (!Take('[')) {
      std::optional<std::string> scalar = Scalar();
      if (!scalar) return std::nullopt;
      values.push_back(*std::move(scalar));
      return values;
    }
    while (!Take(']')) {
      std::optional<std::string> scalar = Scalar();
      if (!scalar) return std::nullopt;
      values.push_back(*std::move(scalar));
      if (Take(',')) continue;
      if (!Take(']')) return std::nullopt;
      break;
    }
    return values;
  }

 private:
  std::optional<std::string> Quoted() {
    std::string value;
    for (size_t i = 1; i < text_.size(); ++i) {
      if (text_[i] == '"') {
        text_.remove_prefix(i + 1);
        return value;
      }
      if (text_[i] == '\\') {
        ++i;
        if (i < text_.size() && text_[i] == 'n') {
          value.push_back('\n');
          continue;
        }
        if (i == text_.size() || (text_[i] != '"' && text_[i] != '\\')) return std::nullopt;
      }
      value.push_back(text_[i]);
    }
    return std::nullopt;
  }

  std::string_view text_;
};

}  // namespace

absl::StatusOr<std::vector<ConfigEntry>> ParseConfigFile(std::string_view text,
                                                         const std::string& file_name) {
  std::vector<ConfigEntry> entries;
  int line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const size_t end = std::min(text.find('\n'), text.size());
    LineReader line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.AtEnd()) continue;

    const std::string where = absl::StrCat(file_name, ":", line_number, ": ");
    std::string key = line.Key();
    if (key.empty() || !line.Take('=')) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, "expected `key = value` (sections are not used)"));
    }
    std::optional<std::vector<std::string>> values = line.Value();
    if (!values || !line.AtEnd()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, "malformed value of '", key,
                       "'; text with spaces or punctuation needs \"double quotes\""));
    }
    for (const ConfigEntry& earlier : entries) {
      if (earlier.key == key) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, "'", key, "' was already set in line ", earlier.line));
      }
    }
    entries.push_back({std::move(key), *std::move(values), line_number});
  }
  return entries;
}

std::string QuoteConfigValue(std::string_view value) {
  const bool bare = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return IsKeyChar(c) || c == '.' || c == '+' || c == '/' || c == ':';
  });
  if (bare) return std::string(value);
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n') {
      quoted += "\\n";
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace lynx::config
