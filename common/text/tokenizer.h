#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/text/text_range.h"

namespace lynx::text {

class IncrementalDetokenizer;

// Text to token ids and back, as the `tokenizer.json` of a Hugging Face model folder says.
//
// Covers byte-pair encoding, byte-level (GPT-2, Qwen, Llama 3, DeepSeek) or with metaspace and byte
// fallback (Mixtral), and unigram models of SentencePiece. A file that asks for anything else does
// not load: it would give other ids than the model was trained on. `truncation` and `padding` of
// the file are not applied.
//
// Immutable after Load() but for an internal, bounded cache; any number of threads may call.
class Tokenizer {
 public:
  // NotFound or InvalidArgument name the file and the place in it.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::filesystem::path& model_dir);

  // From the text of a tokenizer.json.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(std::string_view tokenizer_json);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The spelling of a special token inside `text` becomes that token, except where it touches a
  // range of `plain` (in order, apart): what users wrote there stays ordinary text, so that they
  // cannot write control tokens. `add_special_tokens` adds what the file's post-processor adds
  // (often a beginning-of-sequence token); chat templates write theirs themselves.
  //
  //   InvalidArgument    `text` is not valid UTF-8 (names the byte), or over 256 MiB.
  //   ResourceExhausted  the split pattern ran into its matching limit.
  //
  // O(n log n) in the longest word, linear in the rest.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens,
                                              std::span<const TextRange> plain = {}) const;

  // Valid UTF-8 always: malformed parts and an unfinished end become U+FFFD. Ids that name no token
  // count for nothing. Joined TokenBytes() are the raw bytes.
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const;

  // The bytes that a token adds to the text: maybe a part of a character. Empty for an id that
  // names no token. (The space that some decoders drop at the start of a text is included.)
  std::string TokenBytes(int32_t id) const;

  // By spelling in the file: byte-level vocabularies write "Ġthe" for " the".
  std::optional<int32_t> TokenToId(std::string_view token) const;

  // Highest id + 1, added tokens included. Not every id below needs to be a token.
  int32_t vocab_size() const;
  bool IsValidId(int32_t id) const;
  bool IsSpecial(int32_t id) const;

 private:
  friend class IncrementalDetokenizer;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);

  // Some models (DeepSeek's) ask for their first token in tokenizer_config.json only.
  absl::Status AddConfiguredBos(const std::string& file);

  std::unique_ptr<Impl> impl_;
};

}  // namespace lynx::text
