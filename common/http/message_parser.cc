#include "common/http/message_parser.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lynx::http {
namespace {

namespace beast = boost::beast;

constexpr size_t kMaxBlankBytes = 8;
// A chunk's size line, or all trailers.
constexpr size_t kMaxChunkHeaderBytes = 8 * 1024;
// Beast asserts when a chunked body that starts with its last chunk comes in pieces below this
// size. No such body ends in fewer bytes, so waiting for them delays nothing.
constexpr size_t kMinChunkedBytes = 5;
constexpr size_t kMaxResponseHeaderBytes = 64 * 1024;

std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

std::string Lower(std::string_view text) {
  std::string lower(text);
  absl::AsciiStrToLower(&lower);
  return lower;
}

bool IsTokenChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Empty for a malformed escape or a decoded control character.
std::optional<std::string> PercentDecode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = HexValue(text[i + 1]);
      const int low = HexValue(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) return std::nullopt;
    out.push_back(c);
  }
  return out;
}

// Fills path and query from origin-form, absolute-form or "*".
bool ParseTarget(std::string_view target, HttpRequest& request) {
  if (target == "*") {
    request.path = "*";
    return true;
  }
  if (!target.empty() && target[0] != '/') {
    const size_t scheme_end = target.find("://");
    if (scheme_end == std::string_view::npos) return false;
    const std::string scheme = Lower(target.substr(0, scheme_end));
    if (scheme != "http" && scheme != "https") return false;
    target.remove_prefix(scheme_end + 3);
    const size_t path = target.find_first_of("/?");
    if (path == 0) return false;
    target = path == std::string_view::npos ? std::string_view() : target.substr(path);
  }
  const size_t question = target.find('?');
  if (question != std::string_view::npos) request.query = target.substr(question + 1);
  std::optional<std::string> path = PercentDecode(target.substr(0, question));
  if (!path.has_value()) return false;
  request.path = path->empty() ? "/" : *std::move(path);
  return true;
}

}  // namespace

// Beast's parser calls back with each part; refusals are noted here and end the parse with a code
// that nobody reads.
class RequestParser::Impl final : public beast::http::basic_parser<true> {
 public:
  explicit Impl(const RequestLimits& limits) : limits_(limits) {
    header_limit(static_cast<uint32_t>(limits.max_header_bytes + kMaxChunkHeaderBytes));
    body_limit(limits.max_body_bytes);
    eager(false);
  }

  HttpRequest request;
  bool http10 = false;
  bool expects_continue = false;
  int refused_status = 0;
  std::string refused_message;

  // Rules that need the whole head; Beast has checked the body limit before.
  bool CheckHead() {
    if (!http10 && hosts_ == 0) return Refuse(400, "the Host field is missing");
    if (transfer_encodings_ > 0 && http10) {
      return Refuse(400, "Transfer-Encoding is not part of HTTP/1.0");
    }
    return true;
  }

 private:
  bool Refuse(int status, std::string message) {
    if (refused_status == 0) {
      refused_status = status;
      refused_message = std::move(message);
    }
    return false;
  }
  void Refuse(int status, std::string message, beast::error_code& ec) {
    Refuse(status, std::move(message));
    ec = beast::http::error::bad_value;
  }

  void on_request_impl(beast::http::verb, beast::string_view method, beast::string_view target,
                       int version, beast::error_code& ec) override {
    http10 = version == 10;
    request.method = std::string(View(method));
    if (target.size() > limits_.max_target_bytes) {
      return Refuse(
          414,
          absl::StrCat("the request target is longer than ", limits_.max_target_bytes, " bytes"),
          ec);
    }
    if (!ParseTarget(View(target), request)) {
      return Refuse(400, "the request target is malformed", ec);
    }
  }

  void on_response_impl(int, beast::string_view, int, beast::error_code&) override {}

