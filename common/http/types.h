#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Values that HTTP servers, handlers and clients exchange.
namespace lynx::http {

// In the order of the message. The parsers hand out names in lower case; what we send keeps its
// spelling.
using Headers = std::vector<std::pair<std::string, std::string>>;

// The first value under `name` (any case).
std::optional<std::string_view> FindHeader(const Headers& headers, std::string_view name);

// What came after the first '?' is in `query`, still encoded; `path` is percent-decoded, starts
// with '/' or is "*", and holds no control characters, but its bytes need not be UTF-8.
struct HttpRequest {
  std::string method;  // As sent: methods are case-sensitive.
  std::string path;
  std::string query;
  Headers headers;
  std::string body;
  std::string peer;    // "address:port" of the other end of the connection.
  std::string user{};  // Whom a handler in front found it to come from; the server leaves it empty.

  std::optional<std::string_view> Header(std::string_view name) const {
    return FindHeader(headers, name);
  }
};

// The server adds Content-Length, Transfer-Encoding, Connection and Date; do not set those.
struct HttpResponse {
  int status = 200;
  Headers headers;
  std::string body;

  std::optional<std::string_view> Header(std::string_view name) const {
    return FindHeader(headers, name);
  }
};

inline constexpr char kJsonContentType[] = "application/json";

// "Not Found" for 404; "Unknown" for a code without a registered text.
std::string_view ReasonPhrase(int status);

bool EqualsIgnoreCase(std::string_view a, std::string_view b);

// {"error":{"message":...,"code":status}}. Any bytes are safe in `message`.
std::string PlainErrorBody(int status, std::string_view message);

}  // namespace lynx::http
