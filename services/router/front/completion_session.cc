#include "services/router/front/completion_session.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/http/sse.h"
#include "common/telemetry/log.h"
#include "services/router/front/api_error.h"

namespace lynx::router {
namespace {

bool HasNan(const proto::Token& token) {
  return std::isnan(token.logprob()) ||
         std::any_of(token.top().begin(), token.top().end(),
                     [](const proto::TopLogprob& other) { return std::isnan(other.logprob()); });
}

text::StopMatcher MakeStopMatcher(const std::vector<std::string>& stops) {
  auto matcher = text::StopMatcher::Create(stops);
  LYNX_CHECK_MSG(matcher.ok(), matcher.status().ToString());
  return *std::move(matcher);
}

}  // namespace

// One sequence and the choice it becomes.
class CompletionSession::ChoiceSink final : public SequenceSink {
 public:
  ChoiceSink(CompletionSession& session_in, const PreparedPrompt& prompt_in, int index)
      : session(session_in),
        prompt(prompt_in),
        whole{.index = index, .text = {}, .logprobs = {}, .finish_reason = FinishReason::kNone},
        stream(session_in.context_.tokenizer, prompt_in.ids,
               MakeStopMatcher(session_in.prepared_.request.stop),
               session_in.prepared_.request.logprobs.has_value(), session_in.prepared_.request.echo,
               CountCharacters(prompt_in.echo_text)) {
    if (session_in.prepared_.request.logprobs.has_value()) whole.logprobs.emplace();
  }

  void OnFirstToken(const proto::FirstToken& first_token) override {
    session.OnFirstToken(*this, first_token);
  }
  void OnTokens(std::span<const proto::Token* const> tokens) override {
    session.OnTokens(*this, tokens);
  }
  void OnResumed() override { session.OnResumed(); }
  void OnEnd(const SequenceEnd& end) override { session.OnEnd(*this, end); }

  // Between the first token and the last; zero when they are one.
  absl::Duration TimePerOutputToken() const {
    return output_tokens > 1 ? (last_token_at - first_token_at) / (output_tokens - 1)
                             : absl::ZeroDuration();
  }