  void on_field_impl(beast::http::field field, beast::string_view name_text,
                     beast::string_view value_text, beast::error_code& ec) override {
    if (head_done_)
      return;  // A trailer: nothing we serve uses one, and it must not pose as a field.
    const std::string_view value = View(value_text);
    switch (field) {
      case beast::http::field::host:
        if (++hosts_ > 1) return Refuse(400, "the Host field is repeated", ec);
        break;
      case beast::http::field::content_length:
        if (++content_lengths_ > 1 || value.find(',') != std::string_view::npos) {
          return Refuse(400, "the Content-Length field is repeated", ec);
        }
        break;
      case beast::http::field::transfer_encoding:
        ++transfer_encodings_;
        if (!EqualsIgnoreCase(value, "chunked")) {
          return Refuse(501, "no Transfer-Encoding but chunked is supported", ec);
        }
        break;
      case beast::http::field::content_encoding:
        if (!value.empty() && !EqualsIgnoreCase(value, "identity")) {
          return Refuse(415, "compressed request bodies are not supported", ec);
        }
        break;
      case beast::http::field::expect:
        if (!EqualsIgnoreCase(value, "100-continue")) {
          return Refuse(417, "no expectation but 100-continue is supported", ec);
        }
        expects_continue = !http10;
        break;
      default:
        break;
    }
    if (request.headers.size() >= limits_.max_header_fields) {
      return Refuse(431, absl::StrCat("more than ", limits_.max_header_fields, " header fields"),
                    ec);
    }
    request.headers.emplace_back(Lower(View(name_text)), value);
  }

  void on_header_impl(beast::error_code&) override { head_done_ = true; }
  void on_body_init_impl(const boost::optional<uint64_t>& length, beast::error_code&) override {
    if (length) content_length_ = *length;
  }
  size_t on_body_impl(beast::string_view data, beast::error_code&) override { return Append(data); }
  void on_chunk_header_impl(uint64_t, beast::string_view, beast::error_code&) override {}
  size_t on_chunk_body_impl(uint64_t, beast::string_view data, beast::error_code&) override {
    return Append(data);
  }
  void on_finish_impl(beast::error_code&) override {}

  // Memory follows what has come, never what a Content-Length promises.
  size_t Append(beast::string_view data) {
    std::string& body = request.body;
    const size_t needed = body.size() + data.size();
    if (needed > body.capacity()) {
      size_t target = std::max(needed, 2 * body.capacity());
      if (content_length_.has_value()) {
        target =
            std::max(needed, static_cast<size_t>(std::min<uint64_t>(target, *content_length_)));
      }
      body.reserve(target);
    }
    body.append(data.data(), data.size());
    return data.size();
  }

  const RequestLimits& limits_;
  bool head_done_ = false;
  int hosts_ = 0;
  int content_lengths_ = 0;
  int transfer_encodings_ = 0;
  std::optional<uint64_t> content_length_;
};

RequestParser::RequestParser(const RequestLimits& limits) : limits_(limits) { Restart(); }
RequestParser::~RequestParser() = default;

void RequestParser::Restart() {
  impl_ = std::make_unique<Impl>(limits_);
  state_ = State::kIdle;
  scanned_ = 0;
  line_start_ = 0;
  blank_bytes_ = 0;
}

const HttpRequest& RequestParser::head() const { return impl_->request; }
bool RequestParser::keep_alive() const { return !impl_->http10 && impl_->keep_alive(); }
bool RequestParser::http10() const { return impl_->http10; }
bool RequestParser::expects_continue() const { return impl_->expects_continue; }

void RequestParser::Discard() { Restart(); }

HttpRequest RequestParser::TakeRequest() {
  LYNX_CHECK(state_ == State::kDone);
  HttpRequest request = std::move(impl_->request);
  Restart();
  return request;
}

void RequestParser::Fail(int status, std::string message) {
  state_ = State::kFailed;
  error_status_ = status;
  error_message_ = std::move(message);
}

