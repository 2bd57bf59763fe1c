#include "common/text/internal/pre_tokenizer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/text/internal/regex.h"

namespace lynx::text::internal {
namespace {

// The pattern that "use_regex" of ByteLevel stands for (GPT-2's).
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Sets of characters as Rust's regex library has them.
constexpr std::string_view kSpace = R"(\p{White_Space})";
constexpr std::string_view kWordChar = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control})";
// Punctuation of any script, and what ASCII has of symbols.
constexpr std::string_view kPunctuation = R"([\p{P}$+<=>^`|~])";

enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct ByteMap {
  std::array<char32_t, 256> code_points;
  std::array<int, 0x144> bytes;

  constexpr ByteMap() : code_points(), bytes() {
    for (int& byte : bytes) byte = -1;
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t code_point = printable ? byte : next++;
      code_points[byte] = code_point;
      bytes[code_point] = static_cast<int>(byte);
    }
  }
};
constexpr ByteMap kByteMap;

class PatternSplit : public PreTokenizer {
 public:
  PatternSplit(Regex pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  absl::Status Apply(SplitText& split) const override {
    std::vector<SplitText::Word> words;
    words.reserve(split.words.size());
    std::vector<MatchedRange> ranges;
    for (const SplitText::Word& word : split.words) {
      ranges.clear();
      LYNX_RETURN_IF_ERROR(pattern_.Split(
          std::string_view(split.text).substr(word.begin, word.end - word.begin), ranges));
      if (invert_) {
        for (MatchedRange& range : ranges) range.is_match = !range.is_match;
      }
      Group(ranges);
      for (const MatchedRange& range : ranges) {
        if (range.begin == range.end) continue;
        words.push_back(
            {word.begin + range.begin, word.begin + range.end, word.at_start && range.begin == 0});
      }
    }
    split.words = std::move(words);
    return absl::OkStatus();
  }

 private:
  // Joins or drops ranges as the behaviour says.
  void Group(std::vector<MatchedRange>& ranges) const {
    std::vector<MatchedRange> grouped;
    grouped.reserve(ranges.size());
    bool previous = false;
    switch (behavior_) {
      case Behavior::kIsolated:
        return;
      case Behavior::kRemoved:
        std::erase_if(ranges, [](const MatchedRange& range) { return range.is_match; });
        return;
      case Behavior::kContiguous:
        for (const MatchedRange& range : ranges) {
          if (range.is_match == previous && !grouped.empty()) {
            grouped.back().end = range.end;
          } else {
            grouped.push_back(range);
          }
          previous = range.is_match;
        }
        break;
      case Behavior::kMergedWithPrevious:
        for (const MatchedRange& range : ranges) {
          if (range.is_match && !previous && !grouped.empty()) {
            grouped.back().end = range.end;
          } else {
            grouped.push_back(range);
          }
          previous = range.is_match;
        }
        break;
      case Behavior::kMergedWithNext:
        for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
          if (range->is_match && !previous && !grouped.empty()) {
            grouped.back().begin = range->begin;
          } else {
            grouped.push_back(*range);
          }
          previous = range->is_match;
        }
        std::reverse(grouped.begin(), grouped.end());
        break;
    }
    ranges = std::move(grouped);
  }

  const Regex pattern_;
  const Behavior behavior_;
  const bool invert_;
};

// Rewrites words one by one into a fresh text.
template <typename RewriteWord>
void Rewrite(SplitText& split, const RewriteWord& rewrite_word) {
  SplitText out;
  out.text.reserve(split.text.size() + split.text.size() / 2);
  out.words.reserve(split.words.size());
  for (const SplitText::Word& word : split.words) {
    const size_t begin = out.text.size();
    rewrite_word(std::string_view(split.text).substr(word.begin, word.end - word.begin),
                 word.at_start, out.text);
    if (out.text.size() > begin) out.words.push_back({begin, out.text.size(), word.at_start});
  }
  split = std::move(out);
}

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::optional<Regex> pattern)
      : add_prefix_space_(add_prefix_space) {
    if (pattern.has_value()) split_.emplace(*std::move(pattern), Behavior::kIsolated, false);
  }

  absl::Status Apply(SplitText& split) const override {
    if (add_prefix_space_) {
      Rewrite(split, [](std::string_view word, bool, std::string& out) {
        if (!word.starts_with(' ')) out += ' ';
        out += word;
      });
    }
    if (split_.has_value()) LYNX_RETURN_IF_ERROR(split_->Apply(split));
    Rewrite(split, [](std::string_view word, bool, std::string& out) {
      for (const char c : word) AppendUtf8(ByteLevelCodePoint(static_cast<unsigned char>(c)), out);
    });
    return absl::OkStatus();
  }

 private:
  const bool add_prefix_space_;
  std::optional<PatternSplit> split_;
};

