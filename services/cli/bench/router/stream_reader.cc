#include "services/cli/bench/router/stream_reader.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lynx::cli {
namespace {

constexpr std::string_view kEvent = "data: {";
constexpr std::string_view kEnd = "data: [DONE]";
constexpr size_t kMaxHead = 4096;
constexpr uint32_t kWake = UINT32_MAX;  // In place of a stream.

absl::Status SystemError(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

// Neither text begins with what it has matched, but for its first letter.
bool Match(std::string_view text, char c, size_t& at) {
  if (c != text[at]) at = 0;
  if (c == text[at] && ++at == text.size()) {
    at = 0;
    return true;
  }
  return false;
}

}  // namespace

int32_t EventCounter::Feed(std::string_view bytes) {
  int32_t count = 0;
  for (const char c : bytes) {
    count += Match(kEvent, c, event_) ? 1 : 0;
    done_ = Match(kEnd, c, end_) || done_;
  }
  return count;
}

absl::StatusOr<std::unique_ptr<StreamReader>> StreamReader::Create(int32_t streams, bool http,
                                                                   TokenTimes& times) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) return SystemError("epoll");
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::unique_ptr<StreamReader> reader(new StreamReader(streams, http, times, epoll, wake));
  epoll_event event = {.events = EPOLLIN, .data = {.u32 = kWake}};
  if (wake < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, wake, &event) < 0) return SystemError("eventfd");
  reader->thread_ = std::thread([raw = reader.get()] { raw->Run(); });
  return reader;
}

StreamReader::StreamReader(int32_t streams, bool http, TokenTimes& times, int epoll, int wake)
    : http_(http),
      times_(times),
      epoll_(epoll),
      wake_(wake),
      streams_(static_cast<size_t>(streams)) {}

StreamReader::~StreamReader() {
  stopping_ = true;
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
    thread_.join();
  }
  for (const Stream& stream : streams_) {
    if (stream.fd >= 0) close(stream.fd);
  }
  if (wake_ >= 0) close(wake_);
  close(epoll_);
}

absl::Status StreamReader::Open(int32_t stream, int port, std::string_view request) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return SystemError("socket");
  Stream& of = streams_[static_cast<size_t>(stream)];
  of.fd = fd;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) < 0) {
    return SystemError("connect");
  }
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return SystemError("send");
  }
  if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0) return SystemError("fcntl");
  of.in_body = !http_;
  epoll_event event = {.events = EPOLLIN, .data = {.u32 = static_cast<uint32_t>(stream)}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) < 0) return SystemError("epoll");
  return absl::OkStatus();
}

bool StreamReader::Send(int32_t stream, std::string_view bytes) const {
  return send(streams_[static_cast<size_t>(stream)].fd, bytes.data(), bytes.size(),
              MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

void StreamReader::Watch() {
  MutexLock lock(mu_);
  window_ = {};
  watching_ = true;
}

StreamReader::Window StreamReader::Take() {
  MutexLock lock(mu_);
  watching_ = false;
  return std::exchange(window_, {});
}

absl::Status StreamReader::status() const {
  MutexLock lock(mu_);
  return status_;
}

void StreamReader::Run() {
  std::array<epoll_event, 256> events;
  while (!stopping_) {
    const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) {
      const uint32_t stream = events[static_cast<size_t>(i)].data.u32;
      if (stream != kWake) Read(static_cast<int32_t>(stream));
    }
  }
}

void StreamReader::Read(int32_t stream) {
  Stream& of = streams_[static_cast<size_t>(stream)];
  std::array<char, 16384> buffer;
  const ssize_t got = recv(of.fd, buffer.data(), buffer.size(), 0);
  const int64_t now = MonotonicNs();
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    epoll_ctl(epoll_, EPOLL_CTL_DEL, of.fd, nullptr);
    if (!of.over) Fail(stream, "the connection was closed");
    return;
  }
  std::string_view bytes(buffer.data(), static_cast<size_t>(got));
  if (!of.in_body) {
    of.head.append(bytes);
    const size_t end = of.head.find("\r\n\r\n");
    if (end == std::string::npos && of.head.size() < kMaxHead) return;
    if (!of.head.starts_with("HTTP/1.1 200 ")) return Fail(stream, of.head);
    of.in_body = true;
    bytes = std::string_view(of.head).substr(end + 4);
  }
  OnEvents(stream, of.events.Feed(bytes), now);
  {
    MutexLock lock(mu_);
    if (watching_) window_.bytes += static_cast<int64_t>(bytes.size());
  }
  of.head.clear();
  if (of.events.done() && !std::exchange(of.over, true)) done_.fetch_add(1);
}

void StreamReader::OnEvents(int32_t stream, int32_t count, int64_t now) {
  Stream& of = streams_[static_cast<size_t>(stream)];
  if (count == 0) return;
  if (of.tokens == 0) started_.fetch_add(1);
  tokens_.fetch_add(count);
  MutexLock lock(mu_);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t token = of.tokens++;
    const int64_t sent = token < times_.tokens() ? times_.at(stream, token).load() : 0;
    // The reason why it ended comes as an event of its own.
    if (sent == 0) continue;
    if (!watching_) continue;
    window_.tokens += 1;
    window_.latency_us.push_back(static_cast<float>(now - sent) / 1000);
  }
}

void StreamReader::Fail(int32_t stream, std::string_view why) {
  Stream& of = streams_[static_cast<size_t>(stream)];
  of.over = true;
  MutexLock lock(mu_);
  if (!status_.ok()) return;
  const std::string_view shown = why.substr(0, 300);
  status_ = absl::UnavailableError(
      absl::StrCat("stream ", stream, ": ", absl::string_view(shown.data(), shown.size())));
}

}  // namespace lynx::cli
