#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/http/sse.h"
#include "common/http/types.h"
#include "services/cli/loadtest/answer.h"

namespace lynx::loadtest {

// Makes an Answer of the bytes of one response. Takes whatever a server sends: what is wrong ends
// up in the outcome, and memory stays within the limits. Pure; not thread-safe.
//
// A chunk counts as bringing tokens when its text (content, text, reasoning or a tool call's) is
// not empty: the first piece of a chat names a role only, and would make TTFT look better than it
// is. An answer whose tokens have no text at all counts from its finish_reason.
class AnswerReader {
 public:
  struct Limits {
    size_t max_event_bytes = size_t{1} << 20;
    size_t max_chunks =
        1 << 16;  // Pieces with tokens; a server that sends more ignores max_tokens.
    size_t max_error_bytes = 16 * 1024;  // Of a body that is no stream: more is read, not kept.
  };

  explicit AnswerReader(const Limits& limits) : limits_(limits), events_(limits.max_event_bytes) {}

  // The head of the response is complete. Before any OnBody.
  void OnHead(const http::HttpResponse& head);
  // A piece of the body, read at `now`. False: there is nothing more to learn, stop reading.
  bool OnBody(std::string_view piece, absl::Time now);
  // The response is over. The status is HttpClient's: OK for a complete one. Not after OnBody
  // returned false.
  void OnEnd(const absl::Status& status, absl::Time now);
  // Gives up at `now` for a reason of our own.
  void Abandon(Outcome outcome, std::string problem, absl::Time now);

  // Once over.
  Answer Take() { return std::move(answer_); }

 private:
  bool OnEvent(std::string_view data, absl::Time now);
  bool Fail(Outcome outcome, std::string problem, absl::Time now);
  void OnErrorBody(absl::Time now);

  const Limits limits_;
  http::SseParser events_;
  bool is_stream_ = false;
  std::string error_body_;
  Answer answer_;
};

}  // namespace lynx::loadtest
