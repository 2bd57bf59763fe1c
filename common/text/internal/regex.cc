#define PCRE2_CODE_UNIT_WIDTH 8

#include "common/text/internal/regex.h"

#include <pcre2.h>

#include <array>
#include <cctype>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace lynx::text::internal {
namespace {

constexpr uint32_t kMatchLimit = 20'000'000;
constexpr uint32_t kHeapLimitKiB = 64 * 1024;
constexpr size_t kJitStackStartBytes = 32 * 1024;
constexpr size_t kJitStackMaxBytes = 8 * 1024 * 1024;

// What the Unicode-aware classes of Oniguruma hold. PCRE2's \s has U+180E besides, its \w lacks the
// marks.
constexpr std::string_view kSpace = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWord = R"(\p{L}\p{M}\p{Nd}\p{Pc})";

// Match data and JIT stack of one thread; only the overall match is asked for, so one pair will do
// for every pattern.
struct Scratch {
  Scratch()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr)) {
    LYNX_CHECK(data != nullptr && context != nullptr);
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKiB);
    // Without a stack PCRE2 uses 32 KiB of the machine stack.
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Scratch() {
    if (stack != nullptr) pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

std::string ErrorText(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

absl::Status Refuse(std::string_view pattern, std::string_view why) {
  return absl::InvalidArgumentError("pattern '" + std::string(pattern) + "': " + std::string(why));
}

}  // namespace

void Regex::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

absl::StatusOr<std::string> TranslatePattern(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      if (++i == pattern.size()) return Refuse(pattern, "ends in a backslash");
      const char escaped = pattern[i];
      switch (escaped) {
        case 's':
        case 'w': {
          const std::string_view set = escaped == 's' ? kSpace : kWord;
          absl::StrAppend(&out, in_class ? "" : "[", absl::string_view(set.data(), set.size()),
                          in_class ? "" : "]");
          break;
        }
        case 'S':
        case 'W': {
          if (in_class) {
            return Refuse(pattern,
                          std::string("\\") + escaped + " inside a class is not supported");
          }
          const std::string_view set = escaped == 'S' ? kSpace : kWord;
          absl::StrAppend(&out, "[^", absl::string_view(set.data(), set.size()), "]");
          break;
        }
        case 'h':
          out += in_class ? "0-9a-fA-F" : "[0-9a-fA-F]";
          break;
        case 'u': {
          if (i + 4 >= pattern.size()) return Refuse(pattern, "unfinished \\u");
          absl::StrAppend(&out, "\\x{", std::string(pattern.substr(i + 1, 4)), "}");
          i += 4;
          break;
        }
        case 'p':
        case 'P': {
          const size_t close = pattern.find('}', i);
          if (i + 1 >= pattern.size() || pattern[i + 1] != '{' || close == std::string_view::npos) {
            return Refuse(pattern, "\\p must be followed by {name}");
          }
          std::string name(pattern.substr(i + 2, close - i - 2));
          const bool negated = !name.empty() && name[0] == '^';
          if (negated) name.erase(0, 1);
          // A longer name is a script; plain \p{Greek} means script extensions to PCRE2.
          if (name.size() > 2) name = "sc:" + name;
          absl::StrAppend(&out, "\\", std::string(1, escaped), "{", negated ? "^" : "", name, "}");
          i = close;
          break;
        }
        case 'H':
        case 'R':
        case 'X':
        case 'G':
        case 'K':
        case 'C':
        case 'Q':
        case 'E':
        case 'N':
        case 'O':
        case 'y':
        case 'Y':
        case 'B':
          return Refuse(pattern, std::string("\\") + escaped + " is not supported");
        case 'b':
          if (!in_class) return Refuse(pattern, "\\b is not supported");
          out += "\\b";
          break;
        default:
          out += '\\';
          out += escaped;
      }
    } else if (in_class) {
      if (c == '[' || pattern.substr(i, 2) == "&&") {
        return Refuse(pattern, "class sets ('[' or '&&' inside a class) are not supported");
      }
      if (c == ']') in_class = false;
      out += c;
    } else if (c == '[') {
      in_class = true;
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') {
        return Refuse(pattern, "a class that begins with ']' must write it '\\]'");
      }
    } else if (pattern.substr(i, 2) == "(?") {
      // (?m) lets '.' match a newline in Ruby syntax and means something else in PCRE2.
      const size_t end = pattern.find_first_of(":)<=!>#'P|~", i + 2);
      const std::string_view flags =
          pattern.substr(i + 2, end == std::string_view::npos ? end : end - i - 2);
      if (flags.find('m') != std::string_view::npos || flags.find('a') != std::string_view::npos ||
          flags.find('u') != std::string_view::npos || flags.find('d') != std::string_view::npos) {
        return Refuse(pattern, "option '(?" + std::string(flags) + "' is not supported");
      }
      out += c;
    } else {
      out += c;
    }
  }
  return out;
}

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  LYNX_ASSIGN_OR_RETURN(const std::string translated, TranslatePattern(pattern));
  absl::StatusOr<Regex> regex = CompileNative(translated);
  if (!regex.ok()) return Refuse(pattern, std::string(regex.status().message()));
  return regex;
}

absl::StatusOr<Regex> Regex::CompileNative(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  LYNX_CHECK(context != nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  // '^' and '$' match at lines in Ruby syntax.
  pcre2_code* code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(ErrorText(error), " (at ", offset, " of '", pattern, "')"));
  }
  // Hosts that forbid writable executable memory fail here: pcre2_match() then interprets.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return Regex(code);
}

absl::StatusOr<Regex> Regex::Literal(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && !std::isalnum(byte)) {
      absl::StrAppend(&pattern, "\\x{", absl::Hex(byte), "}");
    } else {
      pattern += c;
    }
  }
  return CompileNative(pattern);
}

absl::StatusOr<Regex> CompilePatternField(const Json& config, std::string_view place) {
  const Json* pattern = FindField(config, "pattern");
  if (pattern == nullptr) return BadJson(place, "'pattern' is missing");
  const bool literal = FindField(*pattern, "String") != nullptr;
  LYNX_ASSIGN_OR_RETURN(const std::string text,
                        StringField(*pattern, literal ? "String" : "Regex", place));
  absl::StatusOr<Regex> regex = literal ? Regex::Literal(text) : Regex::Compile(text);
  if (!regex.ok()) return BadJson(place, std::string(regex.status().message()));
  return regex;
}

absl::Status Regex::Split(std::string_view text, std::vector<MatchedRange>& out) const {
  thread_local Scratch scratch;
  size_t previous_end = 0;
  size_t from = 0;
  bool matched_before = false;
  while (from <= text.size()) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                         PCRE2_NO_UTF_CHECK | options, scratch.data, scratch.context);
    };
    int result = match(0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the pre-tokenizer pattern failed at byte ", from, ": ", ErrorText(result)));
    }
    const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(scratch.data);
    const size_t begin = ovector[0];
    const size_t end = ovector[1];
    const bool empty = begin == end;
    // An empty match just behind another match is not one.
    if (!(empty && matched_before && begin == previous_end)) {
      if (previous_end < begin) out.push_back({previous_end, begin, false});
      out.push_back({begin, end, true});
      previous_end = end;
      matched_before = true;
    }
    from = end;
    if (empty) {
      if (from == text.size()) break;
      from += Utf8SequenceLength(text.substr(from));
    }
  }
  if (previous_end < text.size()) out.push_back({previous_end, text.size(), false});
  return absl::OkStatus();
}

}  // namespace lynx::text::internal
