#include "common/http/client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/http/dial.h"
#include "common/http/message_parser.h"

namespace lynx::http {
namespace {

std::string ErrorText(int error) { return std::strerror(error); }

// When to give up: by the whole request's limit and, where given, by the silence limit.
class Deadline {
 public:
  Deadline(absl::Duration total, absl::Duration silence)
      : end_(SteadyClock::Instance().Now() + total), silence_(silence) {
    Heard();
  }
  // The other end has shown life.
  void Heard() { quiet_end_ = SteadyClock::Instance().Now() + silence_; }
  absl::Duration left() const { return std::min(end_, quiet_end_) - SteadyClock::Instance().Now(); }

 private:
  const absl::Time end_;
  const absl::Duration silence_;
  absl::Time quiet_end_;
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int fd() const { return fd_; }

  absl::Status WaitFor(short events, const Deadline& deadline, std::string_view doing) const {
    for (;;) {
      const absl::Duration left = deadline.left();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(absl::StrCat("timed out while ", std::string(doing)));
      }
      // Rounded up, so as not to spin at the end; capped to fit.
      const int64_t ms = absl::ToInt64Milliseconds(std::min(left, absl::Hours(1))) + 1;
      pollfd fd{.fd = fd_, .events = events, .revents = 0};
      const int ready = poll(&fd, 1, static_cast<int>(ms));
      if (ready > 0) return absl::OkStatus();
      if (ready < 0 && errno != EINTR) {
        return absl::UnavailableError("poll: " + ErrorText(errno));
      }
    }
  }

 private:
  int fd_ = -1;
};

absl::StatusOr<Socket> Connect(const Url& url, const Deadline& deadline) {
  LYNX_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(url));
  absl::Status last = absl::UnavailableError("no address for '" + url.host + "'");
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    Socket socket(OpenSocket(a->ai_family));
    if (socket.fd() < 0) {
      last = absl::UnavailableError("cannot make a socket: " + ErrorText(errno));
      continue;
    }
    int error = 0;
    if (connect(socket.fd(), a->ai_addr, a->ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS) {
      LYNX_RETURN_IF_ERROR(socket.WaitFor(POLLOUT, deadline, "connecting"));
      socklen_t size = sizeof(error);
      getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) return socket;
    last = absl::UnavailableError(
        absl::StrCat("cannot connect to ", url.host, " port ", url.port, ": ", ErrorText(error)));
  }
  return last;
}

// Sends as long as the other end reads. A server may answer before it has read everything (a body
// too large, say): then what is left is not sent, and the answer is read.
absl::Status SendAll(const Socket& socket, std::string_view data, Deadline& deadline) {
  while (!data.empty()) {
    const ssize_t n = send(socket.fd(), data.data(), data.size(), MSG_NOSIGNAL);
    if (n > 0) {
      data.remove_prefix(static_cast<size_t>(n));
      deadline.Heard();
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EPIPE || errno == ECONNRESET) return absl::OkStatus();
    if (errno != EAGAIN) return absl::UnavailableError("cannot send: " + ErrorText(errno));
    LYNX_RETURN_IF_ERROR(socket.WaitFor(POLLOUT | POLLIN, deadline, "sending the request"));
    pollfd readable{.fd = socket.fd(), .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, 0) > 0) return absl::OkStatus();
  }
  return absl::OkStatus();
}

using OnBody = std::function<bool(std::string_view)>;

// Sends one request and reads the head of the response into the result, its body into `on_body`.
absl::StatusOr<HttpResponse> Exchange(
    std::string_view method, std::string_view url_text, const Headers& headers,
    std::string_view body, Deadline deadline,
    const std::function<bool(const HttpResponse& head, std::string_view)>& on_body) {
  LYNX_ASSIGN_OR_RETURN(const Url url, ParseUrl(url_text));
  std::string request =
      absl::StrCat(std::string(method), " ", url.target, " HTTP/1.1\r\nHost: ",
                   url.host.find(':') == std::string::npos ? url.host : "[" + url.host + "]", ":",
                   url.port, "\r\nConnection: close\r\n");
  if (method == "POST") absl::StrAppend(&request, "Content-Length: ", body.size(), "\r\n");
  for (const auto& [name, value] : headers) {
    if ((name + value).find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos) {
      return absl::InvalidArgumentError("a line break in the header field " + name);
    }
    absl::StrAppend(&request, name, ": ", value, "\r\n");
  }
  request += "\r\n";
  request += body;

  LYNX_ASSIGN_OR_RETURN(const Socket socket, Connect(url, deadline));
  LYNX_RETURN_IF_ERROR(SendAll(socket, request, deadline));

  ResponseParser parser(/*head_request=*/method == "HEAD");
  const OnBody pass = [&](std::string_view piece) { return on_body(parser.head(), piece); };
  std::string buffer(64 * 1024, '\0');
  while (!parser.done()) {
    const ssize_t n = recv(socket.fd(), buffer.data(), buffer.size(), 0);
    if (n > 0) {
      deadline.Heard();
      const absl::Status fed =
          parser.Feed(std::string_view(buffer.data(), static_cast<size_t>(n)), pass);
      if (absl::IsAborted(fed)) return parser.head();  // The caller has had enough.
      LYNX_RETURN_IF_ERROR(fed);
      continue;
    }
    if (n == 0) {
      const absl::Status end = parser.FeedEof();
      if (end.ok()) break;
      if (!parser.head_done()) return absl::UnavailableError(end.message());
      return end;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      const std::string text = "the connection broke: " + ErrorText(errno);
      if (parser.head_done()) return absl::DataLossError(text);
      return absl::UnavailableError(text);
    }
    LYNX_RETURN_IF_ERROR(socket.WaitFor(POLLIN, deadline, "waiting for the response"));
  }
  return parser.head();
}

