#include "tests/services/cli/loadtest/raw_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "common/base/check.h"

namespace lynx::loadtest {

RawServer::RawServer(std::function<void(int)> serve) : serve_(std::move(serve)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  LYNX_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
  LYNX_CHECK(listen(listener_, 64) == 0);
  LYNX_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

RawServer::~RawServer() {
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    if (connection_ >= 0) shutdown(connection_, SHUT_RDWR);
  }
  shutdown(listener_, SHUT_RDWR);
  thread_.join();
  close(listener_);
}

void RawServer::Run() {
  for (;;) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    {
      const MutexLock lock(mu_);
      connection_ = fd;
      if (stopping_) shutdown(fd, SHUT_RDWR);
    }
    serve_(fd);
    const MutexLock lock(mu_);
    connection_ = -1;
    close(fd);
  }
}

bool ReadRequest(int fd) {
  std::string request;
  std::array<char, 4096> buffer;
  for (;;) {
    const size_t head = request.find("\r\n\r\n");
    if (head != std::string::npos) {
      const size_t length = request.find("Content-Length: ");
      if (length == std::string::npos) return false;
      if (request.size() >= head + 4 + std::stoul(request.substr(length + 16))) return true;
    }
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n <= 0) return false;
    request.append(buffer.data(), static_cast<size_t>(n));
  }
}

bool WriteAll(int fd, const std::string& data) {
  for (size_t sent = 0; sent < data.size();) {
    const ssize_t n = send(fd, data.data() + sent, data.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace lynx::loadtest
