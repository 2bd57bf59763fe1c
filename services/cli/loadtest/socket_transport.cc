#include "services/cli/loadtest/socket_transport.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/http/dial.h"

namespace lynx::loadtest {
namespace {

constexpr absl::Duration kIdleLimit = absl::Seconds(4);
// For the end of a message whose content is complete.
constexpr absl::Duration kLingerLimit = absl::Seconds(1);
constexpr int kEventsAtOnce = 256;

std::string ErrorText(int error) { return std::strerror(error); }

absl::StatusOr<std::string> RequestHead(const SocketTransport::Options& options) {
  const http::Url& url = options.url;
  std::string head = absl::StrCat(
      "POST ", url.target, " HTTP/1.1\r\nHost: ",
      url.host.find(':') == std::string::npos ? url.host : "[" + url.host + "]", ":", url.port,
      "\r\nConnection: ", options.keep_alive ? "keep-alive" : "close", "\r\n");
  for (const auto& [name, value] : options.headers) {
    if ((name + value).find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos) {
      return absl::InvalidArgumentError("a line break in the header field " + name);
    }
    absl::StrAppend(&head, name, ": ", value, "\r\n");
  }
  return head + "Content-Length: ";
}

}  // namespace

struct SocketTransport::Connection {
  enum class State {
    kConnecting,
    kBusy,       // With a request.
    kLingering,  // The answer is complete, the HTTP message is not.
    kIdle,
    kClosed,
  };
  State state = State::kConnecting;
  int fd = -1;
  RequestId id = 0;     // While connecting or busy.
  std::string request;  // Kept until the answer begins.
  size_t sent = 0;
  std::unique_ptr<http::ResponseParser> parser;
  bool head_told = false;
  bool answer_begun = false;
  bool used_before = false;
  bool writing = false;   // Waits to be able to write.
  bool unusable = false;  // After this answer.
  absl::Time deadline = absl::InfiniteFuture();
};

absl::StatusOr<SocketTransport::Address> SocketTransport::FindAddress(const Options& options) {
  const http::Url& url = options.url;
  LYNX_ASSIGN_OR_RETURN(const http::Addresses addresses, http::Resolve(url));
  std::string problem = "it has no address";
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    const int fd = http::OpenSocket(a->ai_family);
    if (fd < 0) {
      problem = ErrorText(errno);
      continue;
    }
    int error = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      pollfd wait{.fd = fd, .events = POLLOUT, .revents = 0};
      const int ms = static_cast<int>(absl::ToInt64Milliseconds(options.connect_timeout));
      int ready = 0;
      do {
        ready = poll(&wait, 1, ms);
      } while (ready < 0 && errno == EINTR);
      socklen_t size = sizeof(error);
      if (ready == 1) {
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
      } else {
        error = ETIMEDOUT;
      }
    }
    close(fd);
    if (error == 0) {
      Address address{.storage = {}, .length = a->ai_addrlen};
      std::memcpy(&address.storage, a->ai_addr, a->ai_addrlen);
      return address;
    }
    problem = ErrorText(error);
  }
  return absl::UnavailableError(
      absl::StrCat("cannot connect to ", url.host, " port ", url.port, ": ", problem));
}

absl::StatusOr<std::unique_ptr<SocketTransport>> SocketTransport::Create(const Options& options,
                                                                         const Clock& clock) {
  LYNX_RETURN_IF_ERROR(RequestHead(options).status());
  LYNX_ASSIGN_OR_RETURN(const Address address, FindAddress(options));
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) return absl::UnavailableError("epoll: " + ErrorText(errno));
  return std::unique_ptr<SocketTransport>(new SocketTransport(options, clock, address, epoll));
}

SocketTransport::SocketTransport(const Options& options, const Clock& clock, const Address& address,
                                 int epoll)
    : options_(options),
      head_(RequestHead(options).value()),
      clock_(clock),
      address_(address),
      epoll_(epoll),
      buffer_(64 * 1024, '\0') {}

SocketTransport::~SocketTransport() {
  for (const auto& [fd, connection] : connections_) close(fd);
  close(epoll_);
}

void SocketTransport::Send(RequestId id, std::string body) {
  std::string request = absl::StrCat(head_, body.size(), "\r\n\r\n", body);
  if (idle_.empty()) {
    Connect(id, std::move(request));
    return;
  }
  Connection& connection = *idle_.back();
  idle_.pop_back();
  SetDeadline(connection, absl::InfiniteFuture());
  Begin(connection, id, std::move(request));
  Flush(connection);
}

void SocketTransport::Begin(Connection& connection, RequestId id, std::string request) {
  connection.state = Connection::State::kBusy;
  connection.id = id;
  connection.request = std::move(request);
  connection.sent = 0;
  connection.parser = std::make_unique<http::ResponseParser>(/*head_request=*/false);
  connection.head_told = false;
  connection.answer_begun = false;
  connection.unusable = false;
  by_request_[id] = &connection;
}

