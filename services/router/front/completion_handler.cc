#include "services/router/front/completion_handler.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/base/trace_context.h"
#include "common/base/utf8.h"
#include "common/telemetry/log.h"
#include "services/router/front/access_control.h"
#include "services/router/front/api_error.h"
#include "services/router/front/api_response.h"
#include "services/router/front/openapi_document.h"
#include "services/router/front/replies.h"
#include "services/router/front/tenant.h"

namespace lynx::router {
namespace {

constexpr std::string_view kModelsPath = "/v1/models";
constexpr std::string_view kDocumentPath = "/openapi.json";

void AddHeaders(http::Headers more, http::Headers& headers) {
  std::move(more.begin(), more.end(), std::back_inserter(headers));
}

// One of our own, below the client's where it names just one.
TraceContext SpanOf(const http::HttpRequest& request) {
  std::optional<TraceContext> parent;
  int given = 0;
  for (const auto& [name, value] : request.headers) {
    if (!http::EqualsIgnoreCase(name, "traceparent")) continue;
    parent = ++given == 1 ? ParseTraceparent(value) : std::nullopt;
  }
  return NewSpan(parent);
}

// What is known at `path`; empty when nothing is.
std::string_view AllowedMethod(std::string_view path) {
  if (path == "/v1/completions" || path == "/v1/chat/completions" || path == "/tokenize" ||
      path == "/detokenize") {
    return "POST";
  }
  if (path == kModelsPath || path.starts_with("/v1/models/") || path == kDocumentPath) return "GET";
  return "";
}

}  // namespace

void ApplyDefaults(const text::GenerationDefaults& defaults, RequestLimits& limits) {
  if (defaults.temperature.has_value()) {
    limits.temperature = static_cast<float>(*defaults.temperature);
  }
  if (defaults.top_p.has_value()) limits.top_p = static_cast<float>(*defaults.top_p);
  if (defaults.min_p.has_value()) limits.min_p = static_cast<float>(*defaults.min_p);
  if (defaults.top_k.has_value()) limits.top_k = static_cast<int32_t>(*defaults.top_k);
  if (defaults.repetition_penalty.has_value()) {
    limits.repetition_penalty = static_cast<float>(*defaults.repetition_penalty);
  }
  if (defaults.do_sample == false) limits.temperature = 0;
}

CompletionHandler::CompletionHandler(FrontOptions options, const text::Tokenizer& tokenizer,
                                     const text::ChatTemplate* chat_template,
                                     SequenceService& service, EventLoop& loop,
                                     telemetry::Registry& registry)
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      chat_template_(chat_template),
      loop_(loop),
      metrics_(registry, options_.limits.model_names, options_.slo),
      context_{.tokenizer = tokenizer,
               .service = service,
               .loop = loop,
               .metrics = metrics_,
               .heartbeat_interval = options_.heartbeat_interval,
               .request_timeout = options_.request_timeout},
      started_at_s_(absl::ToUnixSeconds(absl::Now())) {
  LYNX_CHECK(!options_.limits.model_names.empty());
  LYNX_CHECK(options_.limits.vocab_size > 0 && options_.limits.max_context_tokens > 0);
  size_t longest = 1;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.TokenBytes(id).size());
  }
  // Normalisation shortens a text to a third at most.
  max_text_bytes_ = 3 * longest * static_cast<size_t>(options_.limits.max_context_tokens);
}

CompletionHandler::~CompletionHandler() = default;

void CompletionHandler::Handle(http::HttpRequest request,
                               std::shared_ptr<http::ResponseWriter> writer) {
  const std::string request_id = RequestIdOf(request);
  if (auto refusal = RefusePath(request, request_id); refusal.has_value()) {
    writer->Send(*std::move(refusal)).IgnoreError();
    return;
  }
  if (request.path == "/v1/completions") {
    return Generate(Api::kCompletions, request, request_id, std::move(writer));
  }
  if (request.path == "/v1/chat/completions") {
    return Generate(Api::kChat, request, request_id, std::move(writer));
  }
  const absl::StatusOr<std::string> body =
      request.path == "/tokenize"     ? Tokenize(request.body)
      : request.path == "/detokenize" ? Detokenize(request.body)
      : request.path == kDocumentPath ? std::string(OpenApiDocument())
                                      : Models(request);
  http::HttpResponse response = body.ok() ? JsonResponse(200, *body, request_id)
                                          : ErrorResponse(ToApiError(body.status()), request_id);
  if (const auto usage = UsageOf(request); usage != nullptr) {
    AddHeaders(usage->Headers(loop_.Now()), response.headers);
  }
  writer->Send(std::move(response)).IgnoreError();
}

std::optional<http::HttpResponse> CompletionHandler::RefuseEarly(const http::HttpRequest& head) {
  return RefusePath(head, RequestIdOf(head));
}

