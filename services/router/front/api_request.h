#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/proto/control.pb.h"
#include "common/text/chat_template.h"

// Bodies of the HTTP API, parsed and checked in full: what comes out of here, no node needs to
// doubt. Pure functions; thread-safe.
//
// Rules that hold for every field: null means absent; unknown fields are ignored; of a repeated key
// the last one counts; integers are JSON integers, not 5.0 and not "5". A known field that would
// change the answer and is not served is refused by name rather than ignored.
namespace lynx::router {

enum class Api : uint8_t { kCompletions, kChat };

// What a request may ask for. The defaults come from the model's generation_config.json.
struct RequestLimits {
  std::vector<std::string> model_names;  // Served; all name the same model.
  int32_t vocab_size = 0;                // Ids [0, vocab_size) exist.
  int32_t max_context_tokens = 0;        // Prompt and answer together.
  int32_t experts = 0;                   // Routed experts of an MoE layer; 0: the model has none.
  int32_t experts_per_token = 0;
  std::vector<std::string> policies;  // Expert policies a request may ask for, besides exact.

  float temperature = 1;  // Defaults when the request is silent.
  float top_p = 1;
  int32_t top_k = 0;
  float min_p = 0;
  float repetition_penalty = 1;
  std::vector<TokenId> end_token_ids;  // Union over the model's files.

  int max_choices = 128;             // `n`, and also prompts * n: one sequence each. > 0
  int max_logprobs = 20;             // Alternatives a token may list.
  int max_stop_strings = 16;         // OpenAI allows 4; other servers and their clients more.
  int max_stop_string_bytes = 1024;  // Bounds the text that is held back while streaming.
  int max_stop_token_ids = 256;
  int max_tools = 128;       // OpenAI's limit.
  int max_tool_calls = 128;  // Of a message.
  int max_documents = 128;
  int64_t max_template_values = 200'000;  // JSON values of all tools, calls, documents and kwargs.

  // The chat template wants the arguments of tool calls as JSON text, not as an object.
  bool tool_arguments_as_text = false;
  // The chat template heeds `reasoning_effort`.
  bool reasoning_effort = false;
};

// Text to tokenize, or ids that are all in the vocabulary. Never empty.
using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct ApiRequest {
  Api api = Api::kCompletions;
  std::string model;  // As the client wrote it; one of the served names.

  std::vector<Prompt> prompts;  // kCompletions: at least one.
  // kChat: at least one message. Roles are system (`developer` has become it), user, assistant and
  // tool; text parts of a content are joined.
  text::ChatInput chat;

  // Complete but for `choice_index` and, when `max_tokens` is empty, `max_new_tokens`.
  proto::SamplingParams sampling;
  std::optional<int32_t> max_tokens;  // 0 only with echo: score the prompt, generate nothing.
  int n = 1;
  std::vector<std::string> stop;
  std::optional<int> logprobs;  // Alternatives per token; 0: the chosen token's alone.
  int32_t priority = 0;         // Lower goes first; a client may only step back.
  std::string end_user;         // `safety_identifier`, else `user`; empty: not told.
  bool echo = false;
  bool stream = false;
  bool include_usage = false;
  std::string cache_salt;  // Empty: none.
};

// Both return InvalidArgument or NotFound (unknown model) as made by api_error.h, with the model if
// it is served.
absl::StatusOr<ApiRequest> ParseCompletionRequest(std::string_view body,
                                                  const RequestLimits& limits);
absl::StatusOr<ApiRequest> ParseChatRequest(std::string_view body, const RequestLimits& limits);

// How many tokens a prompt of `prompt_tokens` may generate: max_tokens, or the rest of the context.
//   InvalidArgument  code `context_length_exceeded`: they do not fit together.
absl::StatusOr<int32_t> MaxNewTokens(const ApiRequest& request, int64_t prompt_tokens,
                                     const RequestLimits& limits);

struct TokenizeRequest {
  std::variant<std::string, text::ChatInput> input;
  bool add_special_tokens = true;
};
absl::StatusOr<TokenizeRequest> ParseTokenizeRequest(std::string_view body,
                                                     const RequestLimits& limits);

struct DetokenizeRequest {
  std::vector<TokenId> tokens;  // May be empty.
};
absl::StatusOr<DetokenizeRequest> ParseDetokenizeRequest(std::string_view body,
                                                         const RequestLimits& limits);

}  // namespace lynx::router
