#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/http/server.h"
#include "common/http/sse.h"
#include "gtest/gtest.h"

namespace lynx::testing {

// Keeps what a handler answers, and plays the client that leaves. A call out of order fails the
// test. Not thread-safe.
class FakeResponseWriter final : public http::ResponseWriter {
 public:
  absl::Status Send(http::HttpResponse response) override {
    if (gone_) return absl::CancelledError("the client has left");
    EXPECT_FALSE(streaming_ || finished_) << "Send out of order";
    status_ = response.status;
    headers_ = std::move(response.headers);
    body_ = std::move(response.body);
    return Finish();
  }
  absl::Status StartStream(int status, http::Headers headers) override {
    if (gone_) return absl::CancelledError("the client has left");
    EXPECT_FALSE(streaming_ || finished_) << "StartStream out of order";
    streaming_ = true;
    status_ = status;
    headers_ = std::move(headers);
    return absl::OkStatus();
  }
  absl::Status Write(std::string_view data) override {
    if (gone_) return absl::CancelledError("the client has left");
    EXPECT_TRUE(streaming_ && !finished_) << "Write out of order";
    if (body_.size() + data.size() > max_output_bytes) {
      gone_ = true;
      return absl::ResourceExhaustedError("the client reads too slowly");
    }
    body_ += data;
    ++writes_;
    return absl::OkStatus();
  }
  absl::Status End() override {
    if (gone_) return absl::CancelledError("the client has left");
    EXPECT_TRUE(streaming_ && !finished_) << "End out of order";
    return Finish();
  }
  void Abort() override {
    aborted_ = true;
    Finish().IgnoreError();
  }
  void OnClosed(std::function<void()> closed) override { closed_ = std::move(closed); }

  // The client closes its connection.
  void Leave() {
    gone_ = true;
    if (auto closed = std::exchange(closed_, nullptr)) closed();
  }

  int status() const { return status_; }  // 0: nothing sent.
  const std::string& body() const { return body_; }
  bool streaming() const { return streaming_; }
  bool finished() const { return finished_; }
  bool aborted() const { return aborted_; }
  int writes() const { return writes_; }
  std::string Header(std::string_view name) const {
    return std::string(http::FindHeader(headers_, name).value_or(""));
  }
  // The `data` of each event so far.
  std::vector<std::string> Events() const {
    http::SseParser parser;
    EXPECT_TRUE(parser.Feed(body_).ok());
    std::vector<std::string> events;
    while (auto event = parser.Next()) events.push_back(event->data);
    return events;
  }

  size_t max_output_bytes = size_t{1} << 30;  // Of the whole stream: the client reads nothing.

 private:
  absl::Status Finish() {
    finished_ = true;
    closed_ = nullptr;
    return absl::OkStatus();
  }

  int status_ = 0;
  http::Headers headers_;
  std::string body_;
  bool streaming_ = false;
  bool finished_ = false;
  bool aborted_ = false;
  bool gone_ = false;
  int writes_ = 0;
  std::function<void()> closed_;
};

}  // namespace lynx::testing
