#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/http/types.h"

namespace lynx::loadtest {

// Names one request of a transport; never used twice.
using RequestId = uint64_t;

// What becomes of requests, in order for each: OnHead, OnBody..., OnEnd. Never called from within
// Send() or Cancel().
class TransportObserver {
 public:
  virtual ~TransportObserver() = default;
  virtual void OnHead(RequestId id, const http::HttpResponse& head, absl::Time now) = 0;
  // False: the answer is complete; nothing more of it is handed out.
  virtual bool OnBody(RequestId id, std::string_view piece, absl::Time now) = 0;
  // The response is over: OK, or why it is not whole, coded as HttpClient does.
  virtual void OnEnd(RequestId id, const absl::Status& status, absl::Time now) = 0;
};

// Sends many requests at once to one place and reads the answers as they come. One thread calls.
class Transport {
 public:
  virtual ~Transport() = default;
  // Posts `body`. What comes of it, failures included, is told to the observer.
  virtual void Send(RequestId id, std::string body) = 0;
  // Hands out nothing more of `id`, and closes its connection.
  virtual void Cancel(RequestId id) = 0;
};

}  // namespace lynx::loadtest
