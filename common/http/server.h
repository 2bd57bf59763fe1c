#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/http/tls.h"
#include "common/http/types.h"
#include "common/telemetry/metrics.h"

// HTTP/1.1 server for streams that last: thousands of connections on one thread of its own, plain
// or within TLS.
namespace lynx::http {

// The answer to one request. Every call may come from any thread and never blocks.
//
// The handler sends one response with Send(), or streams one with StartStream(), Write()... and
// End() or Abort(). Dropping the last reference without an answer sends a 500, or aborts the
// stream, so that no client waits for ever.
//
// Every call that returns a Status fails with
//   Cancelled           the client has left, or the server closed the connection; stop the work.
//   FailedPrecondition  the call is out of order (a second Send, a Write before StartStream, ...);
//                       nothing was sent.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  // The whole response at once. Its size is not bounded by the output limit: it is in memory
  // already, and a connection holds one response at a time.
  virtual absl::Status Send(HttpResponse response) = 0;

  // Sends status and header of a response whose body follows piece by piece (chunked, or up to the
  // end of the connection for HTTP/1.0 clients). Each piece goes out at once.
  virtual absl::Status StartStream(int status, Headers headers) = 0;

  // Adds to the body. ResourceExhausted when the client reads so slowly that more than
  // ServerOptions::max_output_bytes would wait: nothing is added, the connection is closed and
  // OnClosed runs. An empty piece is ignored.
  virtual absl::Status Write(std::string_view data) = 0;

  virtual absl::Status End() = 0;

  // Sends what was written and closes without the end mark, so that the client sees a response cut
  // short. Before StartStream it closes without a response. Does nothing once finished or closed.
  virtual void Abort() = 0;

  // `closed` runs once, on the server's thread, when the connection is gone before the handler has
  // finished (End, Send, Abort): the client left, read too slowly, or the server stopped. Should it
  // be gone already, `closed` runs at once, on the caller's thread. It is destroyed unrun when the
  // response is finished. Replaces an earlier callback. It must not block, nor hold the writer
  // (which would then never be dropped).
  virtual void OnClosed(std::function<void()> closed) = 0;
};

// While one lives, what its thread writes to responses may wait until it (of several within one
// another, the outermost) is destroyed: tokens of many streams then cost the server one wake-up,
// not one each. Everything else about a write is as without it. A server whose responses are
// written outlives the batch.
class WriteBatch {
 public:
  WriteBatch();
  ~WriteBatch();
  WriteBatch(const WriteBatch&) = delete;
  WriteBatch& operator=(const WriteBatch&) = delete;
};

// Answers requests. Methods run on the server's thread, for all connections: they must not block,
// and hand real work to another thread. Outlives the server's Stop().
class RequestHandler {
 public:
  virtual ~RequestHandler() = default;

  // Requests of one connection come one after another: the next one after the answer to this one
  // has been sent. A HEAD request is answered as a GET would be; the server leaves out the body.
  virtual void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) = 0;

  // Called before Handle as soon as the header is complete; a response refuses the request without
  // reading its body: who may not ask need not upload. Default: nothing is refused.
  virtual std::optional<HttpResponse> RefuseEarly(const HttpRequest& head);

  // Whether to answer this even when the server is full of other connections. Such requests must
  // be cheap. By default GET and HEAD of /livez, /readyz, /startupz, /health and /metrics.
  virtual bool AnswersWhenFull(const HttpRequest& head);

  // The JSON body of an error that the server itself answers.
  virtual std::string ErrorBody(int status, std::string_view message);
};

struct ServerOptions {
  std::string name = "http";        // Label `server` of the metrics; from a closed set.
  std::string address = "0.0.0.0";  // An IPv4 or IPv6 address.
  uint16_t port = 0;                // 0: any free one; HttpServer::port() tells.

  // Connections that may do anything. When all are taken a new one replaces the one that has been
  // idle longest; when none is idle (one that has not asked yet: for a second) it takes one of
  // `reserved_connections`, on which only requests with AnswersWhenFull are served (others get 503)
  // and one request ends the connection. When those are taken too, the oldest of them whose request
  // is not complete makes room. So slow or many clients cannot keep a health probe out. Each
  // connection is a file descriptor: keep the sum below the process's limit.
  size_t max_connections = 4096;
  size_t reserved_connections = 64;
  // Of one IPv4 address, or of one /64 of IPv6 ones; more are closed at once. 0: any number, as it
  // must be where a gateway stands between clients and this server.
  size_t max_connections_per_client = 0;

  size_t max_header_bytes = 32 * 1024;
  size_t max_target_bytes = 8 * 1024;
  // Per request. The default passes any prompt of a million tokens.
  uint64_t max_body_bytes = uint64_t{16} << 20;
  // Sum over requests whose body is being received; past it new body bytes get 503.
  uint64_t max_total_body_bytes = uint64_t{256} << 20;
  // Bytes of one stream waiting for its client, besides the socket's buffer.
  size_t max_output_bytes = 512 * 1024;
  // The socket's send buffer; small, so that a client that does not read is noticed.
  int socket_send_buffer_bytes = 128 * 1024;

  absl::Duration header_timeout =
      absl::Seconds(10);                            // First byte (or accept) to whole header: 408.
  absl::Duration body_timeout = absl::Seconds(60);  // Header to whole body: 408.
  absl::Duration idle_timeout = absl::Seconds(75);  // Between requests: close.
  // Output waiting and not one byte of it taken: close.
  absl::Duration write_stall_timeout = absl::Seconds(20);
  // After an error that leaves request bytes unread, how long to read them away so that the client
  // gets to see the answer instead of a reset.
  absl::Duration linger_timeout = absl::Seconds(1);

  std::shared_ptr<const TlsContext> tls;  // Null: plain HTTP.

  telemetry::Registry* registry = nullptr;  // Not owned; outlives the server. Null: no metrics.
};

// A client that closes its sending side counts as gone once its complete requests are answered or,
// for an answer still being worked on, at once: a connection cannot tell "no more requests" from
// "left", and stopping work for clients that left matters more.
//
// Thread-safe, except Start and Stop: one thread calls those.
class HttpServer {
 public:
  // Binds and listens, so port() is known and clients may connect; nothing is answered before
  // Start(). InvalidArgument for options out of range, Unavailable when the address cannot be
  // bound. `handler` is not owned.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(const ServerOptions& options,
                                                            RequestHandler& handler);
  ~HttpServer();  // Stop(absl::ZeroDuration()).
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  void Start();

  // Accepts no more connections, lets requests in progress finish for up to `drain`, then closes
  // what is left (their OnClosed runs). Returns when the server's thread has ended: no callback
  // runs after it; writers may outlive it and answer Cancelled. Idempotent. Not from the server's
  // own thread.
  void Stop(absl::Duration drain);

  uint16_t port() const;

  // What connections to come are to use, of a server that began with TLS. Any thread.
  void SetTls(std::shared_ptr<const TlsContext> tls);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lynx::http
