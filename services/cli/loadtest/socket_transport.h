#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/http/client.h"
#include "common/http/message_parser.h"
#include "common/http/types.h"
#include "services/cli/loadtest/transport.h"

namespace lynx::loadtest {

// HTTP/1.1 over TCP sockets, thousands of streams on the calling thread. (HttpClient blocks for
// each request: a thread a stream would measure the scheduler.) Connections are kept and used
// again, as clients of these APIs do; one that was idle for 4 s is closed first, since some servers
// close after 5 and would take a request down with it.
//
// Memory: 64 KiB in all and what the parsers hold, at most 64 KiB of header a stream.
class SocketTransport final : public Transport {
 public:
  // Connections beside those of open requests: answered, and waiting a second for the end of their
  // HTTP message. More are closed.
  static constexpr int kMaxLingering = 256;

  struct Options {
    http::Url url;  // Of every request.
    http::Headers headers;
    bool keep_alive = true;
    absl::Duration connect_timeout = absl::Seconds(10);
  };

  // Finds an address of the host that accepts a connection, and keeps to it: all load goes to one
  // place. `clock` is borrowed.
  //   InvalidArgument  a line break in a header.
  //   Unavailable      cannot resolve or connect.
  static absl::StatusOr<std::unique_ptr<SocketTransport>> Create(const Options& options,
                                                                 const Clock& clock);
  ~SocketTransport() override;

  // What follows is told to `observer` (borrowed; null: nobody), which must be set before Send().
  void SetObserver(TransportObserver* observer) { observer_ = observer; }
  void Send(RequestId id, std::string body) override;
  void Cancel(RequestId id) override;

  // Waits until something happens, `timeout` of real time is over or `wake_fd` (-1: none) may be
  // read, and works off what has happened. Times told to the observer are read right after the
  // bytes were.
  void Poll(absl::Duration timeout, int wake_fd);

  uint64_t connections_opened() const { return connections_opened_; }
  // Requests sent once more because the server had closed the idle connection they went out on.
  uint64_t resent() const { return resent_; }
  // The longest time from the end of a wait to the next: no time told was later than this.
  absl::Duration longest_turn() const { return longest_turn_; }
  void ForgetTurns() {
    longest_turn_ = absl::ZeroDuration();
    woke_ = absl::InfinitePast();
  }

 private:
  struct Connection;
  struct Address {
    sockaddr_storage storage;
    socklen_t length;
  };
  SocketTransport(const Options& options, const Clock& clock, const Address& address, int epoll);

  static absl::StatusOr<Address> FindAddress(const Options& options);

  void Begin(Connection& connection, RequestId id, std::string request);
  void Connect(RequestId id, std::string request);
  void OnReady(Connection& connection, uint32_t events);
  void OnConnected(Connection& connection);
  void Flush(Connection& connection);
  void Read(Connection& connection);
  void Feed(Connection& connection, std::string_view data);
  void OnClosed(Connection& connection, const std::string& error);
  void Watch(Connection& connection, bool writing);
  void SetDeadline(Connection& connection, absl::Time deadline);
  void EndRequest(Connection& connection, const absl::Status& status);
  void Reuse(Connection& connection);
  void StopLingering(Connection& connection);
  void Close(Connection& connection);
  void CloseOverdue();
  void TellFailed();

  const Options options_;
  const std::string head_;  // Of every request, up to its length.
  const Clock& clock_;
  const Address address_;
  const int epoll_;
  TransportObserver* observer_ = nullptr;
  std::unordered_map<int, std::unique_ptr<Connection>> connections_;  // By descriptor.
  std::unordered_map<RequestId, Connection*> by_request_;
  std::vector<Connection*> idle_;  // The one used last at the end.
  std::set<std::pair<absl::Time, Connection*>> deadlines_;
  std::vector<std::pair<RequestId, absl::Status>> failed_;  // To be told at the next Poll().
  std::vector<std::unique_ptr<Connection>> closed_;  // Events of this Poll() may still name them.
  std::string buffer_;
  int lingering_ = 0;
  uint64_t connections_opened_ = 0;
  uint64_t resent_ = 0;
  absl::Time woke_ = absl::InfinitePast();
  absl::Duration longest_turn_;
};

}  // namespace lynx::loadtest