void SocketTransport::Connect(RequestId id, std::string request) {
  const int fd = http::OpenSocket(address_.storage.ss_family);
  if (fd < 0) {
    failed_.emplace_back(id, absl::UnavailableError("cannot make a socket: " + ErrorText(errno)));
    return;
  }
  ++connections_opened_;
  const int result =
      connect(fd, reinterpret_cast<const sockaddr*>(&address_.storage), address_.length);
  if (result != 0 && errno != EINPROGRESS) {
    failed_.emplace_back(id, absl::UnavailableError("cannot connect: " + ErrorText(errno)));
    close(fd);
    return;
  }
  auto owned = std::make_unique<Connection>();
  Connection& connection = *owned;
  connection.fd = fd;
  connection.writing = true;
  epoll_event event{.events = EPOLLIN | EPOLLOUT, .data = {.ptr = &connection}};
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  connections_[fd] = std::move(owned);
  Begin(connection, id, std::move(request));
  connection.state = Connection::State::kConnecting;
  SetDeadline(connection, clock_.Now() + options_.connect_timeout);
}

void SocketTransport::Cancel(RequestId id) {
  std::erase_if(failed_, [id](const auto& failed) { return failed.first == id; });
  if (const auto found = by_request_.find(id); found != by_request_.end()) Close(*found->second);
}

void SocketTransport::Poll(absl::Duration timeout, int wake_fd) {
  closed_.clear();
  if (woke_ != absl::InfinitePast()) {
    longest_turn_ = std::max(longest_turn_, clock_.Now() - woke_);
  }
  if (!failed_.empty()) timeout = absl::ZeroDuration();
  if (!deadlines_.empty()) {
    timeout = std::min(timeout, deadlines_.begin()->first - clock_.Now());
  }
  // poll() first: epoll_wait() knows no times under a millisecond.
  const timespec wait =
      absl::ToTimespec(std::clamp(timeout, absl::ZeroDuration(), absl::Seconds(1)));
  std::array<pollfd, 2> fds{{{.fd = epoll_, .events = POLLIN, .revents = 0},
                             {.fd = wake_fd, .events = POLLIN, .revents = 0}}};
  const int ready = ppoll(fds.data(), wake_fd < 0 ? 1 : 2, &wait, nullptr);
  woke_ = clock_.Now();
  if (ready > 0 && fds[0].revents != 0) {
    std::array<epoll_event, kEventsAtOnce> events;
    const int count = epoll_wait(epoll_, events.data(), kEventsAtOnce, 0);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      OnReady(*static_cast<Connection*>(event.data.ptr), event.events);
    }
  }
  CloseOverdue();
  TellFailed();
}

void SocketTransport::TellFailed() {
  std::vector<std::pair<RequestId, absl::Status>> failed;
  failed.swap(failed_);
  for (const auto& [id, status] : failed) observer_->OnEnd(id, status, clock_.Now());
}

void SocketTransport::OnReady(Connection& connection, uint32_t events) {
  if (connection.state == Connection::State::kClosed) return;
  if (connection.state == Connection::State::kConnecting) {
    OnConnected(connection);
    return;
  }
  if ((events & EPOLLOUT) != 0) Flush(connection);
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) Read(connection);
}

void SocketTransport::OnConnected(Connection& connection) {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(connection.fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    EndRequest(connection, absl::UnavailableError("cannot connect: " + ErrorText(error)));
    return;
  }
  connection.state = Connection::State::kBusy;
  SetDeadline(connection, absl::InfiniteFuture());
  Flush(connection);
}

// Errors show when reading: an answer may have come before the connection broke.
void SocketTransport::Flush(Connection& connection) {
  while (connection.sent < connection.request.size()) {
    const ssize_t n = send(connection.fd, connection.request.data() + connection.sent,
                           connection.request.size() - connection.sent, MSG_NOSIGNAL);
    if (n > 0) {
      connection.sent += static_cast<size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) connection.unusable = true;
    Watch(connection, /*writing=*/errno == EAGAIN);
    return;
  }
  Watch(connection, /*writing=*/false);
}

void SocketTransport::Watch(Connection& connection, bool writing) {
  if (connection.writing == writing) return;
  connection.writing = writing;
  epoll_event event{.events = EPOLLIN, .data = {.ptr = &connection}};
  if (writing) event.events |= EPOLLOUT;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, connection.fd, &event);
}

