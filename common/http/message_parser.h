#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/http/types.h"

// HTTP/1.1 messages from bytes: pure logic, no sockets, no clock. Used by HttpServer and
// HttpClient; others have no need of it.
namespace lynx::http {

struct RequestLimits {
  size_t max_header_bytes = 32 * 1024;  // Request line and fields: more is 431.
  size_t max_header_fields = 128;       // More is 431.
  size_t max_target_bytes = 8 * 1024;   // More is 414.
  uint64_t max_body_bytes = 0;          // More is 413, known from Content-Length or chunk sizes.
};

// Parses one request after another from a connection's bytes. Strict where leniency lets two
// programs disagree about where a message ends: 400 for Content-Length with Transfer-Encoding, a
// repeated Content-Length, folded fields, bare line feeds, a missing or repeated Host.
//
// Memory: the body so far, plus the header fields once complete. Not thread-safe.
class RequestParser {
 public:
  enum class State {
    kIdle,    // Nothing of the next request has come.
    kHeader,  // Within the request line or fields.
    kBody,    // The head is complete; head() may be read; body bytes are due.
    kDone,    // TakeRequest() is due.
    kFailed,  // error_status() and error_message() say what to answer; then close.
  };

  explicit RequestParser(const RequestLimits& limits);
  ~RequestParser();
  RequestParser(RequestParser&&) = delete;

  // Consumes a prefix of `data` and returns its length. What is not consumed must come again, with
  // more behind it. Stops at the end of the head, at the end of the message and at an error, so
  // call again while it consumes something.
  size_t Feed(std::string_view data);

  State state() const { return state_; }

  // From kBody on.
  const HttpRequest& head() const;
  bool keep_alive() const;
  bool http10() const;
  bool expects_continue() const;

  // In kDone; returns to kIdle.
  HttpRequest TakeRequest();

  // Frees what has come of the request; returns to kIdle.
  void Discard();

  // In kFailed.
  int error_status() const { return error_status_; }
  const std::string& error_message() const { return error_message_; }

 private:
  class Impl;

  size_t FeedHeader(std::string_view data);
  size_t FeedBody(std::string_view data);
  void Fail(int status, std::string message);
  void Restart();

  const RequestLimits limits_;
  State state_ = State::kIdle;
  std::unique_ptr<Impl> impl_;
  size_t scanned_ = 0;      // Bytes of the incomplete header already looked at.
  size_t line_start_ = 0;   // Where the header line at `scanned_` starts.
  size_t blank_bytes_ = 0;  // Blank lines skipped ahead of the request line.
  int error_status_ = 0;
  std::string error_message_;
};

// Parses one response. Not thread-safe.
class ResponseParser {
 public:
  // `head_request`: the response has no body whatever its fields say.
  explicit ResponseParser(bool head_request);
  ~ResponseParser();
  ResponseParser(ResponseParser&&) = delete;

  // Consumes all of `data`. Body bytes go to `on_body` as they come; interim (1xx) responses are
  // skipped. InvalidArgument for what is not HTTP/1.1, Aborted when `on_body` returns false.
  absl::Status Feed(std::string_view data, const std::function<bool(std::string_view)>& on_body);

  // The other end has closed. DataLoss when the response was not complete.
  absl::Status FeedEof();

  bool head_done() const;
  bool done() const;
  // Status and fields, once head_done(); the body is not kept here.
  const HttpResponse& head() const;

 private:
  class Impl;
  void Restart();

  const bool head_request_;
  std::string buffered_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lynx::http
