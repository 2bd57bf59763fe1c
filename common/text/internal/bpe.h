#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/text/internal/json_file.h"
#include "common/text/internal/model.h"
#include "common/text/internal/word_cache.h"

namespace lynx::text::internal {

// Byte-pair encoding of one word at a time: the "model" of tokenizer.json.
//
// Immutable but for a bounded cache of short words; thread-safe. O(n log n) in the word's length.
class Bpe : public Model {
 public:
  // `place` names the model in errors. Refuses a merge whose parts or result the vocabulary lacks.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const Json& model, std::string_view place);

  void Encode(std::string_view word, std::vector<int32_t>& ids) const override;

 private:
  struct Merge {
    int32_t rank;
    int32_t id;
  };

  Bpe() = default;
  absl::Status ReadMerges(const Json& merges, std::string_view place);
  // The ids of single characters, before any merge.
  std::vector<int32_t> Symbols(std::string_view word) const;
  void MergeSymbols(const std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const;
  const Merge* FindMerge(int32_t left, int32_t right) const;

  absl::flat_hash_map<uint64_t, Merge> merges_;
  std::array<int32_t, 0x800> char_ids_{};  // Of one- and two-byte characters; -1: not a token.
  std::array<int32_t, 256> byte_ids_{};    // Of "<0xNN>"; -1: not a token.
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
  int32_t unknown_id_ = -1;
  mutable WordCache cache_;
};

}  // namespace lynx::text::internal
