#include "tests/common/http/raw_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "common/base/clock.h"

namespace lynx::testing {
namespace {

bool WaitFor(int fd, short events, absl::Time deadline) {
  const int64_t ms =
      std::max<int64_t>(absl::ToInt64Milliseconds(deadline - SteadyClock::Instance().Now()), 0);
  pollfd p{.fd = fd, .events = events, .revents = 0};
  return poll(&p, 1, static_cast<int>(ms)) > 0;
}

}  // namespace

RawClient::RawClient(uint16_t port, int receive_buffer_bytes) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer_bytes > 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  fcntl(fd_, F_SETFL, O_NONBLOCK);
}

RawClient::~RawClient() { Close(); }

RawClient::RawClient(RawClient&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      connected_(other.connected_),
      ended_(other.ended_),
      buffer_(std::move(other.buffer_)) {}

bool RawClient::Send(std::string_view data) {
  return SendWhileTaken(data, kPatience) == data.size();
}

size_t RawClient::SendWhileTaken(std::string_view data, absl::Duration patience) {
  size_t sent = 0;
  while (sent < data.size()) {
    const ssize_t n = send(fd_, data.data() + sent, data.size() - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (errno != EAGAIN ||
               !WaitFor(fd_, POLLOUT, SteadyClock::Instance().Now() + patience)) {
      break;
    }
  }
  return sent;
}

bool RawClient::ReadSome(absl::Time deadline) {
  if (ended_ || !WaitFor(fd_, POLLIN, deadline)) return false;
  char chunk[65536];
  const ssize_t n = recv(fd_, chunk, sizeof(chunk), 0);
  if (n <= 0) {
    ended_ = true;
    return false;
  }
  buffer_.append(chunk, static_cast<size_t>(n));
  return true;
}

std::string RawClient::ReadUntil(std::string_view end) {
  const absl::Time deadline = SteadyClock::Instance().Now() + kPatience;
  size_t at;
  while ((at = buffer_.find(end)) == std::string::npos) {
    if (!ReadSome(deadline)) return std::exchange(buffer_, "");
  }
  std::string out = buffer_.substr(0, at + end.size());
  buffer_.erase(0, at + end.size());
  return out;
}

std::string RawClient::ReadResponse() {
  std::string head = ReadUntil("\r\n\r\n");
  constexpr std::string_view kField = "\r\nContent-Length: ";
  const size_t field = head.find(kField);
  if (field == std::string::npos) return head;
  const size_t length = std::strtoull(head.c_str() + field + kField.size(), nullptr, 10);
  const absl::Time deadline = SteadyClock::Instance().Now() + kPatience;
  while (buffer_.size() < length && ReadSome(deadline)) {
  }
  head += buffer_.substr(0, length);
  buffer_.erase(0, length);
  return head;
}

std::string RawClient::ReadToEnd(bool* closed) {
  const absl::Time deadline = SteadyClock::Instance().Now() + kPatience;
  while (ReadSome(deadline)) {
  }
  if (closed != nullptr) *closed = ended_;
  return std::exchange(buffer_, "");
}

void RawClient::ShutdownWrite() { shutdown(fd_, SHUT_WR); }

void RawClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  ended_ = true;
}

void RawClient::Reset() {
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

}  // namespace lynx::testing
