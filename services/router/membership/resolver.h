#pragma once

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/concurrency/event_loop.h"

namespace lynx::router {

// Turns a host name into addresses without blocking the caller.
class Resolver {
 public:
  // Numeric addresses, sorted, without repetition; IPv6 in brackets.
  using Callback = std::function<void(absl::StatusOr<std::vector<std::string>>)>;

  virtual ~Resolver() = default;

  // Calls `done` once, on the loop the resolver was made with, never inside this call. There may be
  // no answer for a long time: the caller keeps its own deadline. Unavailable: no answer, no such
  // name; ResourceExhausted: too many questions wait.
  virtual void Resolve(const std::string& host, Callback done) = 0;
};

// The system's resolver (getaddrinfo), asked one name at a time on a thread of its own: it blocks
// and cannot be interrupted.
class SystemResolver final : public Resolver {
 public:
  explicit SystemResolver(EventLoop& loop);  // `loop` outlives this.
  // Waits for the question in progress, which the thread's resolver settings bound to seconds.
  ~SystemResolver() override;

  void Resolve(const std::string& host, Callback done) override LYNX_EXCLUDES(mu_);

 private:
  struct Question {
    std::string host;
    Callback done;
  };
  void Run();

  EventLoop& loop_;
  Mutex mu_;
  CondVar wake_;
  std::deque<Question> questions_ LYNX_GUARDED_BY(mu_);
  bool stopping_ LYNX_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace lynx::router
