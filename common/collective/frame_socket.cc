#include "common/collective/frame_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::collective {
namespace {

constexpr size_t kHeaderBytes = 5;
constexpr size_t kReadBytes = size_t{64} << 10;

std::string Numeric(const sockaddr_storage& address, socklen_t bytes, bool port) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, host.data(), host.size(),
                  service.data(), service.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "";
  }
  if (!port) return host.data();
  return address.ss_family == AF_INET6 ? absl::StrCat("[", host.data(), "]:", service.data())
                                       : absl::StrCat(host.data(), ":", service.data());
}

// Gives `use` each address that host:port stands for until it returns a socket.
absl::StatusOr<int> OpenFirst(const std::string& address, int flags,
                              const std::function<int(const addrinfo&)>& use) {
  const size_t colon = address.rfind(':');
  std::string host = colon == std::string::npos ? "" : address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  if (host.empty() || port.empty() || port.size() > 5 ||
      port.find_first_not_of("0123456789") != std::string::npos || std::stoi(port) > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not host:port"));
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int unknown = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (unknown != 0) {
    return absl::UnavailableError(absl::StrCat(address, ": ", gai_strerror(unknown)));
  }
  const absl::Cleanup free = [&] { freeaddrinfo(found); };
  int error = 0;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const int fd = use(*a);
    if (fd >= 0) return fd;
    error = errno;
  }
  return absl::UnavailableError(absl::StrCat(address, ": ", std::strerror(error)));
}

timeval SocketTimeout(absl::Duration timeout) {
  return absl::ToTimeval(std::max(timeout, absl::Milliseconds(1)));
}

// -1 and errno.
int ConnectTo(const addrinfo& a, absl::Duration timeout) {
  const int fd = socket(a.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  // Bounds connect(), too.
  const timeval limit = SocketTimeout(timeout);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (connect(fd, a.ai_addr, a.ai_addrlen) == 0) return fd;
  const int error = errno == EINPROGRESS ? ETIMEDOUT : errno;
  close(fd);
  errno = error;
  return -1;
}

int ListenAt(const addrinfo& a) {
  const int fd = socket(a.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, a.ai_addr, a.ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FrameSocket>> FrameSocket::Connect(const std::string& address,
                                                                  absl::Duration timeout,
                                                                  absl::Duration send_timeout) {
  LYNX_ASSIGN_OR_RETURN(const int fd, OpenFirst(address, 0, [&](const addrinfo& a) {
                          return ConnectTo(a, timeout);
                        }));
  return std::make_unique<FrameSocket>(fd, send_timeout);
}

FrameSocket::FrameSocket(int fd, absl::Duration send_timeout) : fd_(fd) {
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const timeval limit = SocketTimeout(send_timeout);
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

FrameSocket::~FrameSocket() { close(fd_); }

absl::Status FrameSocket::Write(std::string_view bytes, int flags) {
  for (bool first = true; !bytes.empty(); first = false) {
    const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | flags);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
      continue;
    }
    if (errno == EINTR) continue;
    const bool behind = errno == EAGAIN || errno == EWOULDBLOCK;
    if (behind && first && flags != 0) return absl::OkStatus();  // Nothing of it was sent.
    const std::string why = behind ? "the other end takes nothing" : std::strerror(errno);
    Shutdown();
    return absl::UnavailableError(why);
  }
  return absl::OkStatus();
}

namespace {

std::string Encode(uint8_t kind, std::string_view body) {
  std::string frame(kHeaderBytes, '\0');
  const auto bytes = static_cast<uint32_t>(body.size());
  std::memcpy(frame.data(), &bytes, sizeof(bytes));
  frame[4] = static_cast<char>(kind);
  frame.append(body);
  return frame;
}

}  // namespace

absl::Status FrameSocket::Send(uint8_t kind, std::string_view body) {
  {
    MutexLock lock(mu_);
    while (sending_) sent_.Wait(mu_);
    sending_ = true;
  }
  absl::Status status = Write(Encode(kind, body), 0);
  MutexLock lock(mu_);
  sending_ = false;
  sent_.NotifyOne();
  return status;
}

void FrameSocket::TrySend(uint8_t kind, std::string_view body) {
  {
    MutexLock lock(mu_);
    if (sending_) return;
    sending_ = true;
  }
  Write(Encode(kind, body), MSG_DONTWAIT).IgnoreError();  // The reader sees a broken connection.
  MutexLock lock(mu_);
  sending_ = false;
  sent_.NotifyOne();
}

absl::Status FrameSocket::Read(size_t max_bytes, std::vector<Frame>& frames) {
  std::array<char, kReadBytes> chunk;
  for (;;) {
    const ssize_t n = recv(fd_, chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (n <= 0) {
      return absl::UnavailableError(n == 0 ? "the connection was closed" : std::strerror(errno));
    }
    received_.append(chunk.data(), static_cast<size_t>(n));
    size_t offset = 0;
    while (received_.size() - offset >= kHeaderBytes) {
      uint32_t bytes = 0;
      std::memcpy(&bytes, received_.data() + offset, sizeof(bytes));
      if (bytes > max_bytes) {
        return absl::InvalidArgumentError(absl::StrCat("a message of ", bytes, " bytes"));
      }
      if (received_.size() - offset - kHeaderBytes < bytes) break;
      frames.push_back({static_cast<uint8_t>(received_[offset + 4]),
                        received_.substr(offset + kHeaderBytes, bytes)});
      offset += kHeaderBytes + bytes;
    }
    received_.erase(0, offset);
    // Others wait for their turn; what is left makes the socket ready again.
    if (!frames.empty()) return absl::OkStatus();
  }
}

std::string FrameSocket::LocalHost() const {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return "";
  return Numeric(address, bytes, /*port=*/false);
}

void FrameSocket::Shutdown() { shutdown(fd_, SHUT_RDWR); }
void FrameSocket::ShutdownSends() { shutdown(fd_, SHUT_WR); }

absl::StatusOr<std::unique_ptr<ListenSocket>> ListenSocket::Open(const std::string& address) {
  LYNX_ASSIGN_OR_RETURN(const int fd, OpenFirst(address, AI_PASSIVE, ListenAt));
  sockaddr_storage bound{};
  socklen_t bytes = sizeof(bound);
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &bytes);
  return std::unique_ptr<ListenSocket>(new ListenSocket(fd, Numeric(bound, bytes, /*port=*/true)));
}

ListenSocket::~ListenSocket() { close(fd_); }

absl::StatusOr<std::unique_ptr<FrameSocket>> ListenSocket::Accept(absl::Duration send_timeout) {
  const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd >= 0) return std::make_unique<FrameSocket>(fd, send_timeout);
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot take a connection at ", endpoint_, ": ", std::strerror(errno)));
  }
  return nullptr;
}

}  // namespace lynx::collective