std::optional<http::HttpResponse> CompletionHandler::RefusePath(const http::HttpRequest& request,
                                                                const std::string& request_id) {
  const std::string_view allowed = AllowedMethod(request.path);
  const std::string path = request.path.substr(0, 128);
  if (allowed.empty()) {
    return JsonResponse(
        404, ErrorBody(404, absl::StrCat("Unknown URL: ", request.method.substr(0, 32), " ", path)),
        request_id);
  }
  if (request.method == allowed || (allowed == "GET" && request.method == "HEAD")) return {};
  http::HttpResponse response = JsonResponse(
      405,
      ErrorBody(405, absl::StrCat("Method not allowed: ", path, " takes ", std::string(allowed))),
      request_id);
  response.headers.emplace_back("Allow", std::string(allowed));
  return response;
}

std::string CompletionHandler::ErrorBody(int status, std::string_view message) {
  ApiError error;
  error.http_status = status;
  error.message = ReplaceInvalidUtf8(message);
  error.type = status == 429   ? "rate_limit_error"
               : status >= 500 ? "server_error"
                               : "invalid_request_error";
  switch (status) {
    case 404:
      error.code = "unknown_url";
      break;
    case 405:
      error.code = "method_not_allowed";
      break;
    case 413:
      error.code = "request_too_large";
      break;
    case 503:
      error.code = "unavailable";
      break;
    default:
      break;
  }
  return BuildError(error);
}

void CompletionHandler::Generate(Api api, const http::HttpRequest& request,
                                 const std::string& request_id,
                                 std::shared_ptr<http::ResponseWriter> writer) {
  const absl::Time received = loop_.Now();
  const std::shared_ptr<KeyUsage> usage = UsageOf(request);
  const TraceContext trace = SpanOf(request);
  std::string model;
  absl::StatusOr<PreparedRequest> prepared = Prepare(api, request.body, model);
  if (!prepared.ok()) {
    const ApiError error = ToApiError(prepared.status());
    metrics_.CountRequest(metrics_.ForModel(model), api, error.http_status,
                          OutcomeOf(error.http_status));
    telemetry::LogInfo("request refused", {{"request_id", request_id},
                                           {"trace_id", trace.trace_id},
                                           {"span_id", trace.span_id},
                                           {"code", absl::StrCat(error.http_status)},
                                           {"param", error.param}});
    http::HttpResponse response = ErrorResponse(error, request_id);
    if (usage != nullptr) AddHeaders(usage->Headers(received), response.headers);
    writer->Send(std::move(response)).IgnoreError();
    return;
  }
  if (usage != nullptr) {
    int64_t prompt_tokens = 0;
    for (const PreparedPrompt& prompt : prepared->prompts) {
      prompt_tokens += static_cast<int64_t>(prompt.ids.size());
    }
    const KeyUsage::Decision decision = usage->TakePrompt(prompt_tokens, received);
    if (!decision.allowed()) {
      metrics_.CountRequest(metrics_.ForModel(model), api, 429, Outcome::kClientError);
      writer->Send(RateLimitResponse(decision, *usage, received, request_id)).IgnoreError();
      return;
    }
    prepared->headers = usage->Headers(received);
    prepared->usage = usage;
  }
  prepared->request_id = request_id;
  prepared->trace = trace;
  prepared->received = received;
  prepared->tenant = TenantOf(request, prepared->request.end_user);

  // Shared only because a task of the loop must be copyable.
  const uint64_t key = RandomId();
  auto session = std::make_shared<CompletionSession>(context_, *std::move(prepared), writer);
  loop_.Post([this, key, session = std::move(session)]() mutable {
    CompletionSession& started = *session;
    sessions_.emplace(key, std::move(session));
    started.Start([this, key] { sessions_.erase(key); });
  });
  writer->OnClosed([this, key] {
    loop_.Post([this, key] {
      const auto it = sessions_.find(key);
      if (it != sessions_.end()) it->second->OnClientGone();
    });
  });
}

std::shared_ptr<KeyUsage> CompletionHandler::UsageOf(const http::HttpRequest& request) const {
  return options_.limiter == nullptr ? nullptr : options_.limiter->Find(request.user);
}

