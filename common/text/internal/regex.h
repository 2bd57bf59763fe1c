#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/text/internal/json_file.h"

struct pcre2_real_code_8;

namespace lynx::text::internal {

// A byte range of some text and whether a pattern matched it.
struct MatchedRange {
  size_t begin;
  size_t end;
  bool is_match;
};

// A pattern of a tokenizer file, run by PCRE2.
//
// Such patterns are written for Oniguruma with Ruby syntax. Where the same text means something
// else to PCRE2 (\s, \w, scripts, ^ and $) it is translated; what cannot be translated is refused,
// since a silently different split gives silently different tokens.
//
// Immutable; thread-safe. Matching uses the JIT compiler where the system lets it, else the
// interpreter, under limits: a pattern that backtracks without end gives an error, not a hang.
class Regex {
 public:
  // InvalidArgument names the pattern and what is wrong with it.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);
  // From a pattern in PCRE2's own syntax.
  static absl::StatusOr<Regex> CompileNative(const std::string& pattern);
  // Matches `text` itself.
  static absl::StatusOr<Regex> Literal(std::string_view text);

  // Covers `text` (valid UTF-8) with matches and the ranges between them, in order. Empty matches
  // are kept. ResourceExhausted when the matching limit is reached.
  absl::Status Split(std::string_view text, std::vector<MatchedRange>& out) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit Regex(pcre2_real_code_8* code) : code_(code) {}

  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

// The "pattern" member of `config`: {"Regex": "..."} or {"String": "..."}.
absl::StatusOr<Regex> CompilePatternField(const Json& config, std::string_view place);

// The translation used by Compile(), for tests.
absl::StatusOr<std::string> TranslatePattern(std::string_view pattern);

}  // namespace lynx::text::internal
