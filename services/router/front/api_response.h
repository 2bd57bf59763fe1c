#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/dtype.h"
#include "services/router/front/api_error.h"
#include "services/router/front/api_request.h"

// Bodies of HTTP answers in OpenAI's schema. Pure functions; thread-safe; no call fails.
//
// Rules that hold everywhere: the result is valid JSON whatever the bytes that went in (malformed
// UTF-8 becomes U+FFFD); every field of the schema is there, null when it has no value; a
// log-probability below kLogprobFloor, minus infinity included, is written as kLogprobFloor.
namespace lynx::router {

inline constexpr float kLogprobFloor = -9999.0F;  // OpenAI's value for "very unlikely".

// What all chunks of one answer share.
struct ResponseHead {
  Api api = Api::kCompletions;
  std::string id;
  int64_t created_s = 0;  // Unix time.
  std::string model;
  std::string system_fingerprint;
};

struct TokenLogprob {
  std::string bytes;             // Raw: may be a part of a character.
  std::optional<float> logprob;  // Empty for the first token of an echoed prompt. Never NaN.
  struct Alternative {
    std::string bytes;
    float logprob = 0;
  };
  std::vector<Alternative> top;  // Best first.
  int64_t text_offset = 0;       // In characters of the choice's text.
};

enum class FinishReason : uint8_t { kNone, kStop, kLength };

// A whole choice, or what a chunk adds to it.
struct Choice {
  int index = 0;
  std::string text;
  std::optional<std::vector<TokenLogprob>> logprobs;  // Empty: not asked for.
  FinishReason finish_reason = FinishReason::kNone;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t failovers = 0;  // How often an answer went on on other nodes; told where it is not 0.
};

// `text` cut and joined as UTF-8 of its own; other bytes as OpenAI writes them: `bytes:\xe2\x82`.
std::string ShowTokenBytes(std::string_view bytes);

std::string BuildResponse(const ResponseHead& head, std::span<const Choice> choices,
                          const Usage& usage);

// One `data:` payload of a stream. `first` opens a chat choice with its role. `with_usage` adds
// "usage": null, as OpenAI does when the client has asked for the usage chunk.
std::string BuildChunk(const ResponseHead& head, const Choice& delta, bool first, bool with_usage);

// BuildChunk for chunks of one choice that hold nothing but text, with most of their bytes made
// once: a stream has one for each token.
class TextChunks {
 public:
  TextChunks(const ResponseHead& head, int index, bool with_usage);
  std::string Build(const std::string& text) const;  // Not empty.

 private:
  std::string before_;
  std::string after_;
};

std::string BuildUsageChunk(const ResponseHead& head, const Usage& usage);

std::string BuildError(const ApiError& error);

std::string BuildModel(std::string_view name, int64_t created_s, int32_t max_context_tokens);
std::string BuildModelList(std::span<const std::string> names, int64_t created_s,
                           int32_t max_context_tokens);
std::string BuildTokenizeResponse(std::span<const TokenId> tokens, int32_t max_context_tokens);
std::string BuildDetokenizeResponse(std::string_view text);

}  // namespace lynx::router
