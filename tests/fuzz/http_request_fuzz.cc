// Any bytes as what a client sends on one connection: the requests found are the same wherever the
// bytes are cut, and each body is a request within the limits or an error that a client can read.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/http/message_parser.h"
#include "services/router/front/api_error.h"
#include "services/router/front/api_request.h"

namespace {

using lynx::http::HttpRequest;
using lynx::http::RequestParser;
using lynx::router::ApiRequest;

constexpr lynx::http::RequestLimits kLimits = {.max_body_bytes = 32 * 1024};

struct Conversation {
  std::vector<HttpRequest> requests;
  int error_status = 0;
  std::string error;
};

// The bytes, `piece` more at a time.
Conversation Read(std::string_view bytes, size_t piece) {
  Conversation read;
  RequestParser parser(kLimits);
  std::string pending;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    pending += bytes.substr(at, piece);
    for (;;) {
      const size_t consumed = parser.Feed(pending);
      LYNX_CHECK(consumed <= pending.size());
      pending.erase(0, consumed);
      if (parser.state() == RequestParser::State::kFailed) {
        read.error_status = parser.error_status();
        read.error = parser.error_message();
        return read;
      }
      const bool done = parser.state() == RequestParser::State::kDone;
      if (done) read.requests.push_back(parser.TakeRequest());
      if (consumed == 0 && !done) break;
    }
  }
  return read;
}

void CheckSame(const Conversation& a, const Conversation& b) {
  // Which of several faults is found first may differ.
  LYNX_CHECK_MSG((a.error_status != 0) == (b.error_status != 0), a.error + " / " + b.error);
  LYNX_CHECK(a.requests.size() == b.requests.size());
  for (size_t i = 0; i < a.requests.size(); ++i) {
    LYNX_CHECK(a.requests[i].method == b.requests[i].method);
    LYNX_CHECK(a.requests[i].path == b.requests[i].path);
    LYNX_CHECK(a.requests[i].query == b.requests[i].query);
    LYNX_CHECK(a.requests[i].headers == b.requests[i].headers);
    LYNX_CHECK(a.requests[i].body == b.requests[i].body);
  }
}

const lynx::router::RequestLimits& ApiLimits() {
  static const auto* const limits = new lynx::router::RequestLimits{.model_names = {"m"},
                                                                    .vocab_size = 97,
                                                                    .max_context_tokens = 512,
                                                                    .experts = 8,
                                                                    .experts_per_token = 2,
                                                                    .policies = {"lynx"},
                                                                    .end_token_ids = {2}};
  return *limits;
}

void CheckError(const absl::Status& status) {
  const lynx::router::ApiError error = lynx::router::ToApiError(status);
  LYNX_CHECK(error.http_status == 400 || error.http_status == 404);
  LYNX_CHECK(!error.message.empty());
  LYNX_CHECK(lynx::IsValidUtf8(error.message));
}

void CheckRequest(const ApiRequest& request) {
  const lynx::router::RequestLimits& limits = ApiLimits();
  LYNX_CHECK(request.model == "m");
  LYNX_CHECK(request.n >= 1 && request.n <= limits.max_choices);
  LYNX_CHECK(request.stop.size() <= static_cast<size_t>(limits.max_stop_strings));
  LYNX_CHECK(!request.max_tokens.has_value() || *request.max_tokens >= 0);
  LYNX_CHECK(request.sampling.temperature() >= 0);
  LYNX_CHECK(request.sampling.top_p() > 0 && request.sampling.top_p() <= 1);
  LYNX_CHECK(request.sampling.min_p() >= 0 && request.sampling.min_p() <= 1);
  LYNX_CHECK(request.sampling.repetition_penalty() > 0);
  for (const auto& bias : request.sampling.logit_bias()) {
    LYNX_CHECK(bias.token() >= 0 && bias.token() < limits.vocab_size);
  }
  LYNX_CHECK(request.prompts.size() * static_cast<size_t>(request.n) <=
             static_cast<size_t>(limits.max_choices));
  for (const lynx::router::Prompt& prompt : request.prompts) {
    if (const auto* ids = std::get_if<std::vector<lynx::TokenId>>(&prompt)) {
      for (const lynx::TokenId id : *ids) LYNX_CHECK(id >= 0 && id < limits.vocab_size);
    } else {
      LYNX_CHECK(lynx::IsValidUtf8(std::get<std::string>(prompt)));
    }
  }
  for (const int64_t tokens : {int64_t{1}, int64_t{511}, int64_t{1} << 40}) {
    const auto room = lynx::router::MaxNewTokens(request, tokens, limits);
    if (room.ok()) LYNX_CHECK(*room >= 0 && *room + tokens <= limits.max_context_tokens);
    if (!room.ok()) CheckError(room.status());
  }
}

void CheckBody(std::string_view body) {
  for (const auto parse : {lynx::router::ParseCompletionRequest, lynx::router::ParseChatRequest}) {
    const absl::StatusOr<ApiRequest> request = parse(body, ApiLimits());
    if (request.ok()) CheckRequest(*request);
    if (!request.ok()) CheckError(request.status());
  }
  if (const auto request = lynx::router::ParseTokenizeRequest(body, ApiLimits()); !request.ok()) {
    CheckError(request.status());
  }
  if (const auto request = lynx::router::ParseDetokenizeRequest(body, ApiLimits()); !request.ok()) {
    CheckError(request.status());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Conversation whole = Read(bytes, bytes.size() + 1);
  if (whole.error_status != 0) {
    LYNX_CHECK(whole.error_status >= 400 && whole.error_status < 600);
    LYNX_CHECK(!whole.error.empty());
  }
  for (const size_t piece : {size_t{1}, size_t{7}}) CheckSame(whole, Read(bytes, piece));
  for (const HttpRequest& request : whole.requests) {
    LYNX_CHECK(request.body.size() <= kLimits.max_body_bytes);
    LYNX_CHECK(request.path.starts_with('/') || request.path == "*");
    CheckBody(request.body);
  }
  return 0;
}
