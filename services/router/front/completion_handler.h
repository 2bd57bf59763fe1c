#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/concurrency/event_loop.h"
#include "common/http/server.h"
#include "common/telemetry/metrics.h"
#include "common/text/chat_template.h"
#include "common/text/model_files.h"
#include "common/text/tokenizer.h"
#include "services/router/front/api_request.h"
#include "services/router/front/completion_session.h"
#include "services/router/front/front_metrics.h"
#include "services/router/front/rate_limiter.h"
#include "services/router/session/sequence_service.h"

namespace lynx::router {

struct FrontOptions {
  RequestLimits limits;
  std::string system_fingerprint = "lynx";  // Changes when equal seeds may give other answers.
  // Silence after which a stream gets an SSE comment, and its header if that is still due. Below
  // the idle limits of usual proxies (10 s and up).
  absl::Duration heartbeat_interval = absl::Seconds(5);
  // A request's whole time, from its arrival. Generous: it only bounds what nothing else does.
  absl::Duration request_timeout = absl::Hours(1);
  SloTargets slo;  // For metrics alone.
  // Limits of the holders of API keys. Borrowed; null: there are none.
  const RateLimiter* limiter = nullptr;
};

// What a request gets that does not say otherwise.
void ApplyDefaults(const text::GenerationDefaults& defaults, RequestLimits& limits);

// OpenAI's HTTP API on top of a SequenceService:
//
//   POST /v1/completions  /v1/chat/completions     GET /v1/models  /v1/models/{id}
//   POST /tokenize  /detokenize                    GET /openapi.json
//
// The server's thread parses, checks, templates and tokenizes; then the request becomes a
// CompletionSession on the loop. Any other path is 404, another method 405, in OpenAI's form.
//
// Destroy after the server and the loop have stopped.
class CompletionHandler final : public http::RequestHandler {
 public:
  // All but the options are borrowed. `chat_template` is null for a model that has none: chats are
  // refused then.
  CompletionHandler(FrontOptions options, const text::Tokenizer& tokenizer,
                    const text::ChatTemplate* chat_template, SequenceService& service,
                    EventLoop& loop, telemetry::Registry& registry);
  ~CompletionHandler() override;

  void Handle(http::HttpRequest request, std::shared_ptr<http::ResponseWriter> writer) override;
  // Unknown paths and wrong methods need not upload their body.
  std::optional<http::HttpResponse> RefuseEarly(const http::HttpRequest& head) override;
  std::string ErrorBody(int status, std::string_view message) override;

  // Sessions not yet finished. On the loop.
  size_t sessions() const { return sessions_.size(); }

 private:
  void Generate(Api api, const http::HttpRequest& request, const std::string& request_id,
                std::shared_ptr<http::ResponseWriter> writer);
  // Null where the request has no limits.
  std::shared_ptr<KeyUsage> UsageOf(const http::HttpRequest& request) const;
  std::optional<http::HttpResponse> RefusePath(const http::HttpRequest& request,
                                               const std::string& request_id);
  // `model`: the request's, as far as it was read, also on failure.
  absl::StatusOr<PreparedRequest> Prepare(Api api, const std::string& body, std::string& model);
  absl::StatusOr<std::string> Models(const http::HttpRequest& request) const;
  absl::StatusOr<std::string> Tokenize(const std::string& body) const;
  absl::StatusOr<std::string> Detokenize(const std::string& body) const;
  absl::StatusOr<text::ChatTemplate::Prompt> Render(text::ChatInput input) const;
  // Before tokenizing, which takes time: refuses a text that no number of tokens in the context
  // can spell.
  absl::Status CheckTextLength(std::string_view text, const char* param) const;
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text, bool add_special_tokens,
                                              const char* param,
                                              std::span<const text::TextRange> plain = {}) const;

  const FrontOptions options_;
  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate* const chat_template_;
  EventLoop& loop_;
  FrontMetrics metrics_;
  const CompletionSession::Context context_;
  const int64_t started_at_s_;
  size_t max_text_bytes_ = 0;

  std::unordered_map<uint64_t, std::shared_ptr<CompletionSession>> sessions_;  // The loop's.
};

}  // namespace lynx::router