void SocketTransport::Read(Connection& connection) {
  const ssize_t n = recv(connection.fd, buffer_.data(), buffer_.size(), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const int error = errno;
  switch (connection.state) {
    case Connection::State::kBusy:
      break;
    case Connection::State::kLingering:
      if (n > 0) break;
      [[fallthrough]];
    default:  // Nothing is due on an idle connection.
      Close(connection);
      return;
  }
  if (n <= 0) {
    OnClosed(connection, n == 0 ? "" : ErrorText(error));
    return;
  }
  Feed(connection, std::string_view(buffer_.data(), static_cast<size_t>(n)));
}

void SocketTransport::Feed(Connection& connection, std::string_view data) {
  const absl::Time now = clock_.Now();
  connection.answer_begun = true;
  if (connection.sent < connection.request.size()) {
    connection.unusable = true;  // An answer to half a request.
  } else {
    connection.request = std::string();
    connection.sent = 0;
  }
  http::ResponseParser& parser = *connection.parser;
  const auto tell_head = [&] {
    if (connection.head_told) return;
    connection.head_told = true;
    observer_->OnHead(connection.id, parser.head(), now);
  };
  const absl::Status fed = parser.Feed(data, [&](std::string_view piece) {
    if (connection.state != Connection::State::kBusy) return true;
    tell_head();
    if (!observer_->OnBody(connection.id, piece, now)) {
      by_request_.erase(connection.id);
      connection.state = Connection::State::kLingering;
    }
    return true;
  });
  if (connection.state == Connection::State::kClosed) return;
  if (connection.state == Connection::State::kLingering) {
    if (!fed.ok()) {
      Close(connection);
    } else if (parser.done()) {
      Reuse(connection);
    } else if (connection.deadline == absl::InfiniteFuture()) {
      SetDeadline(connection, now + kLingerLimit);
      if (++lingering_ > kMaxLingering) Close(connection);
    }
    return;
  }
  if (fed.ok() && parser.head_done()) tell_head();
  if (!fed.ok()) {
    EndRequest(connection, fed);
  } else if (parser.done()) {
    const RequestId id = connection.id;
    by_request_.erase(id);
    Reuse(connection);
    observer_->OnEnd(id, absl::OkStatus(), now);
  }
}

void SocketTransport::OnClosed(Connection& connection, const std::string& error) {
  http::ResponseParser& parser = *connection.parser;
  if (connection.used_before && !connection.answer_begun) {
    ++resent_;
    std::string request = std::move(connection.request);
    const RequestId id = connection.id;
    Close(connection);
    Connect(id, std::move(request));
    return;
  }
  absl::Status end;
  if (error.empty()) {
    end = parser.FeedEof();
  } else {
    end = absl::DataLossError("the connection broke: " + error);
  }
  if (!end.ok() && !parser.head_done()) end = absl::UnavailableError(end.message());
  EndRequest(connection, end);
}

void SocketTransport::EndRequest(Connection& connection, const absl::Status& status) {
  const RequestId id = connection.id;
  Close(connection);
  observer_->OnEnd(id, status, clock_.Now());
}

void SocketTransport::Reuse(Connection& connection) {
  StopLingering(connection);
  const auto asked = connection.parser->head().Header("connection");
  connection.parser.reset();
  if (!options_.keep_alive || connection.unusable ||
      (asked.has_value() && http::EqualsIgnoreCase(*asked, "close"))) {
    Close(connection);
    return;
  }
  connection.used_before = true;
  connection.state = Connection::State::kIdle;
  SetDeadline(connection, clock_.Now() + kIdleLimit);
  idle_.push_back(&connection);
}

void SocketTransport::SetDeadline(Connection& connection, absl::Time deadline) {
  if (connection.deadline != absl::InfiniteFuture()) {
    deadlines_.erase({connection.deadline, &connection});
  }
  connection.deadline = deadline;
  if (deadline != absl::InfiniteFuture()) deadlines_.insert({deadline, &connection});
}

void SocketTransport::CloseOverdue() {
  const absl::Time now = clock_.Now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Connection& connection = *deadlines_.begin()->second;
    if (connection.state == Connection::State::kConnecting) {
      EndRequest(connection, absl::DeadlineExceededError("timed out while connecting"));
    } else {
      Close(connection);
    }
  }
}

void SocketTransport::StopLingering(Connection& connection) {
  // Those whose message ended in the same piece never were.
  if (connection.state == Connection::State::kLingering &&
      connection.deadline != absl::InfiniteFuture()) {
    --lingering_;
  }
}

void SocketTransport::Close(Connection& connection) {
  StopLingering(connection);
  SetDeadline(connection, absl::InfiniteFuture());
  if (connection.state == Connection::State::kIdle) std::erase(idle_, &connection);
  if (connection.state == Connection::State::kBusy ||
      connection.state == Connection::State::kConnecting) {
    by_request_.erase(connection.id);
  }
  connection.state = Connection::State::kClosed;
  close(connection.fd);
  const auto found = connections_.find(connection.fd);
  closed_.push_back(std::move(found->second));
  connections_.erase(found);
}

}  // namespace lynx::loadtest
