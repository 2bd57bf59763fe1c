#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "common/base/mutex.h"

namespace lynx::loadtest {

// A TCP server that does to each connection what a test says, one connection after another: for
// answers that no HTTP server would give.
class RawServer {
 public:
  // `serve` runs on the server's thread with the connected socket, which is closed afterwards.
  // Reads and writes on it end when the server stops.
  explicit RawServer(std::function<void(int fd)> serve);
  ~RawServer();
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;

  uint16_t port() const { return port_; }

 private:
  void Run();

  const std::function<void(int)> serve_;
  int listener_ = -1;
  uint16_t port_ = 0;
  Mutex mu_;
  int connection_ LYNX_GUARDED_BY(mu_) = -1;
  bool stopping_ LYNX_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Reads up to the end of a request's body; false when the connection ended first.
bool ReadRequest(int fd);
// False when the other end has gone.
bool WriteAll(int fd, const std::string& data);

}  // namespace lynx::loadtest
