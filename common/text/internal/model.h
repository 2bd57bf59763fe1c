#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/text/internal/json_file.h"

namespace lynx::text::internal {

// The "model" of tokenizer.json: from one word to ids. Thread-safe.
class Model {
 public:
  using Vocabulary = absl::flat_hash_map<std::string, int32_t>;

  virtual ~Model() = default;
  // Appends the ids of `word` (valid UTF-8).
  virtual void Encode(std::string_view word, std::vector<int32_t>& ids) const = 0;

  const Vocabulary& vocab() const { return vocab_; }
  // The id of a word of the vocabulary, or -1.
  int32_t Find(std::string_view token) const {
    const auto it = vocab_.find(absl::string_view(token.data(), token.size()));
    return it == vocab_.end() ? -1 : it->second;
  }

 protected:
  Vocabulary vocab_;
};

// BPE or Unigram; any other type is refused by name. `place` names the model in errors.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(const Json& model, std::string_view place);

}  // namespace lynx::text::internal
