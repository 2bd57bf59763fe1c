#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/text/internal/json_file.h"

namespace lynx::text::internal {

// A step that rewrites text before it is split: the "normalizer" of tokenizer.json. Immutable;
// thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Rewrites `text` (valid UTF-8, and stays so).
  virtual absl::Status Apply(std::string& text) const = 0;
};

// Lowercase, NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence, Strip and StripAccents; null gives
// one that changes nothing. Any other type is refused by name: a skipped normalizer would give
// other tokens, silently.
absl::StatusOr<std::unique_ptr<Normalizer>> CreateNormalizer(const Json* config,
                                                             std::string_view place);

}  // namespace lynx::text::internal