class Metaspace : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };

  Metaspace(std::string mark, Prepend prepend, std::optional<Regex> pattern)
      : mark_(std::move(mark)), prepend_(prepend) {
    if (pattern.has_value()) split_.emplace(*std::move(pattern), Behavior::kMergedWithNext, false);
  }

  absl::Status Apply(SplitText& split) const override {
    Rewrite(split, [this](std::string_view word, bool at_start, std::string& out) {
      const bool wanted = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && at_start);
      if (wanted && !word.starts_with(' ') && !word.starts_with(mark_)) out += mark_;
      for (const char c : word) {
        if (c == ' ') {
          out += mark_;
        } else {
          out += c;
        }
      }
    });
    return split_.has_value() ? split_->Apply(split) : absl::OkStatus();
  }

 private:
  const std::string mark_;
  const Prepend prepend_;
  std::optional<PatternSplit> split_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> steps)
      : steps_(std::move(steps)) {}
  absl::Status Apply(SplitText& split) const override {
    for (const auto& step : steps_) LYNX_RETURN_IF_ERROR(step->Apply(split));
    return absl::OkStatus();
  }

 private:
  const std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

absl::StatusOr<Behavior> ParseBehavior(const std::string& name, std::string_view place) {
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return BadJson(place, "unknown behavior '" + name + "'");
}

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

// `pattern` in PCRE2's own syntax.
absl::StatusOr<std::unique_ptr<PreTokenizer>> CreateSplit(const std::string& pattern,
                                                          Behavior behavior, bool invert = false) {
  LYNX_ASSIGN_OR_RETURN(Regex regex, Regex::CompileNative(pattern));
  return std::make_unique<PatternSplit>(std::move(regex), behavior, invert);
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> CreateMetaspace(const Json& config,
                                                              std::string_view place) {
  LYNX_ASSIGN_OR_RETURN(const std::string mark, StringField(config, "replacement", place));
  Metaspace::Prepend prepend = Metaspace::Prepend::kAlways;
  if (FindField(config, "prepend_scheme") != nullptr) {
    LYNX_ASSIGN_OR_RETURN(const std::string scheme, StringField(config, "prepend_scheme", place));
    if (scheme == "first") {
      prepend = Metaspace::Prepend::kFirst;
    } else if (scheme == "never") {
      prepend = Metaspace::Prepend::kNever;
    } else if (scheme != "always") {
      return BadJson(place, "unknown prepend_scheme '" + scheme + "'");
    }
  } else {
    LYNX_ASSIGN_OR_RETURN(const bool add, BoolField(config, "add_prefix_space", true, place));
    if (!add) prepend = Metaspace::Prepend::kNever;
  }
  LYNX_ASSIGN_OR_RETURN(const bool split, BoolField(config, "split", true, place));
  std::optional<Regex> pattern;
  if (split) {
    LYNX_ASSIGN_OR_RETURN(pattern, Regex::Literal(mark));
  }
  return std::make_unique<Metaspace>(mark, prepend, std::move(pattern));
}

}  // namespace

char32_t ByteLevelCodePoint(unsigned char byte) { return kByteMap.code_points[byte]; }