  CompletionSession& session;
  const PreparedPrompt& prompt;
  Choice whole;  // The answer so far; only its index is used when streaming.
  std::optional<TextChunks> text_chunks;  // Of a stream, from the first text on.
  ChoiceStream stream;
  SequenceId sequence = 0;
  bool live = false;    // The service knows the sink.
  bool begun = false;   // Its first token is here.
  bool over = false;    // The choice is complete.
  bool opened = false;  // Its first chunk is out.
  int64_t output_tokens = 0;
  int64_t cached_tokens = 0;
  absl::Time first_token_at;
  absl::Time last_token_at;
};

CompletionSession::CompletionSession(const Context& context, PreparedRequest prepared,
                                     std::shared_ptr<http::ResponseWriter> writer)
    : context_(context),
      prepared_(std::move(prepared)),
      writer_(std::move(writer)),
      metrics_(context.metrics.ForModel(prepared_.request.model)) {
  metrics_.inflight.Add(1);
}

CompletionSession::~CompletionSession() {
  metrics_.inflight.Add(-1);
  if (heartbeat_ != 0) context_.loop.CancelTimer(heartbeat_);
}

void CompletionSession::Start(std::function<void()> finished) {
  finished_ = std::move(finished);
  last_write_ = context_.loop.Now();
  const ApiRequest& request = prepared_.request;
  for (const PreparedPrompt& prompt : prepared_.prompts) {
    for (int c = 0; c < request.n; ++c) {
      choices_.push_back(
          std::make_unique<ChoiceSink>(*this, prompt, static_cast<int>(choices_.size())));
    }
  }
  for (const auto& choice : choices_) {
    SequenceRequest sequence;
    sequence.prompt = choice->prompt.ids;
    sequence.sampling = request.sampling;
    // A choice's place among those of its own prompt: a prompt has the same answer alone and in a
    // list.
    sequence.sampling.set_choice_index(static_cast<uint32_t>(choice->whole.index % request.n));
    sequence.sampling.set_max_new_tokens(std::max(choice->prompt.max_new_tokens, 1));
    if (context_.request_timeout != absl::InfiniteDuration()) {
      sequence.deadline = prepared_.received + context_.request_timeout;
    }
    sequence.request_id = prepared_.head.id;
    sequence.names.set_request_id(prepared_.request_id);
    sequence.names.set_traceparent(FormatTraceparent(prepared_.trace));
    sequence.cache_salt = request.cache_salt;
    sequence.priority = request.priority;
    sequence.tenant = prepared_.tenant;
    auto id = context_.service.Start(std::move(sequence), *choice);
    if (!id.ok()) {
      Fail(id.status(), absl::Seconds(1), /*work_begun=*/false);
      return;
    }
    choice->sequence = *id;
    choice->live = true;
  }
  if (request.stream) ArmHeartbeat(context_.heartbeat_interval);
}

void CompletionSession::OnFirstToken(ChoiceSink& choice, const proto::FirstToken& first) {
  if (state_ == State::kDone || choice.over) return;
  const absl::Time now = context_.loop.Now();
  choice.begun = true;
  choice.first_token_at = choice.last_token_at = now;
  choice.cached_tokens = first.cached_tokens();
  if (!any_token_) {
    any_token_ = true;
    metrics_.prompt_tokens.Increment(static_cast<double>(TotalUsage().prompt_tokens));
    if (prepared_.request.stream) {
      metrics_.time_to_first_token.Observe(absl::ToDoubleSeconds(now - prepared_.received));
    }
  }
  if (prepared_.request.echo) Echo(choice, first);
  // Absent when the first token sampled was a stop id.
  const proto::Token* token = first.has_token() ? &first.token() : nullptr;
  Deliver(choice, {&token, token != nullptr ? size_t{1} : size_t{0}});
}

void CompletionSession::OnTokens(ChoiceSink& choice, std::span<const proto::Token* const> tokens) {
  if (state_ == State::kDone || choice.over || tokens.empty()) return;
  const absl::Time now = context_.loop.Now();
  metrics_.inter_token_latency.Observe(absl::ToDoubleSeconds(now - choice.last_token_at));
  choice.last_token_at = now;
  Deliver(choice, tokens);
}

void CompletionSession::OnEnd(ChoiceSink& choice, const SequenceEnd& end) {
  choice.live = false;
  if (state_ == State::kDone || choice.over) return;
  if (!end.status.ok()) {
    Fail(end.status, end.retry_after, end.work_begun);
    return;
  }
  if (!choice.begun) {
    Fail(absl::InternalError("The sequence ended without a token"), {});
    return;
  }
  switch (end.finish_reason) {
    case proto::Terminal::FINISH_REASON_STOP:
      if (choice.prompt.max_new_tokens == 0) {
        FinishChoice(choice, FinishReason::kLength);  // The token was not asked for.
        break;
      }
      // Sampled and paid for, though it is in no message and no part of the text.
      CountOutput(choice, 1);
      choice.last_token_at = context_.loop.Now();
      FinishChoice(choice, FinishReason::kStop);
      break;
    case proto::Terminal::FINISH_REASON_LENGTH:
      FinishChoice(choice, FinishReason::kLength);
      break;
    default:
      Fail(absl::InternalError("The sequence ended without a reason"), {});
      return;
  }
  Flush();
}

void CompletionSession::Echo(ChoiceSink& choice, const proto::FirstToken& first) {
  ChoiceStream::Delta echo;
  echo.text = choice.prompt.echo_text;
  if (prepared_.request.logprobs.has_value()) {
    std::vector<const proto::Token*> tail;
    tail.reserve(static_cast<size_t>(first.prompt_size()));
    for (const proto::Token& token : first.prompt()) tail.push_back(&token);
    if (std::any_of(tail.begin(), tail.end(), [](const auto* token) { return HasNan(*token); })) {
      return Fail(absl::InternalError("The model gave a log-probability that is not a number"), {});
    }
    echo.logprobs = EchoLogprobs(context_.tokenizer, choice.prompt.ids, tail);
  }
  Emit(choice, std::move(echo), FinishReason::kNone);
}

void CompletionSession::Deliver(ChoiceSink& choice, std::span<const proto::Token* const> tokens) {
  bool stopped = false;
  int64_t taken = 0;
  for (const proto::Token* token : tokens) {
    if (state_ == State::kDone) return;
    if (choice.prompt.max_new_tokens == 0) break;  // Only the prompt was asked about.
    if (prepared_.request.logprobs.has_value() && HasNan(*token)) {
      CountOutput(choice, taken);
      return Fail(absl::InternalError("The model gave a log-probability that is not a number"), {});
    }
    ++taken;
    if (choice.stream.Push(*token)) {
      stopped = true;
      break;
    }
  }
  CountOutput(choice, taken);
  if (state_ == State::kDone) return;
  if (stopped) {
    FinishChoice(choice, FinishReason::kStop);
  } else {
    Emit(choice, choice.stream.Take(), FinishReason::kNone);
  }
  Flush();
}

void CompletionSession::FinishChoice(ChoiceSink& choice, FinishReason reason) {
  choice.stream.Finish();
  Emit(choice, choice.stream.Take(), reason);
  choice.over = true;
  ++choices_over_;
  if (choice.output_tokens > 1) {
    metrics_.time_per_output_token.Observe(absl::ToDoubleSeconds(choice.TimePerOutputToken()));
  }
  CancelSequence(choice);
}

void CompletionSession::Emit(ChoiceSink& choice, ChoiceStream::Delta delta, FinishReason reason) {
  const ApiRequest& request = prepared_.request;
  if (!request.stream) {
    choice.whole.text += delta.text;
    if (choice.whole.logprobs.has_value()) {
      std::move(delta.logprobs.begin(), delta.logprobs.end(),
                std::back_inserter(*choice.whole.logprobs));
    }
    choice.whole.finish_reason = reason;
    return;
  }
  auto add = [&](ChoiceStream::Delta part, FinishReason part_reason, bool first) {
    if (!first && part_reason == FinishReason::kNone && part.logprobs.empty()) {
      if (!choice.text_chunks.has_value()) {
        choice.text_chunks.emplace(prepared_.head, choice.whole.index, request.include_usage);
      }
      output_ += http::FormatSseData(choice.text_chunks->Build(part.text));
      return;
    }
    Choice chunk{.index = choice.whole.index,
                 .text = std::move(part.text),
                 .logprobs = {},
                 .finish_reason = part_reason};
    if (!part.logprobs.empty()) chunk.logprobs = std::move(part.logprobs);
    output_ += http::FormatSseData(BuildChunk(prepared_.head, chunk, first, request.include_usage));
  };
  if (!choice.opened && request.api == Api::kChat) add({}, FinishReason::kNone, true);
  choice.opened = true;
  if (request.api == Api::kChat) {
    // In chat the reason has a chunk of its own, with an empty delta.
    if (!delta.empty()) add(std::move(delta), FinishReason::kNone, false);
    if (reason != FinishReason::kNone) add({}, reason, false);
  } else if (!delta.empty() || reason != FinishReason::kNone) {
    add(std::move(delta), reason, false);
  }
}

void CompletionSession::Flush() {
  if (state_ == State::kDone) return;
  const bool complete = choices_over_ == choices_.size();
  if (prepared_.request.stream && !output_.empty()) {
    if (!BeginStream()) return;
    if (complete) {
      if (prepared_.request.include_usage) {
        output_ += http::FormatSseData(BuildUsageChunk(prepared_.head, TotalUsage()));
      }
      output_ += http::FormatSseData("[DONE]");
    }
    if (!writer_->Write(std::exchange(output_, {})).ok()) return OnClientGone();
    last_write_ = context_.loop.Now();
  }
  if (complete) Complete();
}

void CompletionSession::Complete() {
  absl::Status sent;
  if (prepared_.request.stream) {
    sent = writer_->End();
  } else {
    std::vector<Choice> choices;
    choices.reserve(choices_.size());
    for (const auto& choice : choices_) choices.push_back(std::move(choice->whole));
    http::HttpResponse response{.status = 200, .headers = CommonHeaders(), .body = {}};
    response.headers.emplace_back("Content-Type", http::kJsonContentType);
    response.body = BuildResponse(prepared_.head, choices, TotalUsage());
    sent = writer_->Send(std::move(response));
  }
  if (!sent.ok()) return OnClientGone();
  Finish(200, Outcome::kOk, absl::OkStatus());
}

void CompletionSession::Fail(const absl::Status& status, absl::Duration retry_after,
                             bool work_begun) {
  if (state_ == State::kDone) return;
  const ApiError error = ToApiError(status, retry_after);
  if (state_ == State::kStreaming) {
    // No [DONE], which would read as success. Should the client be gone too, that is no news.
    output_ += http::FormatSseData(BuildError(error));
    writer_->Write(std::exchange(output_, {})).IgnoreError();
    writer_->End().IgnoreError();
    Finish(200, Outcome::kStreamError, status);
    return;
  }
  http::HttpResponse response{
      .status = error.http_status, .headers = CommonHeaders(), .body = BuildError(error)};
  response.headers.emplace_back("Content-Type", http::kJsonContentType);
  if (error.retry_after > absl::ZeroDuration()) {
    response.headers.emplace_back("Retry-After", RetryAfterSeconds(error.retry_after));
  }
  writer_->Send(std::move(response)).IgnoreError();
  // A sister sequence may have come further than the one that failed.
  Finish(error.http_status, OutcomeOf(error.http_status, work_begun || any_token_), status);
}

void CompletionSession::OnClientGone() {
  if (state_ == State::kDone) return;
  (any_token_ ? metrics_.left_while_streaming : metrics_.left_before_first_token).Increment();
  Finish(state_ == State::kStreaming ? 200 : FrontMetrics::kClientClosedCode, Outcome::kCancelled,
         absl::CancelledError("the client has left"));
}

bool CompletionSession::BeginStream() {
  if (state_ == State::kStreaming) return true;
  http::Headers headers = CommonHeaders();
  headers.emplace_back("Content-Type", http::kSseContentType);
  headers.emplace_back("Cache-Control", "no-cache");
  headers.emplace_back("X-Accel-Buffering", "no");  // Proxies that follow nginx: do not collect.
  if (!writer_->StartStream(200, std::move(headers)).ok()) {
    OnClientGone();
    return false;
  }
  state_ = State::kStreaming;
  return true;
}

void CompletionSession::ArmHeartbeat(absl::Duration delay) {
  heartbeat_ = context_.loop.RunAfter(delay, [this] { OnHeartbeat(); });
}

void CompletionSession::OnHeartbeat() {
  heartbeat_ = 0;
  if (state_ == State::kDone) return;
  const absl::Duration quiet = context_.loop.Now() - last_write_;
  if (quiet < context_.heartbeat_interval) {
    return ArmHeartbeat(context_.heartbeat_interval - quiet);
  }
  if (!BeginStream()) return;
  if (!writer_->Write(http::FormatSseComment("waiting")).ok()) return OnClientGone();
  last_write_ = context_.loop.Now();
  ArmHeartbeat(context_.heartbeat_interval);
}

void CompletionSession::CancelSequence(ChoiceSink& choice) {
  if (!choice.live) return;
  choice.live = false;
  // As a task of its own, because this may run inside a callback of that very sequence. The sink
  // outlives the task: `finished_` is posted after it.
  context_.loop.Post([&service = context_.service, id = choice.sequence] { service.Cancel(id); });
}

void CompletionSession::Finish(int code, Outcome outcome, const absl::Status& status) {
  state_ = State::kDone;
  for (const auto& choice : choices_) CancelSequence(*choice);
  if (heartbeat_ != 0) context_.loop.CancelTimer(std::exchange(heartbeat_, 0));

  const absl::Duration took = context_.loop.Now() - prepared_.received;
  const Usage usage = TotalUsage();
  (prepared_.request.stream ? metrics_.duration_streaming : metrics_.duration_whole)
      .Observe(absl::ToDoubleSeconds(took));
  if (any_token_) {
    metrics_.request_prompt_tokens.Observe(static_cast<double>(usage.prompt_tokens));
    metrics_.request_output_tokens.Observe(static_cast<double>(usage.completion_tokens));
  }
  context_.metrics.CountRequest(metrics_, prepared_.request.api, code, outcome);
  CountSlo(outcome, usage.completion_tokens);
  const telemetry::LogLevel level =
      outcome == Outcome::kServerError || outcome == Outcome::kStreamError
          ? telemetry::LogLevel::kError
          : telemetry::LogLevel::kInfo;
  telemetry::Log(level, "request finished",
                 {{"request_id", prepared_.request_id},
                  {"id", prepared_.head.id},
                  {"trace_id", prepared_.trace.trace_id},
                  {"span_id", prepared_.trace.span_id},
                  {"code", absl::StrCat(code)},
                  {"status", status.ok() ? "OK" : status.ToString()},
                  {"prompt_tokens", absl::StrCat(usage.prompt_tokens)},
                  {"output_tokens", absl::StrCat(usage.completion_tokens)},
                  {"failovers", absl::StrCat(usage.failovers)},
                  {"seconds", absl::StrCat(absl::ToDoubleSeconds(took))}});
  context_.loop.Post(std::move(finished_));
}

void CompletionSession::CountOutput(ChoiceSink& choice, int64_t tokens) {
  if (tokens == 0) return;
  choice.output_tokens += tokens;
  metrics_.output_tokens.Increment(static_cast<double>(tokens));
  if (prepared_.usage != nullptr) prepared_.usage->ChargeOutput(tokens, context_.loop.Now());
}

void CompletionSession::CountSlo(Outcome outcome, int64_t output_tokens) {
  if (outcome == Outcome::kClientError || outcome == Outcome::kCancelled) return;
  if (outcome != Outcome::kOk) return context_.metrics.CountUnanswered(metrics_);
  RequestTimes worst;
  for (const auto& choice : choices_) {
    worst.ttft = std::max(worst.ttft, choice->first_token_at - prepared_.received);
    worst.tpot = std::max(worst.tpot, choice->TimePerOutputToken());
  }
  context_.metrics.CountAnswered(metrics_, worst, output_tokens);
}

Usage CompletionSession::TotalUsage() const {
  Usage usage;
  usage.failovers = failovers_;
  for (const PreparedPrompt& prompt : prepared_.prompts) {
    usage.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  }
  for (const auto& choice : choices_) {
    usage.completion_tokens += choice->output_tokens;
    // Once a prompt, as its tokens are.
    if (choice->whole.index % prepared_.request.n == 0) {
      usage.cached_tokens += choice->cached_tokens;
    }
  }
  return usage;
}

http::Headers CompletionSession::CommonHeaders() const {
  http::Headers headers = prepared_.headers;
  headers.emplace_back("X-Request-Id", prepared_.request_id);
  return headers;
}

}  // namespace lynx::router
