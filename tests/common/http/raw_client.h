#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace lynx::testing {

// A TCP connection to 127.0.0.1 that sends and reads exactly what a test says. Every wait ends
// after kPatience, which only matters when a test fails.
class RawClient {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(20);

  // `receive_buffer_bytes` > 0 makes the kernel hold little for a client that does not read.
  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0);
  ~RawClient();
  RawClient(RawClient&& other) noexcept;

  bool connected() const { return connected_; }

  // False when the other end has closed or takes nothing more.
  bool Send(std::string_view data);
  // Sends until the other end takes nothing more for `patience`, or closes. Bytes sent.
  size_t SendWhileTaken(std::string_view data, absl::Duration patience);

  // Everything up to and including `end`; what has come when it does not come.
  std::string ReadUntil(std::string_view end);
  // One response with a Content-Length, head and body.
  std::string ReadResponse();
  // What is left until the other end closes. `*closed` (if given): it did, in time.
  std::string ReadToEnd(bool* closed = nullptr);

  void ShutdownWrite();
  void Close();
  // Close with a reset instead of a proper end.
  void Reset();

 private:
  bool ReadSome(absl::Time deadline);

  int fd_ = -1;
  bool connected_ = false;
  bool ended_ = false;
  std::string buffer_;
};

}  // namespace lynx::testing
