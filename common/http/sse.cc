#include "common/http/sse.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lynx::http {
namespace {

// Calls `line` for each line of `text`, whatever its line ends; at least once.
template <typename Fn>
void ForEachLine(std::string_view text, Fn line) {
  for (;;) {
    const size_t end = text.find_first_of("\r\n");
    line(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + (text.substr(end, 2) == "\r\n" ? 2 : 1));
  }
}

}  // namespace

std::string FormatSseData(std::string_view data) {
  std::string out;
  out.reserve(data.size() + 16);
  ForEachLine(data, [&](std::string_view line) {
    out += "data: ";
    out += line;
    out += '\n';
  });
  out += '\n';
  return out;
}

std::string FormatSseComment(std::string_view text) {
  std::string out;
  ForEachLine(text, [&](std::string_view line) {
    out += ": ";
    out += line;
    out += '\n';
  });
  out += '\n';
  return out;
}

absl::Status SseParser::Feed(std::string_view data) {
  while (!data.empty()) {
    if (skip_line_feed_) {
      skip_line_feed_ = false;
      if (data[0] == '\n') {
        data.remove_prefix(1);
        continue;
      }
    }
    const size_t end = data.find_first_of("\r\n");
    line_.append(data.substr(0, end));
    if (line_.size() + data_.size() > max_event_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a server-sent event is larger than ", max_event_bytes_, " bytes"));
    }
    if (end == std::string_view::npos) break;
    skip_line_feed_ = data[end] == '\r';
    data.remove_prefix(end + 1);
    Line(line_);
    line_.clear();
  }
  return absl::OkStatus();
}

void SseParser::Line(std::string_view line) {
  if (std::exchange(first_line_, false) && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  if (line.empty()) {
    if (has_data_) {
      events_.push_back({type_.empty() ? "message" : type_, std::move(data_), id_});
    }
    has_data_ = false;
    data_.clear();
    type_.clear();
    return;
  }
  const size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "data") {
    if (has_data_) data_ += '\n';
    has_data_ = true;
    data_ += value;
  } else if (field == "event") {
    type_ = value;
  } else if (field == "id" && value.find('\0') == std::string_view::npos) {
    id_ = value;
  }
}

std::optional<SseEvent> SseParser::Next() {
  if (events_.empty()) return std::nullopt;
  SseEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

}  // namespace lynx::http