size_t RequestParser::Feed(std::string_view data) {
  switch (state_) {
    case State::kIdle:
    case State::kHeader:
      return FeedHeader(data);
    case State::kBody:
      return FeedBody(data);
    case State::kDone:
    case State::kFailed:
      return 0;
  }
  return 0;
}

// Looks for the end of the head first, so that Beast gets it whole: limits and line rules that
// Beast is lenient about are applied here, as soon as the offending byte is seen.
size_t RequestParser::FeedHeader(std::string_view data) {
  if (state_ == State::kIdle) {
    // A client may send a stray empty line after a body.
    size_t blank = 0;
    while (data.substr(blank).starts_with("\r\n")) blank += 2;
    if (blank > 0) {
      blank_bytes_ += blank;
      if (blank_bytes_ > kMaxBlankBytes) Fail(400, "empty lines instead of a request");
      return blank;
    }
    if (data.empty() || data == "\r") return 0;
    if (!IsTokenChar(data[0])) {
      Fail(400, "the request line does not start with a method");
      return 0;
    }
    state_ = State::kHeader;
  }
  // Room for the method and version beside the target.
  const auto request_line_too_long = [&] {
    if (line_start_ > 0 || scanned_ <= limits_.max_target_bytes + 64) return false;
    Fail(414,
         absl::StrCat("the request target is longer than ", limits_.max_target_bytes, " bytes"));
    return true;
  };
  size_t end = 0;  // One past the head once it is complete.
  for (; scanned_ < data.size() && end == 0; ++scanned_) {
    const char c = data[scanned_];
    if (c == '\0') {
      Fail(400, "a null byte in the header");
      return 0;
    }
    if (scanned_ == line_start_ && scanned_ > 0 && (c == ' ' || c == '\t')) {
      Fail(400, "folded header fields are not accepted");
      return 0;
    }
    if (c != '\n') continue;
    if (scanned_ == 0 || data[scanned_ - 1] != '\r') {
      Fail(400, "a header line ends without a carriage return");
      return 0;
    }
    if (request_line_too_long()) return 0;
    if (scanned_ == line_start_ + 1) end = scanned_ + 1;
    line_start_ = scanned_ + 1;
  }
  if (request_line_too_long()) return 0;
  if (scanned_ > limits_.max_header_bytes) {
    Fail(431, absl::StrCat("the header is longer than ", limits_.max_header_bytes, " bytes"));
    return 0;
  }
  if (end == 0) return 0;

  beast::error_code ec;
  const size_t consumed = impl_->put(boost::asio::const_buffer(data.data(), end), ec);
  if (impl_->refused_status != 0) {
    Fail(impl_->refused_status, impl_->refused_message);
  } else if (ec == beast::http::error::body_limit) {
    Fail(413, absl::StrCat("the body is larger than ", limits_.max_body_bytes, " bytes"));
  } else if (ec) {
    Fail(400, absl::StrCat("malformed header: ", ec.message()));
  } else if (consumed != end || !impl_->is_header_done()) {
    Fail(400, "malformed header");
  } else if (!impl_->CheckHead()) {
    Fail(impl_->refused_status, impl_->refused_message);
  } else {
    impl_->eager(true);
    state_ = impl_->is_done() ? State::kDone : State::kBody;
  }
  return end;
}

size_t RequestParser::FeedBody(std::string_view data) {
  if (data.size() < (impl_->chunked() ? kMinChunkedBytes : 1)) return 0;
  beast::error_code ec;
  const size_t consumed = impl_->put(boost::asio::const_buffer(data.data(), data.size()), ec);
  if (ec == beast::http::error::body_limit) {
    Fail(413, absl::StrCat("the body is larger than ", limits_.max_body_bytes, " bytes"));
  } else if (ec && ec != beast::http::error::need_more) {
    Fail(400, absl::StrCat("malformed body: ", ec.message()));
  } else if (impl_->is_done()) {
    state_ = State::kDone;
  } else if (data.size() - consumed > kMaxChunkHeaderBytes) {
    Fail(400, "a chunk header or the trailers are too long");
  }
  return consumed;
}

