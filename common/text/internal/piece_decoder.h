#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/internal/json_file.h"
#include "common/text/internal/regex.h"

namespace lynx::text::internal {

// What a token stands for, worked out once at load.
struct TokenPiece {
  std::string bytes;        // Possibly part of a character only.
  std::string first_bytes;  // Instead of `bytes` when the token begins the text, if has_first.
  bool has_first = false;
  bool is_byte = false;  // A "<0xNN>" token of a byte-fallback vocabulary.
};

// The "decoder" of tokenizer.json, one token at a time: whole decodes and streams are the same
// code, so they cannot disagree.
//
// Malformed bytes become U+FFFD: one for each maximal malformed part with a byte-level vocabulary,
// one for each byte with byte fallback. (There the reference replaces the well-formed characters
// of a run of byte tokens too when the run holds one bad byte anywhere; a stream cannot, since it
// has sent them by then.) A malformed part that begins before the text that is wanted has no mark.
class PieceDecoder {
 public:
  struct State {
    bool started = false;
    size_t strip_left = 0;    // Leading characters that may still be stripped.
    std::string pending;      // The start of a character.
    size_t prompt_bytes = 0;  // So many bytes of `pending` came before the text that is wanted.
  };

  // ByteLevel, or Sequences of Replace, ByteFallback, Fuse, Strip and Metaspace. Others are refused
  // by name.
  static absl::StatusOr<std::unique_ptr<PieceDecoder>> Create(const Json* config,
                                                              std::string_view place);

  absl::StatusOr<TokenPiece> Prepare(const std::string& token) const;

  State Start() const;
  // Appends what became complete.
  void Push(const TokenPiece& piece, State& state, std::string& out) const;
  // Appends what the unfinished rest stands for.
  void Finish(State& state, std::string& out) const;

 private:
  struct ReplaceStep {
    Regex pattern;
    std::string content;
  };
  struct StripStep {
    std::string content;  // One character.
    size_t start = 0;
    size_t stop = 0;
  };

  PieceDecoder() = default;
  absl::Status Add(const Json& config, std::string_view place);
  void Drain(State& state, std::string& out) const;
  void StripStart(State& state, std::string& text) const;

  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fused_ = false;
  std::vector<ReplaceStep> replacements_;
  std::vector<StripStep> token_strips_;
  StripStep text_strip_;  // Of the fused text: its start only.
  std::string metaspace_mark_;
  bool metaspace_drops_first_ = false;
};

}  // namespace lynx::text::internal
