#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/internal/byte_trie.h"
#include "common/text/internal/json_file.h"
#include "common/text/internal/model.h"
#include "common/text/internal/word_cache.h"

namespace lynx::text::internal {

// The unigram model of SentencePiece: of all ways to cut a word into pieces, the one whose scores
// add up to most.
//
// Immutable but for a bounded cache of short words; thread-safe. O(n) in the word's length, times
// the longest piece.
class Unigram : public Model {
 public:
  // `place` names the model in errors. Refuses a model without a token for unknown characters.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const Json& model, std::string_view place);

  void Encode(std::string_view word, std::vector<int32_t>& ids) const override;

 private:
  Unigram() = default;
  absl::Status ReadVocabulary(const Json& vocab, std::string_view place);
  void EncodeUncached(std::string_view word, std::vector<int32_t>& ids) const;
  // A stretch of characters that no piece covers.
  void AppendUnknown(std::string_view text, std::vector<int32_t>& ids) const;

  ByteTrie pieces_;
  std::vector<double> scores_;  // By id.
  double unknown_score_ = 0;
  int32_t unknown_id_ = -1;
  std::array<int32_t, 256> byte_ids_{};  // Of "<0xNN>"; -1: not a token.
  bool byte_fallback_ = false;
  mutable WordCache cache_;
};

}  // namespace lynx::text::internal