class ResponseParser::Impl final : public beast::http::basic_parser<false> {
 public:
  explicit Impl(bool head_request) {
    header_limit(kMaxResponseHeaderBytes);
    body_limit(boost::none);
    eager(false);
    skip(head_request);
  }

  HttpResponse head;
  const std::function<bool(std::string_view)>* on_body = nullptr;  // Set during Feed only.
  bool stopped = false;

 private:
  void on_request_impl(beast::http::verb, beast::string_view, beast::string_view, int,
                       beast::error_code&) override {}
  void on_response_impl(int code, beast::string_view, int, beast::error_code&) override {
    head.status = code;
  }
  void on_field_impl(beast::http::field, beast::string_view name, beast::string_view value,
                     beast::error_code&) override {
    if (!head_done_) head.headers.emplace_back(Lower(View(name)), View(value));
  }
  void on_header_impl(beast::error_code&) override { head_done_ = true; }
  void on_body_init_impl(const boost::optional<uint64_t>&, beast::error_code&) override {}
  size_t on_body_impl(beast::string_view data, beast::error_code& ec) override {
    return Pass(data, ec);
  }
  void on_chunk_header_impl(uint64_t, beast::string_view, beast::error_code&) override {}
  size_t on_chunk_body_impl(uint64_t, beast::string_view data, beast::error_code& ec) override {
    return Pass(data, ec);
  }
  void on_finish_impl(beast::error_code&) override {}

  size_t Pass(beast::string_view data, beast::error_code& ec) {
    if (!data.empty() && !(*on_body)(View(data))) {
      stopped = true;
      ec = beast::http::error::end_of_stream;
    }
    return data.size();
  }

  bool head_done_ = false;
};

ResponseParser::ResponseParser(bool head_request) : head_request_(head_request) { Restart(); }
ResponseParser::~ResponseParser() = default;

void ResponseParser::Restart() { impl_ = std::make_unique<Impl>(head_request_); }

bool ResponseParser::head_done() const { return impl_->is_header_done(); }
bool ResponseParser::done() const { return impl_->is_done(); }
const HttpResponse& ResponseParser::head() const { return impl_->head; }

absl::Status ResponseParser::Feed(std::string_view data,
                                  const std::function<bool(std::string_view)>& on_body) {
  buffered_.append(data);
  impl_->on_body = &on_body;
  size_t used = 0;
  while (used < buffered_.size() && !done()) {
    if (head_done()) {
      impl_->eager(true);
      if (impl_->chunked() && buffered_.size() - used < kMinChunkedBytes) break;
    }
    beast::error_code ec;
    const size_t n =
        impl_->put(boost::asio::const_buffer(buffered_.data() + used, buffered_.size() - used), ec);
    used += n;
    if (impl_->stopped) return absl::AbortedError("stopped by the reader");
    if (done() && impl_->head.status / 100 == 1) {
      Restart();
      impl_->on_body = &on_body;
      continue;
    }
    if (ec == beast::http::error::need_more) break;
    if (ec) return absl::InvalidArgumentError("malformed HTTP response: " + ec.message());
  }
  buffered_.erase(0, used);
  if (buffered_.size() > kMaxResponseHeaderBytes) {
    return absl::InvalidArgumentError(done() ? "data after the end of the HTTP response"
                                             : "HTTP response header too long");
  }
  return absl::OkStatus();
}

absl::Status ResponseParser::FeedEof() {
  if (done()) return absl::OkStatus();
  if (!impl_->got_some()) {
    return absl::DataLossError("the connection was closed without a response");
  }
  beast::error_code ec;
  impl_->put_eof(ec);
  if (ec) return absl::DataLossError("the connection was closed within the response");
  return absl::OkStatus();
}

}  // namespace lynx::http