absl::StatusOr<PreparedRequest> CompletionHandler::Prepare(Api api, const std::string& body,
                                                           std::string& model) {
  const RequestLimits& limits = options_.limits;
  PreparedRequest prepared;
  absl::StatusOr<ApiRequest> parsed =
      api == Api::kChat ? ParseChatRequest(body, limits) : ParseCompletionRequest(body, limits);
  model = parsed.ok() ? parsed->model : ModelOf(parsed.status());
  if (!parsed.ok()) return parsed.status();
  prepared.request = *std::move(parsed);
  const ApiRequest& request = prepared.request;
  const absl::Time begin = loop_.Now();

  if (api == Api::kChat) {
    LYNX_ASSIGN_OR_RETURN(const text::ChatTemplate::Prompt chat, Render(request.chat));
    PreparedPrompt& prompt = prepared.prompts.emplace_back();
    LYNX_ASSIGN_OR_RETURN(prompt.ids,
                          Encode(chat.text, /*add_special_tokens=*/false, "messages", chat.given));
  }
  for (const Prompt& given : request.prompts) {
    PreparedPrompt& prompt = prepared.prompts.emplace_back();
    const auto* text = std::get_if<std::string>(&given);
    if (text != nullptr) {
      LYNX_ASSIGN_OR_RETURN(prompt.ids, Encode(*text, /*add_special_tokens=*/true, "prompt"));
    } else {
      prompt.ids = std::get<std::vector<TokenId>>(given);
    }
  }
  for (PreparedPrompt& prompt : prepared.prompts) {
    LYNX_ASSIGN_OR_RETURN(prompt.max_new_tokens,
                          MaxNewTokens(request, static_cast<int64_t>(prompt.ids.size()), limits));
    if (request.echo) prompt.echo_text = EchoText(tokenizer_, prompt.ids);
  }
  metrics_.tokenize().Observe(absl::ToDoubleSeconds(loop_.Now() - begin));

  prepared.head = {.api = api,
                   .id = absl::StrCat(api == Api::kChat ? "chatcmpl-" : "cmpl-", HexId(RandomId()),
                                      HexId(RandomId())),
                   .created_s = absl::ToUnixSeconds(absl::Now()),
                   .model = request.model,
                   .system_fingerprint = options_.system_fingerprint};
  return prepared;
}

absl::StatusOr<text::ChatTemplate::Prompt> CompletionHandler::Render(text::ChatInput input) const {
  if (chat_template_ == nullptr) {
    return FieldError("messages", "This model has no chat template: it takes plain prompts only");
  }
  input.now = absl::Now();
  absl::StatusOr<text::ChatTemplate::Prompt> prompt = chat_template_->Render(input);
  if (!prompt.ok()) {
    return FieldError("messages", absl::StrCat("'messages' do not fit the model's chat template: ",
                                               prompt.status().message()));
  }
  return prompt;
}

absl::Status CompletionHandler::CheckTextLength(std::string_view text, const char* param) const {
  if (text.size() <= max_text_bytes_) return absl::OkStatus();
  return FieldError(
      param,
      absl::StrCat("This model's maximum context length is ", options_.limits.max_context_tokens,
                   " tokens, but '", param, "' has ", text.size(), " bytes, which do not fit"),
      "context_length_exceeded");
}

absl::StatusOr<std::vector<TokenId>> CompletionHandler::Encode(
    std::string_view text, bool add_special_tokens, const char* param,
    std::span<const text::TextRange> plain) const {
  LYNX_RETURN_IF_ERROR(CheckTextLength(text, param));
  auto ids = tokenizer_.Encode(text, add_special_tokens, plain);
  if (!ids.ok()) {
    return FieldError(param,
                      absl::StrCat("'", param, "' cannot be tokenized: ", ids.status().message()));
  }
  if (ids->empty()) return FieldError(param, absl::StrCat("'", param, "' has no tokens"));
  return ids;
}

absl::StatusOr<std::string> CompletionHandler::Models(const http::HttpRequest& request) const {
  const RequestLimits& limits = options_.limits;
  if (request.path == kModelsPath) {
    return BuildModelList(limits.model_names, started_at_s_, limits.max_context_tokens);
  }
  const std::string name = request.path.substr(kModelsPath.size() + 1);
  const auto& names = limits.model_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) return UnknownModelError(name);
  return BuildModel(name, started_at_s_, limits.max_context_tokens);
}

absl::StatusOr<std::string> CompletionHandler::Tokenize(const std::string& body) const {
  LYNX_ASSIGN_OR_RETURN(const TokenizeRequest request, ParseTokenizeRequest(body, options_.limits));
  std::string text;
  std::vector<text::TextRange> plain;
  const char* param = "prompt";
  if (const auto* given = std::get_if<text::ChatInput>(&request.input)) {
    param = "messages";
    LYNX_ASSIGN_OR_RETURN(text::ChatTemplate::Prompt chat, Render(*given));
    text = std::move(chat.text);
    plain = std::move(chat.given);
  } else {
    text = std::get<std::string>(request.input);
  }
  std::vector<TokenId> ids;
  if (!text.empty()) {
    LYNX_ASSIGN_OR_RETURN(ids, Encode(text, request.add_special_tokens, param, plain));
  }
  return BuildTokenizeResponse(ids, options_.limits.max_context_tokens);
}

absl::StatusOr<std::string> CompletionHandler::Detokenize(const std::string& body) const {
  LYNX_ASSIGN_OR_RETURN(const DetokenizeRequest request,
                        ParseDetokenizeRequest(body, options_.limits));
  return BuildDetokenizeResponse(tokenizer_.Decode(request.tokens, /*skip_special=*/false));
}

}  // namespace lynx::router
