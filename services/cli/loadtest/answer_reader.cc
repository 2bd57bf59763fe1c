#include "services/cli/loadtest/answer_reader.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_shape.h"
#include "common/base/utf8.h"

namespace lynx::loadtest {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxProblemBytes = 300;
constexpr int64_t kMaxEventElements = 100'000;

// For one line of a report.
std::string Clean(std::string_view text) {
  std::string clean = ReplaceInvalidUtf8(text.substr(0, kMaxProblemBytes));
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7F') c = ' ';
  }
  return clean;
}

const Json* Member(const Json& json, const char* name) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(name);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

// The words of an error object, however it is shaped.
std::string ErrorText(const Json& error) {
  if (error.is_string()) return Clean(error.get<std::string>());
  if (const Json* message = Member(error, "message"); message != nullptr && message->is_string()) {
    return Clean(message->get<std::string>());
  }
  return Clean(error.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// OpenAI's {"error": {...}}, or vLLM's {"object": "error", "message": ...}. Null: no error.
const Json* FindError(const Json& json) {
  if (const Json* error = Member(json, "error"); error != nullptr) return error;
  const Json* object = Member(json, "object");
  return object != nullptr && *object == "error" ? &json : nullptr;
}

std::optional<int64_t> Count(const Json& json, const char* name) {
  const Json* number = Member(json, name);
  if (number == nullptr || !number->is_number_unsigned()) return std::nullopt;
  // More tokens than that are no count of anything.
  if (*number > int64_t{std::numeric_limits<int32_t>::max()}) return std::nullopt;
  return number->get<int64_t>();
}

size_t TextBytes(const Json& json, const char* name) {
  const Json* text = Member(json, name);
  return text != nullptr && text->is_string() ? text->get_ref<const std::string&>().size() : 0;
}

size_t ToolCallBytes(const Json& delta) {
  const Json* calls = Member(delta, "tool_calls");
  if (calls == nullptr || !calls->is_array()) return 0;
  size_t bytes = 0;
  for (const Json& call : *calls) {
    const Json* function = Member(call, "function");
    if (function != nullptr) {
      bytes += TextBytes(*function, "name") + TextBytes(*function, "arguments");
    }
  }
  return bytes;
}

size_t ChoiceBytes(const Json& choice) {
  size_t bytes = TextBytes(choice, "text");
  if (const Json* delta = Member(choice, "delta"); delta != nullptr) {
    for (const char* name : {"content", "reasoning_content", "reasoning", "refusal"}) {
      bytes += TextBytes(*delta, name);
    }
    bytes += ToolCallBytes(*delta);
  }
  return bytes;
}

bool IsFinished(const Json& choice) {
  const Json* reason = Member(choice, "finish_reason");
  return reason != nullptr && reason->is_string();
}

absl::StatusOr<Json> ParseBounded(std::string_view text) {
  if (absl::Status shape = CheckJsonShape(text, kMaxJsonDepth, kMaxEventElements); !shape.ok()) {
    return shape;
  }
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("not a JSON object");
  return json;
}

}  // namespace

const char* OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kHttpStatus:
      return "http_status";
    case Outcome::kRefused:
      return "refused_429";
    case Outcome::kTimeout:
      return "timeout";
    case Outcome::kConnection:
      return "connection";
    case Outcome::kCut:
      return "stream_cut";
    case Outcome::kErrorEvent:
      return "error_event";
    case Outcome::kProtocol:
      return "protocol";
    case Outcome::kUnfinished:
      return "unfinished";
    case Outcome::kUnsent:
      return "unsent";
  }
  return "unknown";
}

void AnswerReader::OnHead(const http::HttpResponse& head) {
  answer_.status = head.status;
  is_stream_ = head.status == 200 &&
               head.Header("content-type").value_or("").starts_with(http::kSseContentType);
  if (const auto after = head.Header("retry-after"); after.has_value()) {
    double seconds = 0;  // The form with a date is not read: no model server sends it.
    if (absl::SimpleAtod(absl::string_view(after->data(), after->size()), &seconds) &&
        seconds >= 0 && seconds <= 1e6) {
      answer_.retry_after = absl::Seconds(seconds);
    }
  }
}