int ByteOfCodePoint(char32_t code_point) {
  return code_point < kByteMap.bytes.size() ? kByteMap.bytes[code_point] : -1;
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> CreatePreTokenizer(const Json* config,
                                                                 std::string_view place) {
  if (config == nullptr) {
    return std::make_unique<PreTokenizerSequence>(std::vector<std::unique_ptr<PreTokenizer>>());
  }
  LYNX_ASSIGN_OR_RETURN(const std::string type, StringField(*config, "type", place));
  if (type == "Split") {
    LYNX_ASSIGN_OR_RETURN(Regex pattern, CompilePatternField(*config, place));
    LYNX_ASSIGN_OR_RETURN(const std::string name, StringField(*config, "behavior", place));
    LYNX_ASSIGN_OR_RETURN(const Behavior behavior, ParseBehavior(name, place));
    LYNX_ASSIGN_OR_RETURN(const bool invert, BoolField(*config, "invert", false, place));
    return std::make_unique<PatternSplit>(std::move(pattern), behavior, invert);
  }
  if (type == "ByteLevel") {
    LYNX_ASSIGN_OR_RETURN(const bool prefix, BoolField(*config, "add_prefix_space", true, place));
    LYNX_ASSIGN_OR_RETURN(const bool use_regex, BoolField(*config, "use_regex", true, place));
    std::optional<Regex> pattern;
    if (use_regex) {
      LYNX_ASSIGN_OR_RETURN(pattern, Regex::Compile(kByteLevelPattern));
    }
    return std::make_unique<ByteLevel>(prefix, std::move(pattern));
  }
  if (type == "Digits") {
    LYNX_ASSIGN_OR_RETURN(const bool single, BoolField(*config, "individual_digits", false, place));
    return CreateSplit(R"(\p{N})", single ? Behavior::kIsolated : Behavior::kContiguous);
  }
  if (type == "Punctuation") {
    Behavior behavior = Behavior::kIsolated;
    if (FindField(*config, "behavior") != nullptr) {
      LYNX_ASSIGN_OR_RETURN(const std::string name, StringField(*config, "behavior", place));
      LYNX_ASSIGN_OR_RETURN(behavior, ParseBehavior(name, place));
    }
    return CreateSplit(std::string(kPunctuation), behavior);
  }
  if (type == "Whitespace") {
    const std::string word =
        absl::StrCat("[", ToAbsl(kWordChar), "]+|[^", ToAbsl(kWordChar), ToAbsl(kSpace), "]+");
    return CreateSplit(word, Behavior::kRemoved, /*invert=*/true);
  }
  if (type == "WhitespaceSplit") return CreateSplit(std::string(kSpace), Behavior::kRemoved);
  if (type == "CharDelimiterSplit") {
    LYNX_ASSIGN_OR_RETURN(const std::string delimiter, StringField(*config, "delimiter", place));
    if (delimiter.empty() || Utf8SequenceLength(delimiter) != delimiter.size()) {
      return BadJson(place, "'delimiter' must be one character");
    }
    LYNX_ASSIGN_OR_RETURN(Regex pattern, Regex::Literal(delimiter));
    return std::make_unique<PatternSplit>(std::move(pattern), Behavior::kRemoved, false);
  }
  if (type == "Metaspace") return CreateMetaspace(*config, place);
  if (type == "Sequence") {
    const Json* parts = FindField(*config, "pretokenizers");
    if (parts == nullptr || !parts->is_array()) {
      return BadJson(place, "'pretokenizers' must be an array");
    }
    std::vector<std::unique_ptr<PreTokenizer>> steps;
    for (size_t i = 0; i < parts->size(); ++i) {
      LYNX_ASSIGN_OR_RETURN(
          auto step, CreatePreTokenizer(&(*parts)[i], absl::StrCat(std::string(place),
                                                                   ".pretokenizers[", i, "]")));
      steps.push_back(std::move(step));
    }
    return std::make_unique<PreTokenizerSequence>(std::move(steps));
  }
  return BadJson(place, "pre_tokenizer type '" + type +
                            "' is not supported (ByteLevel, CharDelimiterSplit, Digits, Metaspace, "
                            "Punctuation, Sequence, Split, Whitespace, WhitespaceSplit)");
}

}  // namespace lynx::text::internal
