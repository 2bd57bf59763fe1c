#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace lynx::collective {

// One TCP connection that carries frames: a length of 4 bytes, a kind of 1, the body. Any thread
// may send, one reads.
class FrameSocket {
 public:
  struct Frame {
    uint8_t kind = 0;
    std::string body;
  };

  // `address` is host:port. A send that takes longer than `send_timeout` breaks the connection.
  //   InvalidArgument  not such an address.
  //   Unavailable      nobody listens there, or the host is unknown.
  static absl::StatusOr<std::unique_ptr<FrameSocket>> Connect(const std::string& address,
                                                              absl::Duration timeout,
                                                              absl::Duration send_timeout);
  FrameSocket(int fd, absl::Duration send_timeout);  // Owns the connected socket.
  ~FrameSocket();
  FrameSocket(const FrameSocket&) = delete;
  FrameSocket& operator=(const FrameSocket&) = delete;

  int fd() const { return fd_; }

  // Returns when the frame is on its way. Unavailable: the connection is broken.
  absl::Status Send(uint8_t kind, std::string_view body) LYNX_EXCLUDES(mu_);
  // The same without waiting: the frame is dropped where another is being sent or the network is
  // behind.
  void TrySend(uint8_t kind, std::string_view body) LYNX_EXCLUDES(mu_);

  // Appends the frames that have arrived. Does not wait.
  //   Unavailable      the connection is closed or broken.
  //   InvalidArgument  a frame of more than `max_bytes`.
  absl::Status Read(size_t max_bytes, std::vector<Frame>& frames);

  std::string LocalHost() const;  // This end's address, without the port.
  void Shutdown();                // Both ways; reads and sends fail from then on.
  void ShutdownSends();           // The other end reads what was sent, and then the end.

 private:
  absl::Status Write(std::string_view bytes, int flags);

  const int fd_;
  std::string received_;  // Not yet a whole frame.
  Mutex mu_;
  CondVar sent_;
  bool sending_ LYNX_GUARDED_BY(mu_) = false;
};

// A socket that listens.
class ListenSocket {
 public:
  // Fails as RankGroup::Create.
  static absl::StatusOr<std::unique_ptr<ListenSocket>> Open(const std::string& address);
  ~ListenSocket();
  ListenSocket(const ListenSocket&) = delete;
  ListenSocket& operator=(const ListenSocket&) = delete;

  int fd() const { return fd_; }
  const std::string& endpoint() const { return endpoint_; }  // host:port, with the real port.
  // Null: nobody waits.
  //   ResourceExhausted  no file descriptor or memory for another connection; those that wait go on
  //                      waiting, and the socket stays ready: ask again only after a while.
  absl::StatusOr<std::unique_ptr<FrameSocket>> Accept(absl::Duration send_timeout);

 private:
  ListenSocket(int fd, std::string endpoint) : fd_(fd), endpoint_(std::move(endpoint)) {}
  const int fd_;
  const std::string endpoint_;
};

}  // namespace lynx::collective