bool AnswerReader::Fail(Outcome outcome, std::string problem, absl::Time now) {
  answer_.outcome = outcome;
  answer_.problem = std::move(problem);
  answer_.end = now;
  return false;
}

bool AnswerReader::OnBody(std::string_view piece, absl::Time now) {
  if (!is_stream_) {
    error_body_.append(piece.substr(0, limits_.max_error_bytes - error_body_.size()));
    return true;
  }
  const absl::Status fed = events_.Feed(piece);
  while (std::optional<http::SseEvent> event = events_.Next()) {
    if (!OnEvent(event->data, now)) return false;
  }
  return fed.ok() || Fail(Outcome::kProtocol, std::string(fed.message()), now);
}

bool AnswerReader::OnEvent(std::string_view data, absl::Time now) {
  if (data == "[DONE]") {
    answer_.outcome = Outcome::kOk;
    answer_.end = now;
    return false;
  }
  const absl::StatusOr<Json> parsed = ParseBounded(data);
  if (!parsed.ok()) {
    return Fail(Outcome::kProtocol,
                absl::StrCat("an event is not a JSON object: ", Clean(data.substr(0, 80))), now);
  }
  if (const Json* error = FindError(*parsed); error != nullptr) {
    return Fail(Outcome::kErrorEvent, ErrorText(*error), now);
  }
  std::optional<int64_t> so_far;
  if (const Json* usage = Member(*parsed, "usage"); usage != nullptr) {
    so_far = Count(*usage, "completion_tokens");
    if (so_far.has_value()) answer_.completion_tokens = so_far;
    if (const auto prompt = Count(*usage, "prompt_tokens")) answer_.prompt_tokens = prompt;
    if (const Json* details = Member(*usage, "prompt_tokens_details"); details != nullptr) {
      if (const auto cached = Count(*details, "cached_tokens")) answer_.cached_tokens = cached;
    }
  }
  const Json* choices = Member(*parsed, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return true;
  const Json& choice = choices->front();
  const size_t bytes = ChoiceBytes(choice);
  // The end is a token of its own for most servers, without a text.
  if (bytes == 0 && !IsFinished(choice)) return true;
  if (answer_.chunks.size() == limits_.max_chunks) {
    return Fail(Outcome::kProtocol,
                absl::StrCat("more than ", limits_.max_chunks, " pieces of an answer"), now);
  }
  answer_.chunks.push_back({.at = now,
                            .text_bytes = static_cast<int32_t>(bytes),
                            .tokens_so_far = static_cast<int32_t>(so_far.value_or(-1))});
  return true;
}

void AnswerReader::OnErrorBody(absl::Time now) {
  const absl::StatusOr<Json> json = ParseBounded(error_body_);
  const Json* error = json.ok() ? FindError(*json) : nullptr;
  const std::string text = error != nullptr ? ErrorText(*error) : Clean(error_body_);
  if (answer_.status == 429) {
    Fail(Outcome::kRefused, text, now);
  } else if (answer_.status != 200) {
    Fail(Outcome::kHttpStatus, text, now);
  } else {
    Fail(Outcome::kProtocol, absl::StrCat("not an event stream: ", text), now);
  }
}

void AnswerReader::OnEnd(const absl::Status& status, absl::Time now) {
  if (status.code() == absl::StatusCode::kInvalidArgument) {
    Fail(Outcome::kProtocol, std::string(status.message()), now);
  } else if (answer_.status == 0) {
    Fail(Outcome::kConnection, std::string(status.message()), now);
  } else if (!is_stream_) {
    OnErrorBody(now);
  } else {
    Fail(Outcome::kCut,
         status.ok() ? "the stream ended without [DONE]" : std::string(status.message()), now);
  }
}

void AnswerReader::Abandon(Outcome outcome, std::string problem, absl::Time now) {
  Fail(outcome, std::move(problem), now);
}

}  // namespace lynx::loadtest
