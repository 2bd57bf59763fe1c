// Any bytes as what a server under load answers: a whole HTTP response where they begin like one,
// else the body of an event stream. The client ends with one outcome, within its limits, and the
// same one wherever the bytes are cut.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/http/message_parser.h"
#include "common/http/types.h"
#include "services/cli/loadtest/answer_reader.h"
#include "services/cli/loadtest/token_timing.h"

namespace {

using lynx::http::HttpResponse;
using lynx::http::ResponseParser;
using lynx::loadtest::Answer;
using lynx::loadtest::AnswerReader;
using lynx::loadtest::GapHistograms;
using lynx::loadtest::Outcome;
using lynx::loadtest::TokenTiming;

constexpr size_t kMaxChunks = 200;

absl::Time At(size_t ms) { return absl::UnixEpoch() + absl::Milliseconds(ms); }

Answer ReadBody(std::string_view body, size_t piece) {
  AnswerReader reader({.max_chunks = kMaxChunks});
  HttpResponse head;
  head.headers = {{"content-type", "text/event-stream"}};
  reader.OnHead(head);
  for (size_t at = 0; at < body.size(); at += piece) {
    if (!reader.OnBody(body.substr(at, piece), At(at))) return reader.Take();
  }
  reader.OnEnd(absl::OkStatus(), At(body.size()));
  return reader.Take();
}

Answer ReadResponse(std::string_view bytes) {
  AnswerReader reader({.max_chunks = kMaxChunks});
  ResponseParser parser(/*head_request=*/false);
  bool told = false;
  bool over = false;
  const auto tell = [&] {
    if (!told) reader.OnHead(parser.head());
    told = true;
  };
  const absl::Status fed = parser.Feed(bytes, [&](std::string_view piece) {
    tell();
    over = over || !reader.OnBody(piece, At(1));
    return !over;
  });
  if (over) return reader.Take();
  if (fed.ok() && parser.head_done()) tell();
  absl::Status end = fed.ok() ? parser.FeedEof() : fed;
  reader.OnEnd(end, At(2));
  return reader.Take();
}

void Check(const Answer& answer) {
  LYNX_CHECK(answer.end.has_value());
  LYNX_CHECK(answer.outcome != Outcome::kUnfinished);
  if (answer.outcome == Outcome::kOk) LYNX_CHECK(answer.problem.empty());
  LYNX_CHECK(answer.chunks.size() <= kMaxChunks);
  LYNX_CHECK(answer.problem.size() <= 1000);
  LYNX_CHECK(lynx::IsValidUtf8(answer.problem));
  static auto* const gaps = new GapHistograms();
  const uint64_t before = gaps->tokens.count();
  const TokenTiming timing = AccountTokens(answer, gaps);
  LYNX_CHECK(timing.tokens >= 0);
  LYNX_CHECK(timing.first.has_value() == timing.last.has_value());
  if (timing.first.has_value()) LYNX_CHECK(*timing.first <= *timing.last);
  LYNX_CHECK(gaps->tokens.count() - before <= static_cast<uint64_t>(INT32_MAX));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.starts_with("HTTP/")) {
    Check(ReadResponse(bytes));
    return 0;
  }
  const Answer whole = ReadBody(bytes, bytes.size() + 1);
  Check(whole);
  for (const size_t piece : {size_t{1}, size_t{7}}) {
    const Answer cut = ReadBody(bytes, piece);
    Check(cut);
    LYNX_CHECK(cut.outcome == whole.outcome);
    LYNX_CHECK(cut.problem == whole.problem);
    LYNX_CHECK(cut.chunks.size() == whole.chunks.size());
    LYNX_CHECK(cut.completion_tokens == whole.completion_tokens);
  }
  return 0;
}
