#include "common/text/internal/piece_decoder.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/text/internal/pre_tokenizer.h"

namespace lynx::text::internal {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr int64_t kMaxStrip = 1024;

// The bytes that a token of a byte-level vocabulary spells. One with a character outside the
// alphabet (an added token with a space, say) stands for itself.
std::string ByteLevelBytes(const std::string& token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const size_t length = Utf8SequenceLength(std::string_view(token).substr(i));
    if (length == 0 || length > 2) return token;
    const auto first = static_cast<unsigned char>(token[i]);
    const char32_t code_point =
        length == 1
            ? first
            : (char32_t{first & 0x1Fu} << 6) | (static_cast<unsigned char>(token[i + 1]) & 0x3Fu);
    const int byte = ByteOfCodePoint(code_point);
    if (byte < 0) return token;
    bytes += static_cast<char>(byte);
    i += length;
  }
  return bytes;
}

// The value of "<0xNN>", or -1.
int ByteFallbackValue(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = -1;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  return error == std::errc() && end == token.data() + 5 && value >= 0 ? value : -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PieceDecoder>> PieceDecoder::Create(const Json* config,
                                                                   std::string_view place) {
  if (config == nullptr) return BadJson(place, "a decoder is needed");
  auto decoder = std::unique_ptr<PieceDecoder>(new PieceDecoder());
  LYNX_RETURN_IF_ERROR(decoder->Add(*config, place));
  const bool has_pieces = decoder->byte_fallback_ || decoder->fused_ ||
                          !decoder->replacements_.empty() || !decoder->token_strips_.empty() ||
                          !decoder->metaspace_mark_.empty();
  if (decoder->byte_level_ && has_pieces) {
    return BadJson(place, "ByteLevel together with other decoders is not supported");
  }
  return decoder;
}

absl::Status PieceDecoder::Add(const Json& config, std::string_view place) {
  LYNX_ASSIGN_OR_RETURN(const std::string type, StringField(config, "type", place));
  if (type == "ByteLevel") {
    byte_level_ = true;
  } else if (type == "ByteFallback") {
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    fused_ = true;
  } else if (type == "Replace") {
    if (fused_) return BadJson(place, "Replace after Fuse is not supported");
    LYNX_ASSIGN_OR_RETURN(Regex pattern, CompilePatternField(config, place));
    LYNX_ASSIGN_OR_RETURN(std::string content, StringField(config, "content", place));
    replacements_.push_back({std::move(pattern), std::move(content)});
  } else if (type == "Metaspace") {
    if (fused_) return BadJson(place, "Metaspace after Fuse is not supported");
    LYNX_ASSIGN_OR_RETURN(metaspace_mark_, StringField(config, "replacement", place));
    const Json* scheme = FindField(config, "prepend_scheme");
    LYNX_ASSIGN_OR_RETURN(const bool add, BoolField(config, "add_prefix_space", true, place));
    metaspace_drops_first_ = scheme != nullptr ? *scheme != "never" : add;
  } else if (type == "Strip") {
    StripStep strip;
    LYNX_ASSIGN_OR_RETURN(strip.content, StringField(config, "content", place));
    LYNX_ASSIGN_OR_RETURN(const int64_t start, IntField(config, "start", 0, place));
    LYNX_ASSIGN_OR_RETURN(const int64_t stop, IntField(config, "stop", 0, place));
    if (start < 0 || start > kMaxStrip || stop < 0 || stop > kMaxStrip) {
      return BadJson(place, "'start' and 'stop' must be in 0..1024");
    }
    if (Utf8SequenceLength(strip.content) != strip.content.size() || strip.content.empty()) {
      return BadJson(place, "'content' must be one character");
    }
    strip.start = static_cast<size_t>(start);
    strip.stop = static_cast<size_t>(stop);
    if (!fused_) {
      token_strips_.push_back(std::move(strip));
    } else if (strip.stop > 0) {
      // It would hold back text of a stream until its end.
      return BadJson(place, "Strip with 'stop' after Fuse is not supported");
    } else if (text_strip_.start > 0) {
      return BadJson(place, "more than one Strip after Fuse is not supported");
    } else {
      text_strip_ = std::move(strip);
    }
  } else if (type == "Sequence") {
    const Json* parts = FindField(config, "decoders");
    if (parts == nullptr || !parts->is_array()) {
      return BadJson(place, "'decoders' must be an array");
    }
    for (size_t i = 0; i < parts->size(); ++i) {
      LYNX_RETURN_IF_ERROR(
          Add((*parts)[i], absl::StrCat(std::string(place), ".decoders[", i, "]")));
    }
  } else {
    return BadJson(place, "decoder type '" + type +
                              "' is not supported (ByteLevel, ByteFallback, Fuse, Metaspace, "
                              "Replace, Sequence, Strip)");
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenPiece> PieceDecoder::Prepare(const std::string& token) const {
  TokenPiece piece;
  if (byte_level_) {
    piece.bytes = ByteLevelBytes(token);
    return piece;
  }
  if (const int value = ByteFallbackValue(token); byte_fallback_ && value >= 0) {
    piece.bytes = std::string(1, static_cast<char>(value));
    piece.is_byte = true;
    return piece;
  }
  std::string text = token;
  for (const ReplaceStep& step : replacements_) {
    std::vector<MatchedRange> ranges;
    LYNX_RETURN_IF_ERROR(step.pattern.Split(text, ranges));
    std::string replaced;
    for (const MatchedRange& range : ranges) {
      replaced += range.is_match ? step.content : text.substr(range.begin, range.end - range.begin);
    }
    text = std::move(replaced);
  }
  for (const StripStep& strip : token_strips_) {
    for (size_t i = 0; i < strip.start && text.starts_with(strip.content); ++i) {
      text.erase(0, strip.content.size());
    }
    for (size_t i = 0; i < strip.stop && text.ends_with(strip.content); ++i) {
      text.erase(text.size() - strip.content.size());
    }
  }
  if (!metaspace_mark_.empty()) {
    if (metaspace_drops_first_) {
      piece.has_first = true;
      piece.first_bytes = absl::StrReplaceAll(text, {{metaspace_mark_, ""}});
    }
    text = absl::StrReplaceAll(text, {{metaspace_mark_, " "}});
  }
  piece.bytes = std::move(text);
  return piece;
}

PieceDecoder::State PieceDecoder::Start() const {
  State state;
  state.strip_left = text_strip_.start;
  return state;
}

void PieceDecoder::StripStart(State& state, std::string& text) const {
  while (state.strip_left > 0 && !text.empty()) {
    if (text.starts_with(text_strip_.content)) {
      text.erase(0, text_strip_.content.size());
      --state.strip_left;
    } else {
      state.strip_left = 0;
    }
  }
}

void PieceDecoder::Drain(State& state, std::string& out) const {
  std::string_view rest = state.pending;
  while (!rest.empty()) {
    const Utf8Prefix prefix = WellFormedUtf8Prefix(rest);
    size_t used = prefix.length;
    if (prefix.complete) {
      out += rest.substr(0, used);
    } else if (used == rest.size()) {
      break;
    } else {
      used = byte_level_ ? std::max<size_t>(1, used) : 1;
      if (state.prompt_bytes == 0) out += kReplacement;
    }
    state.prompt_bytes -= std::min(used, state.prompt_bytes);
    rest.remove_prefix(used);
  }
  state.pending.erase(0, state.pending.size() - rest.size());
}

void PieceDecoder::Push(const TokenPiece& piece, State& state, std::string& out) const {
  const std::string& bytes = piece.has_first && !state.started ? piece.first_bytes : piece.bytes;
  state.started = true;
  if (byte_level_) {
    state.pending += bytes;
    Drain(state, out);
    return;
  }
  std::string text;
  if (piece.is_byte) {
    state.pending += bytes;
    Drain(state, text);
  } else {
    // Byte tokens and text never join into one character.
    Finish(state, out);
    text = bytes;
  }
  StripStart(state, text);
  out += text;
}

void PieceDecoder::Finish(State& state, std::string& out) const {
  std::string text;
  if (byte_level_) {
    if (!state.pending.empty() && state.prompt_bytes == 0) text += kReplacement;
  } else {
    for (size_t i = state.prompt_bytes; i < state.pending.size(); ++i) text += kReplacement;
  }
  state.pending.clear();
  state.prompt_bytes = 0;
  StripStart(state, text);
  out += text;
}

}  // namespace lynx::text::internal
