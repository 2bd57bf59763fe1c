#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/http/sse.h"
#include "common/http/types.h"

// Blocking HTTP/1.1 client over plain TCP, for command-line tools and tests: one connection per
// request, no TLS, no redirects, no proxies.
namespace lynx::http {

struct Url {
  std::string host;  // Without the brackets of an IPv6 address.
  uint16_t port = 80;
  std::string target;  // Path and query; at least "/".
};

// "http://host[:port][/path][?query]". InvalidArgument for anything else, https included.
absl::StatusOr<Url> ParseUrl(std::string_view url);

// Thread-safe: holds no connection. A response of any status is a result; a Status means that there
// is no complete response:
//   InvalidArgument    the URL, or an answer that is not HTTP.
//   Unavailable        cannot resolve or connect, or the connection broke before an answer.
//   DataLoss           the answer was cut short.
//   DeadlineExceeded   too late. (Name resolution alone follows the system's own limits.)
//   ResourceExhausted  the answer is larger than Options::max_response_bytes.
class HttpClient {
 public:
  struct Options {
    size_t max_response_bytes = size_t{256} << 20;  // Of a body, or of one event of a stream.
  };
  HttpClient() = default;
  explicit HttpClient(const Options& options) : options_(options) {}

  absl::StatusOr<HttpResponse> Get(std::string_view url, const Headers& headers,
                                   absl::Duration timeout) const;
  absl::StatusOr<HttpResponse> Post(std::string_view url, const Headers& headers,
                                    std::string_view body, absl::Duration timeout) const;

  struct StreamTimeouts {
    absl::Duration total = absl::InfiniteDuration();
    absl::Duration silence = absl::Seconds(60);  // Between any two pieces, comments included.
  };
  // Return false to stop: the connection is closed, and the call returns what came so far.
  using OnEvent = std::function<bool(const SseEvent&)>;

  // Posts and hands each event of the answer to `on_event`, on the caller's thread. The result's
  // body is empty, unless the answer is no event stream (an error, say): then it is the body, and
  // `on_event` was not called. DataLoss when the stream ends without its proper end.
  absl::StatusOr<HttpResponse> PostForEvents(std::string_view url, const Headers& headers,
                                             std::string_view body, const StreamTimeouts& timeouts,
                                             const OnEvent& on_event) const;

 private:
  Options options_;
};

}  // namespace lynx::http
