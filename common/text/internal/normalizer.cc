#include "common/text/internal/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/text/internal/pre_tokenizer.h"
#include "common/text/internal/regex.h"

namespace lynx::text::internal {
namespace {

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(const icu::Normalizer2* form) : form_(*form) {}

  absl::Status Apply(std::string& text) const override {
    // ASCII is its own normal form, in all four.
    if (std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; })) {
      return absl::OkStatus();
    }
    UErrorCode error = U_ZERO_ERROR;
    std::string out;
    icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
    form_.normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink,
                        nullptr, error);
    if (U_FAILURE(error)) {
      return absl::InternalError(
          absl::StrCat("Unicode normalisation failed: ", u_errorName(error)));
    }
    text = std::move(out);
    return absl::OkStatus();
  }

 private:
  const icu::Normalizer2& form_;  // ICU owns it for the life of the process.
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
    return absl::OkStatus();
  }

 private:
  const std::string prefix_;
};

class Replace : public Normalizer {
 public:
  Replace(Regex pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  absl::Status Apply(std::string& text) const override {
    std::vector<MatchedRange> ranges;
    LYNX_RETURN_IF_ERROR(pattern_.Split(text, ranges));
    std::string out;
    out.reserve(text.size());
    for (const MatchedRange& range : ranges) {
      if (range.is_match) {
        out += content_;
      } else {
        out.append(text, range.begin, range.end - range.begin);
      }
    }
    text = std::move(out);
    return absl::OkStatus();
  }

 private:
  const Regex pattern_;
  const std::string content_;
};

// Calls `use(code_point, begin, end)` for every character of `text`.
template <typename Use>
void ForEachChar(std::string_view text, const Use& use) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const auto size = static_cast<int32_t>(text.size());
  for (int32_t at = 0; at < size;) {
    const int32_t begin = at;
    UChar32 c = 0;
    U8_NEXT_OR_FFFD(bytes, at, size, c);
    use(c, static_cast<size_t>(begin), static_cast<size_t>(at));
  }
}

// Character by character: without the rules for a word's end that a whole text would have.
class Lowercase : public Normalizer {
 public:
  absl::Status Apply(std::string& text) const override {
    std::string out;
    out.reserve(text.size());
    ForEachChar(text, [&out](UChar32 c, size_t, size_t) {
      // The one character whose lower case is two.
      if (c == 0x130) {
        out += "i\u0307";
      } else {
        AppendUtf8(static_cast<char32_t>(u_tolower(c)), out);
      }
    });
    text = std::move(out);
    return absl::OkStatus();
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Apply(std::string& text) const override {
    size_t begin = std::string::npos;  // Of the first character that is no white space,
    size_t end = 0;                    // and behind the last.
    ForEachChar(text, [&](UChar32 c, size_t first, size_t behind) {
      if (u_isUWhiteSpace(c)) return;
      begin = std::min(begin, first);
      end = behind;
    });
    if (right_) text.resize(end);
    if (left_) text.erase(0, std::min(begin, text.size()));
    return absl::OkStatus();
  }

 private:
  const bool left_;
  const bool right_;
};

class StripAccents : public Normalizer {
 public:
  absl::Status Apply(std::string& text) const override {
    std::string out;
    out.reserve(text.size());
    ForEachChar(text, [&](UChar32 c, size_t begin, size_t end) {
      if ((U_GET_GC_MASK(c) & U_GC_M_MASK) == 0) out.append(text, begin, end - begin);
    });
    text = std::move(out);
    return absl::OkStatus();
  }
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps)
      : steps_(std::move(steps)) {}
  absl::Status Apply(std::string& text) const override {
    for (const auto& step : steps_) LYNX_RETURN_IF_ERROR(step->Apply(text));
    return absl::OkStatus();
  }

 private:
  const std::vector<std::unique_ptr<Normalizer>> steps_;
};

using FormGetter = const icu::Normalizer2* (*)(UErrorCode&);

absl::StatusOr<std::unique_ptr<Normalizer>> CreateForm(FormGetter get) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* form = get(error);
  if (U_FAILURE(error)) {
    return absl::InternalError(absl::StrCat("ICU has no normalisation data: ", u_errorName(error)));
  }
  return std::make_unique<UnicodeForm>(form);
}

const icu::Normalizer2* Nfc(UErrorCode& error) { return icu::Normalizer2::getNFCInstance(error); }
const icu::Normalizer2* Nfd(UErrorCode& error) { return icu::Normalizer2::getNFDInstance(error); }
const icu::Normalizer2* Nfkc(UErrorCode& error) { return icu::Normalizer2::getNFKCInstance(error); }
const icu::Normalizer2* Nfkd(UErrorCode& error) { return icu::Normalizer2::getNFKDInstance(error); }

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> CreateNormalizer(const Json* config,
                                                             std::string_view place) {
  if (config == nullptr) {
    return std::make_unique<NormalizerSequence>(std::vector<std::unique_ptr<Normalizer>>());
  }
  LYNX_ASSIGN_OR_RETURN(const std::string type, StringField(*config, "type", place));
  if (type == "NFC") return CreateForm(Nfc);
  if (type == "NFD") return CreateForm(Nfd);
  if (type == "NFKC") return CreateForm(Nfkc);
  if (type == "NFKD") return CreateForm(Nfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Strip") {
    LYNX_ASSIGN_OR_RETURN(const bool left, BoolField(*config, "strip_left", true, place));
    LYNX_ASSIGN_OR_RETURN(const bool right, BoolField(*config, "strip_right", true, place));
    return std::make_unique<Strip>(left, right);
  }
  if (type == "Prepend") {
    LYNX_ASSIGN_OR_RETURN(std::string prefix, StringField(*config, "prepend", place));
    return std::make_unique<Prepend>(std::move(prefix));
  }
  if (type == "Replace") {
    LYNX_ASSIGN_OR_RETURN(Regex pattern, CompilePatternField(*config, place));
    LYNX_ASSIGN_OR_RETURN(std::string content, StringField(*config, "content", place));
    return std::make_unique<Replace>(std::move(pattern), std::move(content));
  }
  if (type == "Sequence") {
    const Json* parts = FindField(*config, "normalizers");
    if (parts == nullptr || !parts->is_array()) {
      return BadJson(place, "'normalizers' must be an array");
    }
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (size_t i = 0; i < parts->size(); ++i) {
      LYNX_ASSIGN_OR_RETURN(
          auto step, CreateNormalizer(&(*parts)[i],
                                      absl::StrCat(std::string(place), ".normalizers[", i, "]")));
      steps.push_back(std::move(step));
    }
    return std::make_unique<NormalizerSequence>(std::move(steps));
  }
  return BadJson(place, "normalizer type '" + type +
                            "' is not supported (Lowercase, NFC, NFD, NFKC, NFKD, Prepend, "
                            "Replace, Sequence, Strip, StripAccents)");
}

}  // namespace lynx::text::internal
