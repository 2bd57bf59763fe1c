#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/trace_context.h"
#include "common/concurrency/event_loop.h"
#include "common/http/server.h"
#include "common/text/stop_matcher.h"
#include "common/text/tokenizer.h"
#include "services/router/front/api_request.h"
#include "services/router/front/api_response.h"
#include "services/router/front/choice_stream.h"
#include "services/router/front/front_metrics.h"
#include "services/router/front/rate_limiter.h"
#include "services/router/session/sequence_service.h"

namespace lynx::router {

struct PreparedPrompt {
  std::vector<TokenId> ids;
  std::string echo_text;       // Empty unless the request echoes.
  int32_t max_new_tokens = 0;  // 0: score the prompt only.
};

// A request that may start: checked, templated, tokenized.
struct PreparedRequest {
  ApiRequest request;
  std::vector<PreparedPrompt> prompts;  // A chat has one.
  ResponseHead head;
  std::string request_id;  // What the client calls it; for headers and logs only.
  TraceContext trace;      // The router's span.
  absl::Time received;     // On the loop's clock.
  TenantId tenant = 0;
  http::Headers headers;            // Of the limits, for the response.
  std::shared_ptr<KeyUsage> usage;  // Output counts towards it; null: no limits.
};

// One client request from its first sequence to the last byte of its answer.
//
//   waiting    nothing sent; a failure is an HTTP status
//   streaming  the status is out; a failure is one SSE error object and the end, without [DONE]
//   done       answered, failed or abandoned; what the sequences still say is ignored
//
// A request has prompts times n sequences; choice p * n + c is choice c of prompt p. The first
// sequence that fails fails the request and stops its sisters. A choice is over when its sequence
// ends or a stop string is complete, which cancels the sequence.
//
// A stream begins with the first token, or when `heartbeat_interval` passes without one: then the
// header and an SSE comment go out, so that no proxy takes a long prefill for a dead server, and an
// early failure still has its HTTP status. While nothing else is sent a comment follows every
// interval.
//
// Made on any thread; everything else on the loop, the destructor too once Start was called.
class CompletionSession {
 public:
  // Borrowed; outlive the session.
  struct Context {
    const text::Tokenizer& tokenizer;
    SequenceService& service;
    EventLoop& loop;
    FrontMetrics& metrics;
    absl::Duration heartbeat_interval;
    absl::Duration request_timeout;
  };

  // The stop strings of `prepared` are ones that StopMatcher takes.
  CompletionSession(const Context& context, PreparedRequest prepared,
                    std::shared_ptr<http::ResponseWriter> writer);
  ~CompletionSession();
  CompletionSession(const CompletionSession&) = delete;
  CompletionSession& operator=(const CompletionSession&) = delete;

  // Starts all sequences. `finished` runs once, as a task of its own, when the session is done and
  // may be destroyed.
  void Start(std::function<void()> finished);

  // Stops the work at once. Ignored when done.
  void OnClientGone();

 private:
  class ChoiceSink;
  enum class State : uint8_t { kWaiting, kStreaming, kDone };

  void OnFirstToken(ChoiceSink& choice, const proto::FirstToken& first);
  void OnTokens(ChoiceSink& choice, std::span<const proto::Token* const> tokens);
  void OnResumed() { ++failovers_; }
  void OnEnd(ChoiceSink& choice, const SequenceEnd& end);

  void Echo(ChoiceSink& choice, const proto::FirstToken& first);
  // Takes tokens in and sends what they make; may end the choice or the session.
  void Deliver(ChoiceSink& choice, std::span<const proto::Token* const> tokens);
  void FinishChoice(ChoiceSink& choice, FinishReason reason);
  // Adds to what the next Flush sends, or to the whole answer.
  void Emit(ChoiceSink& choice, ChoiceStream::Delta delta, FinishReason reason);
  void Flush();
  void Complete();
  void Fail(const absl::Status& status, absl::Duration retry_after, bool work_begun = true);

  bool BeginStream();  // False: the client has left, and the session is done.
  void ArmHeartbeat(absl::Duration delay);
  void OnHeartbeat();
  void CancelSequence(ChoiceSink& choice);
  void Finish(int code, Outcome outcome, const absl::Status& status);
  void CountOutput(ChoiceSink& choice, int64_t tokens);
  void CountSlo(Outcome outcome, int64_t output_tokens);
  Usage TotalUsage() const;
  http::Headers CommonHeaders() const;

  const Context context_;
  const PreparedRequest prepared_;
  const std::shared_ptr<http::ResponseWriter> writer_;
  FrontMetrics::Model& metrics_;
  std::function<void()> finished_;

  State state_ = State::kWaiting;
  std::vector<std::unique_ptr<ChoiceSink>> choices_;
  size_t choices_over_ = 0;
  int64_t failovers_ = 0;  // Of all choices, in mid-answer.
  bool any_token_ = false;
  std::string output_;  // SSE events not yet written.
  absl::Time last_write_;
  TimerId heartbeat_ = 0;
};

}  // namespace lynx::router