absl::StatusOr<HttpResponse> Collect(std::string_view method, std::string_view url,
                                     const Headers& headers, std::string_view body,
                                     absl::Duration timeout, size_t max_bytes) {
  std::string collected;
  bool too_large = false;
  auto response = Exchange(method, url, headers, body, Deadline(timeout, absl::InfiniteDuration()),
                           [&](const HttpResponse&, std::string_view piece) {
                             too_large = collected.size() + piece.size() > max_bytes;
                             if (!too_large) collected += piece;
                             return !too_large;
                           });
  if (too_large) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the response is larger than ", max_bytes, " bytes"));
  }
  if (response.ok()) response->body = std::move(collected);
  return response;
}

}  // namespace

absl::StatusOr<Url> ParseUrl(std::string_view url) {
  const auto bad = [&](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat("URL '", std::string(url), "': ", what));
  };
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return bad("must start with http://");
  if (url.find_first_of(std::string_view(" \t\r\n\0", 5)) != std::string_view::npos) {
    return bad("holds a space or control character");
  }
  std::string_view rest = url.substr(kScheme.size());
  const size_t path = rest.find_first_of("/?#");
  std::string_view authority = rest.substr(0, path);
  Url out;
  if (path != std::string_view::npos) out.target = rest.substr(path);
  out.target = out.target.substr(0, out.target.find('#'));
  if (!out.target.starts_with('/')) out.target.insert(0, "/");
  if (authority.find('@') != std::string_view::npos) return bad("user names are not supported");
  std::string_view port;
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) return bad("']' is missing");
    out.host = authority.substr(1, end - 1);
    port = authority.substr(end + 1);
  } else {
    const size_t colon = authority.find(':');
    out.host = authority.substr(0, colon);
    if (colon != std::string_view::npos) port = authority.substr(colon);
  }
  if (out.host.empty()) return bad("the host is missing");
  if (!port.empty()) {
    const char* const end = port.data() + port.size();
    const auto [stopped, error] = std::from_chars(port.data() + 1, end, out.port);
    if (port[0] != ':' || error != std::errc() || stopped != end || out.port == 0) {
      return bad("the port is not a number from 1 to 65535");
    }
  }
  return out;
}

absl::StatusOr<HttpResponse> HttpClient::Get(std::string_view url, const Headers& headers,
                                             absl::Duration timeout) const {
  return Collect("GET", url, headers, "", timeout, options_.max_response_bytes);
}

absl::StatusOr<HttpResponse> HttpClient::Post(std::string_view url, const Headers& headers,
                                              std::string_view body, absl::Duration timeout) const {
  return Collect("POST", url, headers, body, timeout, options_.max_response_bytes);
}

absl::StatusOr<HttpResponse> HttpClient::PostForEvents(std::string_view url, const Headers& headers,
                                                       std::string_view body,
                                                       const StreamTimeouts& timeouts,
                                                       const OnEvent& on_event) const {
  SseParser events(options_.max_response_bytes);
  std::string collected;
  absl::Status problem;
  auto response =
      Exchange("POST", url, headers, body, Deadline(timeouts.total, timeouts.silence),
               [&](const HttpResponse& head, std::string_view piece) {
                 if (!head.Header("content-type").value_or("").starts_with(kSseContentType)) {
                   if (collected.size() + piece.size() > options_.max_response_bytes) {
                     problem = absl::ResourceExhaustedError("the response is too large");
                     return false;
                   }
                   collected += piece;
                   return true;
                 }
                 problem = events.Feed(piece);
                 while (std::optional<SseEvent> event = events.Next()) {
                   if (!on_event(*event)) return false;
                 }
                 return problem.ok();
               });
  LYNX_RETURN_IF_ERROR(problem);
  if (response.ok()) response->body = std::move(collected);
  return response;
}

}  // namespace lynx::http
