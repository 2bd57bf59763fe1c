#include "common/text/internal/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
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
  return BadJson(place,
                 "normalizer type '" + type +
                     "' is not supported (NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence)");
}

}  // namespace lynx::text::internal
