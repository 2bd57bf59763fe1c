#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

// Server-sent events (the text/event-stream format of the HTML standard): writing and reading.
namespace lynx::http {

inline constexpr char kSseContentType[] = "text/event-stream";

// One event: a "data:" line for each line of `data` and an empty line. A reader gets `data` back
// with its line ends turned into '\n'.
std::string FormatSseData(std::string_view data);

// A comment, which readers ignore: keeps idle proxies from cutting a stream that waits.
std::string FormatSseComment(std::string_view text);

struct SseEvent {
  std::string type;  // "message" unless the stream says otherwise.
  std::string data;
  std::string id;  // The last id seen in the stream.
};

// Reads a stream in pieces cut anywhere. Pure; not thread-safe.
class SseParser {
 public:
  explicit SseParser(size_t max_event_bytes = size_t{16} << 20)
      : max_event_bytes_(max_event_bytes) {}

  // ResourceExhausted when one event outgrows the limit: stop reading the stream. A cut-off event
  // at the end of a stream is never delivered, as the standard asks.
  absl::Status Feed(std::string_view data);

  // The next complete event, in order.
  std::optional<SseEvent> Next();

 private:
  void Line(std::string_view line);

  const size_t max_event_bytes_;
  std::deque<SseEvent> events_;
  std::string line_;
  bool first_line_ = true;
  bool skip_line_feed_ = false;  // The last line ended with a carriage return.
  bool has_data_ = false;
  std::string data_;
  std::string type_;
  std::string id_;
};

}  // namespace lynx::http
