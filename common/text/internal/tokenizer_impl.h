#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/internal/added_tokens.h"
#include "common/text/internal/json_file.h"
#include "common/text/internal/model.h"
#include "common/text/internal/normalizer.h"
#include "common/text/internal/piece_decoder.h"
#include "common/text/internal/post_processor.h"
#include "common/text/internal/pre_tokenizer.h"
#include "common/text/tokenizer.h"

namespace lynx::text {

// What the tokenizer and its incremental detokenizers share.
struct Tokenizer::Impl {
  struct Token {
    internal::TokenPiece piece;
    bool exists = false;
    bool special = false;
  };

  std::unique_ptr<internal::Normalizer> normalizer;
  std::unique_ptr<internal::PreTokenizer> pre_tokenizer;
  std::unique_ptr<internal::Model> model;
  std::unique_ptr<internal::PieceDecoder> decoder;
  internal::AddedTokenFinder raw_tokens;         // Searched before normalisation.
  internal::AddedTokenFinder normalized_tokens;  // And after.
  bool has_normalized_specials = false;
  absl::flat_hash_map<std::string, int32_t> added_ids;
  std::vector<Token> tokens;  // By id.
  internal::PostProcessor post_processor;

  // `file` names the tokenizer.json in errors.
  static absl::StatusOr<std::unique_ptr<Impl>> Create(const internal::Json& root,
                                                      const std::string& file);

  // Whether what `plain` covers of a part of `text` spells a special token that is searched in
  // normalised text.
  absl::StatusOr<bool> SpellsSpecial(std::string_view text, TextRange part,
                                     std::span<const TextRange> plain) const;

  // Null for an id that names no token.
  const Token* Find(int32_t id) const {
    const auto index = static_cast<size_t>(id);
    return id >= 0 && index < tokens.size() && tokens[index].exists ? &tokens[index] : nullptr;
  }
};

}  // namespace lynx::text
