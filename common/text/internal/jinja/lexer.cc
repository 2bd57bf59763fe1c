#include "common/text/internal/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/text/internal/jinja/value.h"

namespace lynx::text::jinja {
namespace {

using Kind = Token::Kind;

bool IsNameStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameChar(char c) { return IsNameStart(c) || IsDigit(c); }

std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) LYNX_RETURN_IF_ERROR(Step());
    Emit(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view Rest() const { return std::string_view(source_).substr(at_); }
  bool Looking(std::string_view text) const { return Rest().starts_with(text); }

  void Emit(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), place_}); }

  void Advance(size_t count) {
    const std::string_view passed = Rest().substr(0, count);
    const size_t newline = passed.rfind('\n');
    if (newline == std::string_view::npos) {
      place_.column += static_cast<int>(CodePointCount(passed));
    } else {
      place_.line += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
      place_.column = 1 + static_cast<int>(CodePointCount(passed.substr(newline + 1)));
    }
    at_ += count;
  }
  void SkipSpace() { Advance(Rest().size() - StripSpace(Rest(), true, false).size()); }

  // The next tag, with the text before it.
  absl::Status Step() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        EmitData(Rest());
        Advance(source_.size() - at_);
        return absl::OkStatus();
      }
      if (source_[tag + 1] == '{' || source_[tag + 1] == '%' || source_[tag + 1] == '#') break;
    }
    std::string_view data = std::string_view(source_).substr(at_, tag - at_);
    const char type = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    data = TrimBeforeTag(data, sign, type != '{');
    EmitData(data);
    Advance(tag - at_);
    const Place opened = place_;
    Advance(2);
    if (sign == '-' || sign == '+') Advance(1);
    if (type == '#') return Comment(opened);
    if (type == '%' && IsRaw()) return Raw(opened);
    Emit(type == '{' ? Kind::kVariableBegin : Kind::kBlockBegin, "");
    return Inside(type == '{' ? '}' : '%', opened);
  }

  void EmitData(std::string_view data) {
    if (!data.empty()) Emit(Kind::kData, std::string(data));
  }

  // What stays of the text in front of a tag.
  std::string_view TrimBeforeTag(std::string_view data, char sign, bool is_block) const {
    if (sign == '-') return StripSpace(data, false, true);
    if (sign == '+' || !is_block) return data;
    const size_t newline = data.rfind('\n');
    const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_start == 0 && !line_starting_) return data;
    if (StripSpace(data.substr(line_start), true, false).empty()) return data.substr(0, line_start);
    return data;
  }

  // Behind a tag: "-" takes all white space, else a block or comment takes one newline.
  void TrimAfterTag(char sign, bool is_block) {
    const size_t before = at_;
    if (sign == '-') {
      SkipSpace();
    } else if (is_block && sign != '+' && Looking("\n")) {
      Advance(1);
    }
    line_starting_ = at_ > before && source_[at_ - 1] == '\n';
  }

  absl::Status Comment(const Place& tag) {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return TemplateError(tag, "a comment is not closed");
    char sign = '\0';
    if (end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+')) sign = source_[end - 1];
    Advance(end + 2 - at_);
    TrimAfterTag(sign, true);
    return absl::OkStatus();
  }

  // At the word of a "raw" tag.
  bool IsRaw() const {
    const std::string_view rest = StripSpace(Rest(), true, false);
    if (!rest.starts_with("raw")) return false;
    const std::string_view end = StripSpace(rest.substr(3), true, false);
    return end.starts_with("%}") || end.starts_with("-%}");
  }

  absl::Status Raw(const Place& opened) {
    const size_t close = source_.find("%}", at_);
    const char sign = source_[close - 1];
    Advance(close + 2 - at_);
    if (sign == '-') SkipSpace();
    line_starting_ = false;
    for (size_t tag = at_; (tag = source_.find("{%", tag)) != std::string::npos; tag += 2) {
      size_t word = tag + 2;
      const char begin_sign = source_[word];
      if (begin_sign == '-' || begin_sign == '+') ++word;
      const std::string_view rest = StripSpace(std::string_view(source_).substr(word), true, false);
      if (!rest.starts_with("endraw")) continue;
      const size_t end = source_.find("%}", word);
      if (end == std::string::npos) break;
      const std::string_view behind = StripSpace(rest.substr(6), true, false);
      if (!behind.starts_with("%}") && !behind.starts_with("-%}") && !behind.starts_with("+%}")) {
        continue;
      }
      EmitData(TrimBeforeTag(std::string_view(source_).substr(at_, tag - at_), begin_sign, true));
      const char end_sign = source_[end - 1];
      Advance(end + 2 - at_);
      TrimAfterTag(end_sign, true);
      return absl::OkStatus();
    }
    return TemplateError(opened, "a raw block is not closed");
  }

  // Tokens up to the end of a tag.
  absl::Status Inside(char end, const Place& tag) {
    std::string brackets;
    for (;;) {
      SkipSpace();
      if (at_ >= source_.size()) return TemplateError(tag, "a tag is not closed");
      if (brackets.empty()) {
        char sign = '\0';
        std::string_view rest = Rest();
        if (rest[0] == '-' || (rest[0] == '+' && end == '%')) {
          sign = rest[0];
          rest.remove_prefix(1);
        }
        if (rest.size() >= 2 && rest[0] == end && rest[1] == '}') {
          Emit(end == '}' ? Kind::kVariableEnd : Kind::kBlockEnd, "");
          Advance(sign == '\0' ? 2 : 3);
          TrimAfterTag(sign, end == '%');
          return absl::OkStatus();
        }
      }
      LYNX_RETURN_IF_ERROR(One(brackets));
    }
  }

  absl::Status One(std::string& brackets) {
    const std::string_view rest = Rest();
    const char c = rest[0];
    if (IsNameStart(c)) {
      size_t length = 1;
      while (length < rest.size() && IsNameChar(rest[length])) ++length;
      Emit(Kind::kName, std::string(rest.substr(0, length)));
      Advance(length);
      return absl::OkStatus();
    }
    if (IsDigit(c)) return Number();
    if (c == '\'' || c == '"') return String(c);
    static constexpr std::array<std::string_view, 6> kTwo = {"//", "**", "==", "!=", "<=", ">="};
    for (const std::string_view op : kTwo) {
      if (rest.starts_with(op)) {
        Emit(Kind::kOperator, std::string(op));
        Advance(2);
        return absl::OkStatus();
      }
    }
    static constexpr std::string_view kOne = "+-*/%~<>=.:|,()[]{}";
    if (kOne.find(c) == std::string_view::npos) {
      return TemplateError(place_,
                           absl::StrCat("unexpected character '",
                                        std::string(CodePoints(rest.substr(0, 4))[0]), "'"));
    }
    if (c == '(' || c == '[' || c == '{') {
      brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty() || brackets.back() != c) {
        return TemplateError(place_, absl::StrCat("unexpected '", std::string(1, c), "'"));
      }
      brackets.pop_back();
    }
    Emit(Kind::kOperator, std::string(1, c));
    Advance(1);
    return absl::OkStatus();
  }

  absl::Status Number() {
    const std::string_view rest = Rest();
    size_t length = 0;
    const auto digits = [&] {
      while (length < rest.size() && (IsDigit(rest[length]) || rest[length] == '_')) ++length;
    };
    const auto digit_at = [&](size_t i) { return i < rest.size() && IsDigit(rest[i]); };
    digits();
    bool is_float = false;
    if (length < rest.size() && rest[length] == '.' && digit_at(length + 1)) {
      is_float = true;
      ++length;
      digits();
    }
    if (length < rest.size() && (rest[length] == 'e' || rest[length] == 'E')) {
      const bool sign =
          length + 1 < rest.size() && (rest[length + 1] == '+' || rest[length + 1] == '-');
      if (digit_at(length + (sign ? 2 : 1))) {
        is_float = true;
        length += sign ? 2 : 1;
        digits();
      }
    }
    if (length < rest.size() && IsNameStart(rest[length])) {
      return TemplateError(place_, "malformed number");
    }
    std::string text(rest.substr(0, length));
    std::erase(text, '_');
    Emit(is_float ? Kind::kFloat : Kind::kInteger, std::move(text));
    Advance(length);
    return absl::OkStatus();
  }

  absl::Status String(char quote) {
    const std::string_view rest = Rest();
    std::string value;
    size_t i = 1;
    for (; i < rest.size() && rest[i] != quote; ++i) {
      if (rest[i] != '\\') {
        value += rest[i];
        continue;
      }
      if (++i == rest.size()) break;
      LYNX_RETURN_IF_ERROR(Escape(rest, i, value));
    }
    if (i >= rest.size()) return TemplateError(place_, "a string is not closed");
    Emit(Kind::kString, std::move(value));
    Advance(i + 1);
    return absl::OkStatus();
  }

  // `i` is at the character behind the backslash, and ends at the last one of the escape.
  absl::Status Escape(std::string_view text, size_t& i, std::string& value) const {
    const auto hex = [&](size_t count) -> absl::Status {
      uint32_t code = 0;
      const char* begin = text.data() + i + 1;
      const bool fits = i + count < text.size();
      const auto result = fits ? std::from_chars(begin, begin + count, code, 16)
                               : std::from_chars_result{begin, std::errc::invalid_argument};
      if (result.ec != std::errc() || result.ptr != begin + count || code > 0x10FFFF ||
          (code >= 0xD800 && code < 0xE000)) {
        return TemplateError(place_, "malformed escape in a string");
      }
      AppendUtf8(code, value);
      i += count;
      return absl::OkStatus();
    };
    switch (text[i]) {
      case 'n':
        value += '\n';
        break;
      case 't':
        value += '\t';
        break;
      case 'r':
        value += '\r';
        break;
      case 'b':
        value += '\b';
        break;
      case 'f':
        value += '\f';
        break;
      case 'v':
        value += '\v';
        break;
      case 'a':
        value += '\a';
        break;
      case '\n':
        break;
      case '\\':
      case '\'':
      case '"':
        value += text[i];
        break;
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      case 'N':
        return TemplateError(place_, "\\N in a string is not supported");
      default: {
        if (text[i] < '0' || text[i] > '7') {  // An unknown escape stands for itself.
          value += '\\';
          value += text[i];
          break;
        }
        uint32_t code = 0;
        size_t count = 0;
        while (count < 3 && i + count < text.size() && text[i + count] >= '0' &&
               text[i + count] <= '7') {
          code = code * 8 + static_cast<uint32_t>(text[i + count] - '0');
          ++count;
        }
        AppendUtf8(code, value);
        i += count - 1;
      }
    }
    return absl::OkStatus();
  }

  const std::string source_;
  size_t at_ = 0;
  Place place_;
  bool line_starting_ = true;  // The last tag took its newline along.
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status TemplateError(const Place& place, std::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", place.line, ", column ", place.column, ": ", std::string(message)));
}

absl::StatusOr<std::vector<Token>> Lex(std::string_view source) {
  return Lexer(NormalizeNewlines(source)).Run();
}

}  // namespace lynx::text::jinja
