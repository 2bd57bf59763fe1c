#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "services/cli/bench/router/token_times.h"

namespace lynx::cli {

// Counts the events of one stream of server-sent events, whatever its framing: those whose data is
// an object, and the end mark. The data of the benches holds neither text.
class EventCounter {
 public:
  // How many events begin in `bytes`, which follow those of the last call.
  int32_t Feed(std::string_view bytes);
  bool done() const { return done_; }  // The end mark has come.

 private:
  size_t event_ = 0;  // Of "data: {" matched so far,
  size_t end_ = 0;    // and of "data: [DONE]".
  bool done_ = false;
};

// Reads the streams of thousands of connections on a thread of its own, and takes the time from
// the sending of each token to its arrival. Event number k of a stream is its token k.
//
// Made, called and destroyed by one thread.
class StreamReader {
 public:
  struct Window {
    int64_t tokens = 0;
    int64_t bytes = 0;  // Framing included.
    std::vector<float> latency_us;
  };

  // `times` outlives it; `http`: an HTTP header comes before the events.
  static absl::StatusOr<std::unique_ptr<StreamReader>> Create(int32_t streams, bool http,
                                                              TokenTimes& times);
  ~StreamReader();
  StreamReader(const StreamReader&) = delete;
  StreamReader& operator=(const StreamReader&) = delete;

  // Connects stream `stream` to `port` of this machine and sends `request`. Unavailable: it cannot.
  absl::Status Open(int32_t stream, int port, std::string_view request);
  // Of an open stream, from any thread. False when the connection takes no more.
  bool Send(int32_t stream, std::string_view bytes) const;

  // What arrives from now on, until Take(), is looked at.
  void Watch();
  Window Take();

  int64_t tokens() const { return tokens_.load(); }    // Since the beginning.
  int32_t done() const { return done_.load(); }        // Streams that are complete.
  int32_t started() const { return started_.load(); }  // With a token at least.
  // The first thing that went wrong: an answer that is no stream, a connection lost before its end
  // mark, a token that was not sent.
  absl::Status status() const;

 private:
  struct Stream {
    int fd = -1;
    std::string head;  // Of HTTP, until it is complete.
    bool in_body = false;
    EventCounter events;
    int32_t tokens = 0;
    bool over = false;
  };

  StreamReader(int32_t streams, bool http, TokenTimes& times, int epoll, int wake);
  void Run();
  void Read(int32_t stream);
  void OnEvents(int32_t stream, int32_t count, int64_t now);
  void Fail(int32_t stream, std::string_view why);

  const bool http_;
  TokenTimes& times_;
  const int epoll_;
  const int wake_;
  std::vector<Stream> streams_;
  std::atomic<int64_t> tokens_ = 0;
  std::atomic<int32_t> done_ = 0;
  std::atomic<int32_t> started_ = 0;
  std::atomic<bool> stopping_ = false;
  mutable Mutex mu_;
  bool watching_ LYNX_GUARDED_BY(mu_) = false;
  Window window_ LYNX_GUARDED_BY(mu_);
  absl::Status status_ LYNX_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace lynx::cli
