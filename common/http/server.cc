#include "common/http/server.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <list>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/http/message_parser.h"
#include "common/http/tls_stream.h"
#include "common/telemetry/log.h"

namespace lynx::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using SteadyTime = std::chrono::steady_clock::time_point;

constexpr size_t kReadBytes = 64 * 1024;
// Reads of one connection in a row before the others get their turn.
constexpr int kReadsPerTurn = 4;
// An output buffer that grew beyond this is given back once empty.
constexpr size_t kKeptOutputBytes = 16 * 1024;
constexpr int kListenBacklog = 4096;
// Connections looked at in one go, and how often that may be.
constexpr size_t kTicksAtOnce = 128;
constexpr absl::Duration kShortestTick = absl::Milliseconds(5);
// How far into the list of idle connections to look for one to close, and how long a new connection
// may take for its first byte before it counts as idle: a burst must not push out its own members.
constexpr int kEvictionCandidates = 16;
constexpr std::chrono::seconds kFirstByteGrace(1);

SteadyTime Now() { return std::chrono::steady_clock::now(); }

std::chrono::nanoseconds ToChrono(absl::Duration d) { return absl::ToChronoNanoseconds(d); }

enum class Reason {
  kBadRequest,
  kTooLarge,
  kTimeout,
  kFull,
  kMemory,
  kEvicted,
  kSlowReader,
  kAcceptFailed,
  kAddressFull,
  kTls
};
constexpr const char* kReasonNames[] = {"bad_request",  "too_large", "timeout",     "full",
                                        "memory",       "evicted",   "slow_reader", "accept_failed",
                                        "address_full", "tls"};

class Metrics {
 public:
  explicit Metrics(const ServerOptions& options)
      : own_(options.registry == nullptr ? std::make_unique<telemetry::Registry>() : nullptr),
        registry_(own_ != nullptr ? *own_ : *options.registry),
        connections(registry_.AddGauge("lynx_http_connections", "Open HTTP connections.",
                                       {{"server", options.name}})) {
    for (const char* reason : kReasonNames) {
      rejected_.push_back(registry_.AddCounter(
          "lynx_http_rejected_total",
          "Requests refused and connections closed by the HTTP server itself, by reason.",
          {{"server", options.name}, {"reason", reason}}));
    }
    for (int hundreds = 1; hundreds <= 5; ++hundreds) {
      responses_.push_back(registry_.AddCounter(
          "lynx_http_responses_total", "HTTP responses begun, by status class.",
          {{"server", options.name}, {"code", absl::StrCat(hundreds, "xx")}}));
    }
  }

  void Rejected(Reason reason) { rejected_[static_cast<size_t>(reason)].Increment(); }
  void Responded(int status) {
    responses_[static_cast<size_t>(std::clamp(status / 100, 1, 5) - 1)].Increment();
  }

 private:
  std::unique_ptr<telemetry::Registry> own_;
  telemetry::Registry& registry_;
  std::vector<telemetry::Counter> rejected_;
  std::vector<telemetry::Counter> responses_;

 public:
  telemetry::Gauge connections;
};

// A line break in a value would let its author write fields, or a whole response, of their own.
void AppendFieldText(std::string_view text, std::string& out) {
  for (char c : text) out.push_back(c == '\r' || c == '\n' || c == '\0' ? ' ' : c);
}

bool ServerOwnsField(std::string_view name) {
  return EqualsIgnoreCase(name, "content-length") || EqualsIgnoreCase(name, "transfer-encoding") ||
         EqualsIgnoreCase(name, "connection") || EqualsIgnoreCase(name, "date");
}

// `framing` is the field that says where the body ends; empty for none.
std::string FormatHead(int status, const Headers& headers, std::string_view framing, bool close) {
  std::string head = absl::StrCat(
      "HTTP/1.1 ", status, " ",
      absl::string_view(ReasonPhrase(status).data(), ReasonPhrase(status).size()),
      "\r\nDate: ", absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()),
      "\r\n");
  for (const auto& [name, value] : headers) {
    if (ServerOwnsField(name)) continue;
    AppendFieldText(name, head);
    head += ": ";
    AppendFieldText(value, head);
    head += "\r\n";
  }
  if (!framing.empty()) {
    head += framing;
    head += "\r\n";
  }
  if (close) head += "Connection: close\r\n";
  head += "\r\n";
  return head;
}

bool HasNoBody(int status) { return status == 204 || status == 304 || status / 100 == 1; }

std::string FormatResponse(const HttpResponse& response, bool head_request, bool close) {
  const std::string framing = HasNoBody(response.status)
                                  ? std::string()
                                  : absl::StrCat("Content-Length: ", response.body.size());
  std::string out = FormatHead(response.status, response.headers, framing, close);
  if (!head_request && !HasNoBody(response.status)) out += response.body;
  return out;
}

class Connection;

// What the connections of one server share. All of it belongs to the server's thread, but for the
// members marked otherwise.
struct Shared {
  Shared(const ServerOptions& server_options, RequestHandler& request_handler)
      : options(server_options),
        handler(request_handler),
        metrics(server_options),
        tls(server_options.tls) {}

  const ServerOptions options;
  RequestHandler& handler;
  Metrics metrics;                     // Thread-safe.
  asio::io_context io{1};              // Thread-safe.
  std::atomic<bool> draining = false;  // Thread-safe.

  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections;
  std::list<Connection*> ticked;    // All; the one whose last tick is longest ago first.
  std::list<Connection*> idle;      // Longest idle first; none of them reserved.
  std::list<Connection*> reserved;  // Oldest first.
  std::map<asio::ip::address, size_t> per_client;  // Connections of each; see ClientOf.
  uint64_t body_bytes = 0;                         // Of all bodies being received.
  std::shared_ptr<const TlsContext> tls;           // Of connections to come; null: plain.
  std::array<char, kReadBytes> read_buffer;

  // Has the connection send what its exchange has; soon, or when the thread's batch ends. Any
  // thread.
  void Flush(std::shared_ptr<Connection> connection) LYNX_EXCLUDES(flush_mu);
  // Of a batch that has ended.
  void FlushWaiting() LYNX_EXCLUDES(flush_mu);

 private:
  void PostFlush() LYNX_REQUIRES(flush_mu);
  void FlushAll() LYNX_EXCLUDES(flush_mu);

  Mutex flush_mu;
  bool flush_posted LYNX_GUARDED_BY(flush_mu) = false;
  std::vector<std::shared_ptr<Connection>> to_flush LYNX_GUARDED_BY(flush_mu);
};

// The batches that the thread is in, and the servers that wait for their end.
struct ThreadBatch {
  int depth = 0;
  std::vector<Shared*> waiting;
};
thread_local ThreadBatch thread_batch;

// One request and its response, shared by the connection (server's thread) and the writer (any
// thread). It knows its connection exactly as long as that is open and serving this request.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  struct Request {
    bool head = false;
    bool http10 = false;
    bool keep_alive = false;
  };
  enum class State {
    kOpen,       // Nothing answered yet.
    kStreaming,  // StartStream done.
    kFinished,   // Complete; some of it may still wait to be sent.
    kAborted,    // To be cut short once what was written has gone out.
    kDropped,    // The handler let go without an answer.
    kGone,       // The connection is closed, or is about to be.
  };

  Exchange(Shared& shared, std::shared_ptr<Connection> connection, const Request& request)
      : request_(request), shared_(shared), connection_(std::move(connection)) {}

  // The writer's side.
  absl::Status Send(HttpResponse response) LYNX_EXCLUDES(mu_);
  absl::Status StartStream(int status, const Headers& headers) LYNX_EXCLUDES(mu_);
  absl::Status Write(std::string_view data) LYNX_EXCLUDES(mu_);
  absl::Status End() LYNX_EXCLUDES(mu_);
  void Abort() LYNX_EXCLUDES(mu_);
  void Drop() LYNX_EXCLUDES(mu_);
  void OnClosed(std::function<void()> closed) LYNX_EXCLUDES(mu_);

  // The connection's side, on the server's thread.
  // Moves what waits into `out`, which must be empty.
  State Take(std::string& out) LYNX_EXCLUDES(mu_);
  void Sent(size_t bytes) LYNX_EXCLUDES(mu_);
  const Request& request() const { return request_; }
  bool answered() const LYNX_EXCLUDES(mu_);
  bool closes() const LYNX_EXCLUDES(mu_);
  // The connection takes leave, after the response or because it is closed.
  void Detach() LYNX_EXCLUDES(mu_);

 private:
  absl::Status Require(State state) const LYNX_REQUIRES(mu_);
  void PostFlush() LYNX_REQUIRES(mu_);
  bool Close() const LYNX_REQUIRES(mu_) { return !request_.keep_alive || shared_.draining.load(); }

  const Request request_;
  Shared& shared_;  // Used only while connection_ is set: then the server exists.
  mutable Mutex mu_;
  std::shared_ptr<Connection> connection_ LYNX_GUARDED_BY(mu_);
  State state_ LYNX_GUARDED_BY(mu_) = State::kOpen;
  bool close_ LYNX_GUARDED_BY(mu_) = true;  // Ends the connection; decided with the header.
  bool flush_posted_ LYNX_GUARDED_BY(mu_) = false;
  std::string pending_ LYNX_GUARDED_BY(mu_);
  size_t unsent_bytes_ LYNX_GUARDED_BY(mu_) = 0;  // pending_ and what Take() gave out.
  std::function<void()> closed_ LYNX_GUARDED_BY(mu_);
};

class Writer final : public ResponseWriter {
 public:
  explicit Writer(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  ~Writer() override { exchange_->Drop(); }

  absl::Status Send(HttpResponse response) override { return exchange_->Send(std::move(response)); }
  absl::Status StartStream(int status, Headers headers) override {
    return exchange_->StartStream(status, headers);
  }
  absl::Status Write(std::string_view data) override { return exchange_->Write(data); }
  absl::Status End() override { return exchange_->End(); }
  void Abort() override { exchange_->Abort(); }
  void OnClosed(std::function<void()> closed) override { exchange_->OnClosed(std::move(closed)); }

 private:
  const std::shared_ptr<Exchange> exchange_;
};

// Whose connections count together: an IPv6 host has a /64 to itself.
asio::ip::address ClientOf(const asio::ip::address& address) {
  if (!address.is_v6()) return address;
  const asio::ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, v6);
  asio::ip::address_v6::bytes_type bytes = v6.to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), uint8_t{0});
  return asio::ip::address_v6(bytes);
}

std::string Printable(const tcp::endpoint& peer) {
  const std::string address = peer.address().to_string();
  return peer.address().is_v6() ? absl::StrCat("[", address, "]:", peer.port())
                                : absl::StrCat(address, ":", peer.port());
}

// Owned by Shared::connections from accept to Close(). All on the server's thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Shared& shared, tcp::socket socket, const tcp::endpoint& peer, bool reserved)
      : shared_(shared),
        socket_(std::move(socket)),
        tls_(shared.tls == nullptr
                 ? nullptr
                 : std::make_unique<TlsStream>(*shared.tls, socket_.native_handle())),
        peer_(Printable(peer)),
        client_(ClientOf(peer.address())),
        reserved_(reserved),
        parser_({.max_header_bytes = shared.options.max_header_bytes,
                 .max_target_bytes = shared.options.max_target_bytes,
                 .max_body_bytes = shared.options.max_body_bytes}) {}

  void Start();
  void OnTick(SteadyTime now);
  // Sends what the exchange has; goes on when the socket takes more.
  void Pump();
  // `reset` drops what the kernel still holds for the client, and tells it that the end is no
  // proper one.
  void Close(bool reset);
  void CloseAs(Reason reason);
  // In the idle list and, as far as one can tell, about to stay idle.
  bool evictable(SteadyTime now) const {
    error_code ec;
    return (served_ || now - idle_since_ > kFirstByteGrace) && socket_.available(ec) == 0;
  }
  bool between_requests() const {
    return phase_ == Phase::kReading && parsed_ == RequestParser::State::kIdle;
  }

 private:
  enum class Phase {
    kReading,    // Waiting for a request, or within one.
    kHandling,   // exchange_ is set.
    kClosing,    // The last response goes out.
    kLingering,  // It has gone out; reading away what the client still sends.
  };

  void ArmRead();
  void OnReadable();
  // As the socket's read_some and write_some, through TLS where there is any.
  size_t ReadSome(error_code& ec);
  size_t WriteSome(std::string_view data, error_code& ec);
  void OnEof();
  void Process();
  bool CheckHead();
  HttpRequest TakeRequest();  // Out of the parser; sets exchange_.
  void OnDrained(Exchange::State state);
  void EndExchange();
  void ResponseDone();
  void RespondAndClose(const HttpResponse& response, bool head_request);
  void Refuse(Reason reason, int status, std::string_view message);
  void Linger();
  void AccountBody();
  void EnterIdle();
  void LeaveIdle();
  void SetDeadline(absl::Duration after) { deadline_ = Now() + ToChrono(after); }
  size_t MaxBuffered() const { return shared_.options.max_header_bytes + kReadBytes; }

  Shared& shared_;
  tcp::socket socket_;
  const std::unique_ptr<TlsStream> tls_;  // Null: plain.
  const std::string peer_;
  const asio::ip::address client_;
  const bool reserved_;
  RequestParser parser_;
  Phase phase_ = Phase::kReading;
  bool closed_ = false;
  bool eof_ = false;  // The client sends no more.
  bool read_armed_ = false;
  bool tls_write_armed_ = false;
  bool head_checked_ = false;  // CheckHead has passed the request being read.
  std::string in_;             // Read but not parsed.
  uint64_t accounted_body_bytes_ = 0;
  RequestParser::State parsed_ = RequestParser::State::kIdle;  // The state deadline_ was set for.
  SteadyTime deadline_ = SteadyTime::max();

  std::shared_ptr<Exchange> exchange_;
  std::string out_;
  size_t out_sent_ = 0;
  bool write_blocked_ = false;
  SteadyTime write_progress_;  // When the client last took a byte of out_, or out_ began.

  bool served_ = false;  // At least one request.
  SteadyTime idle_since_;
  bool in_idle_list_ = false;
  std::list<Connection*>::iterator ticked_place_;
  std::list<Connection*>::iterator idle_place_;
  std::list<Connection*>::iterator reserved_place_;
};

void Shared::Flush(std::shared_ptr<Connection> connection) {
  MutexLock lock(flush_mu);
  to_flush.push_back(std::move(connection));
  if (thread_batch.depth == 0) return PostFlush();
  std::vector<Shared*>& waiting = thread_batch.waiting;
  if (std::find(waiting.begin(), waiting.end(), this) == waiting.end()) waiting.push_back(this);
}

void Shared::FlushWaiting() {
  MutexLock lock(flush_mu);
  if (!to_flush.empty()) PostFlush();
}

void Shared::PostFlush() {
  if (std::exchange(flush_posted, true)) return;
  asio::post(io, [this] { FlushAll(); });
}

void Shared::FlushAll() {
  std::vector<std::shared_ptr<Connection>> connections_to_flush;
  {
    MutexLock lock(flush_mu);
    flush_posted = false;
    connections_to_flush.swap(to_flush);
  }
  for (const auto& connection : connections_to_flush) connection->Pump();
}

absl::Status Exchange::Require(State state) const {
  if (state_ == State::kGone) return absl::CancelledError("the client has left");
  if (state_ != state) {
    return absl::FailedPreconditionError("the response is not in the state for this call");
  }
  return absl::OkStatus();
}

void Exchange::PostFlush() {
  if (flush_posted_) return;
  flush_posted_ = true;
  shared_.Flush(connection_);
}

absl::Status Exchange::Send(HttpResponse response) {
  std::function<void()> unneeded;  // Destroyed after the lock is released.
  MutexLock lock(mu_);
  LYNX_RETURN_IF_ERROR(Require(State::kOpen));
  state_ = State::kFinished;
  close_ = Close();
  shared_.metrics.Responded(response.status);
  pending_ = FormatResponse(response, request_.head, close_);
  unsent_bytes_ = pending_.size();
  unneeded.swap(closed_);
  PostFlush();
  return absl::OkStatus();
}

absl::Status Exchange::StartStream(int status, const Headers& headers) {
  MutexLock lock(mu_);
  LYNX_RETURN_IF_ERROR(Require(State::kOpen));
  state_ = State::kStreaming;
  close_ = Close();
  shared_.metrics.Responded(status);
  pending_ =
      FormatHead(status, headers, request_.http10 ? "" : "Transfer-Encoding: chunked", close_);
  unsent_bytes_ = pending_.size();
  PostFlush();
  return absl::OkStatus();
}

absl::Status Exchange::Write(std::string_view data) {
  MutexLock lock(mu_);
  LYNX_RETURN_IF_ERROR(Require(State::kStreaming));
  if (data.empty() || request_.head) return absl::OkStatus();
  if (unsent_bytes_ + data.size() > shared_.options.max_output_bytes) {
    state_ = State::kGone;
    asio::post(shared_.io,
               [connection = connection_] { connection->CloseAs(Reason::kSlowReader); });
    return absl::ResourceExhaustedError(
        absl::StrCat("the client does not keep up: ", unsent_bytes_, " bytes wait for it"));
  }
  const size_t before = pending_.size();
  if (!request_.http10) absl::StrAppendFormat(&pending_, "%x\r\n", data.size());
  pending_ += data;
  if (!request_.http10) pending_ += "\r\n";
  unsent_bytes_ += pending_.size() - before;
  PostFlush();
  return absl::OkStatus();
}

absl::Status Exchange::End() {
  std::function<void()> unneeded;
  MutexLock lock(mu_);
  LYNX_RETURN_IF_ERROR(Require(State::kStreaming));
  state_ = State::kFinished;
  if (!request_.http10 && !request_.head) {
    pending_ += "0\r\n\r\n";
    unsent_bytes_ += 5;
  }
  unneeded.swap(closed_);
  PostFlush();
  return absl::OkStatus();
}

void Exchange::Abort() {
  std::function<void()> unneeded;
  MutexLock lock(mu_);
  if (state_ != State::kOpen && state_ != State::kStreaming) return;
  state_ = State::kAborted;
  unneeded.swap(closed_);
  PostFlush();
}

void Exchange::Drop() {
  std::function<void()> unneeded;
  MutexLock lock(mu_);
  if (state_ != State::kOpen && state_ != State::kStreaming) return;
  state_ = state_ == State::kOpen ? State::kDropped : State::kAborted;
  unneeded.swap(closed_);
  PostFlush();
}

void Exchange::OnClosed(std::function<void()> closed) {
  {
    MutexLock lock(mu_);
    if (state_ == State::kOpen || state_ == State::kStreaming ||
        (state_ == State::kGone && connection_ != nullptr)) {
      closed_.swap(closed);  // The old one is destroyed after the lock is released.
      return;
    }
    if (state_ != State::kGone) return;
  }
  closed();
}

Exchange::State Exchange::Take(std::string& out) {
  MutexLock lock(mu_);
  flush_posted_ = false;
  out.swap(pending_);
  return state_;
}

void Exchange::Sent(size_t bytes) {
  MutexLock lock(mu_);
  unsent_bytes_ -= bytes;
}

bool Exchange::answered() const {
  MutexLock lock(mu_);
  return state_ != State::kOpen && state_ != State::kStreaming;
}

bool Exchange::closes() const {
  MutexLock lock(mu_);
  return close_;
}

void Exchange::Detach() {
  std::shared_ptr<Connection> connection;
  std::function<void()> closed;
  {
    MutexLock lock(mu_);
    connection.swap(connection_);
    closed.swap(closed_);
    pending_ = std::string();
    if (state_ == State::kOpen || state_ == State::kStreaming) state_ = State::kGone;
  }
  // Set only when the handler had not finished.
  if (closed != nullptr) closed();
}

void Connection::Start() {
  shared_.connections.emplace(this, shared_from_this());
  ++shared_.per_client[client_];
  ticked_place_ = shared_.ticked.insert(shared_.ticked.end(), this);
  shared_.metrics.connections.Set(static_cast<double>(shared_.connections.size()));
  if (reserved_) reserved_place_ = shared_.reserved.insert(shared_.reserved.end(), this);
  EnterIdle();
  SetDeadline(shared_.options.header_timeout);
  ArmRead();
}

void Connection::EnterIdle() {
  if (reserved_ || in_idle_list_) return;
  idle_since_ = Now();
  idle_place_ = shared_.idle.insert(shared_.idle.end(), this);
  in_idle_list_ = true;
}

void Connection::LeaveIdle() {
  if (!std::exchange(in_idle_list_, false)) return;
  shared_.idle.erase(idle_place_);
}

void Connection::ArmRead() {
  if (closed_ || eof_ || read_armed_ || in_.size() >= MaxBuffered()) return;
  read_armed_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code&) {
    self->read_armed_ = false;
    self->OnReadable();
  });
}

size_t Connection::ReadSome(error_code& ec) {
  if (tls_ == nullptr) return socket_.read_some(asio::buffer(shared_.read_buffer), ec);
  const TlsStream::Outcome outcome = tls_->Read(shared_.read_buffer);
  switch (outcome.result) {
    case TlsStream::Result::kDone:
      break;
    case TlsStream::Result::kWantsWrite:
      // An answer of the protocol itself does not fit into the socket.
      if (!std::exchange(tls_write_armed_, true)) {
        socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](const error_code&) {
          self->tls_write_armed_ = false;
          self->OnReadable();
        });
      }
      [[fallthrough]];
    case TlsStream::Result::kWantsRead:
      ec = asio::error::would_block;
      break;
    case TlsStream::Result::kEnd:
      ec = asio::error::eof;
      break;
    case TlsStream::Result::kFailed:
      if (!tls_->established()) shared_.metrics.Rejected(Reason::kTls);
      ec = asio::error::connection_aborted;
      break;
  }
  return outcome.bytes;
}

size_t Connection::WriteSome(std::string_view data, error_code& ec) {
  if (tls_ == nullptr) return socket_.write_some(asio::buffer(data), ec);
  const TlsStream::Outcome outcome = tls_->Write(data);
  if (outcome.result == TlsStream::Result::kWantsWrite) {
    ec = asio::error::would_block;
  } else if (outcome.result != TlsStream::Result::kDone) {
    ec = asio::error::connection_aborted;
  }
  return outcome.bytes;
}

// Reading goes on while a request is handled: that is how a client that left is noticed at once.
void Connection::OnReadable() {
  for (int i = 0; i < kReadsPerTurn; ++i) {
    if (closed_ || in_.size() >= MaxBuffered()) return;
    error_code ec;
    const size_t n = ReadSome(ec);
    if (ec == asio::error::would_block || ec == asio::error::interrupted) break;
    if (ec == asio::error::eof) {
      eof_ = true;
      OnEof();
      return;
    }
    if (ec) {
      Close(/*reset=*/false);
      return;
    }
    if (phase_ == Phase::kClosing || phase_ == Phase::kLingering) continue;
    in_.append(shared_.read_buffer.data(), n);
    Process();
  }
  ArmRead();
}

void Connection::OnEof() {
  if (closed_) return;
  switch (phase_) {
    case Phase::kReading:  // Between requests, or a request cut short.
    case Phase::kLingering:
      Close(/*reset=*/false);
      return;
    case Phase::kHandling:
      if (!exchange_->answered()) Close(/*reset=*/false);
      return;
    case Phase::kClosing:
      return;
  }
}

void Connection::Process() {
  while (!closed_ && phase_ == Phase::kReading && !in_.empty()) {
    const size_t consumed = parser_.Feed(in_);
    in_.erase(0, consumed);
    AccountBody();
    using State = RequestParser::State;
    const State state = parser_.state();
    if (state != State::kIdle) LeaveIdle();
    if (state == State::kFailed) {
      const int status = parser_.error_status();
      const bool large = status == 413 || status == 414 || status == 431;
      Refuse(large ? Reason::kTooLarge : Reason::kBadRequest, status, parser_.error_message());
      return;
    }
    if (state != parsed_) {
      parsed_ = state;
      if (state == State::kHeader) SetDeadline(shared_.options.header_timeout);
      if (state == State::kBody) SetDeadline(shared_.options.body_timeout);
    }
    if (!head_checked_ && (state == State::kBody || state == State::kDone)) {
      head_checked_ = true;
      if (!CheckHead()) return;
    }
    if (shared_.body_bytes > shared_.options.max_total_body_bytes) {
      Refuse(Reason::kMemory, 503, "too many request bodies are being received; try again");
      return;
    }
    if (state == State::kDone) {
      HttpRequest request = TakeRequest();
      shared_.handler.Handle(std::move(request), std::make_shared<Writer>(exchange_));
      return;
    }
    if (consumed == 0) return;
  }
}

void Connection::AccountBody() {
  const uint64_t size = parser_.head().body.size();
  shared_.body_bytes += size - accounted_body_bytes_;
  accounted_body_bytes_ = size;
}

// False when the request is refused by its head.
bool Connection::CheckHead() {
  const HttpRequest& head = parser_.head();
  if (reserved_ && !shared_.handler.AnswersWhenFull(head)) {
    Refuse(Reason::kFull, 503, "all connections are in use; try again");
    return false;
  }
  std::optional<HttpResponse> refusal = shared_.handler.RefuseEarly(head);
  if (!refusal.has_value()) {
    if (parser_.expects_continue() && parser_.state() == RequestParser::State::kBody &&
        in_.empty()) {
      out_ += "HTTP/1.1 100 Continue\r\n\r\n";
      Pump();
    }
    return true;
  }
  if (parser_.state() == RequestParser::State::kDone) {
    // No body stands in the way: an ordinary response, and the connection lives on. Send cannot
    // fail, as the exchange is new.
    TakeRequest();
    exchange_->Send(*std::move(refusal)).IgnoreError();
  } else {
    const bool head_request = head.method == "HEAD";
    RespondAndClose(*refusal, head_request);
  }
  return false;
}

HttpRequest Connection::TakeRequest() {
  phase_ = Phase::kHandling;
  deadline_ = SteadyTime::max();
  exchange_ = std::make_shared<Exchange>(
      shared_, shared_from_this(),
      Exchange::Request{.head = parser_.head().method == "HEAD",
                        .http10 = parser_.http10(),
                        .keep_alive = parser_.keep_alive() && !reserved_});
  HttpRequest request = parser_.TakeRequest();
  request.peer = peer_;
  parsed_ = RequestParser::State::kIdle;
  head_checked_ = false;
  AccountBody();
  return request;
}

void Connection::Refuse(Reason reason, int status, std::string_view message) {
  shared_.metrics.Rejected(reason);
  HttpResponse response{.status = status,
                        .headers = {{"Content-Type", kJsonContentType}},
                        .body = shared_.handler.ErrorBody(status, message)};
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  RespondAndClose(response, parser_.head().method == "HEAD");
}

void Connection::RespondAndClose(const HttpResponse& response, bool head_request) {
  if (tls_ != nullptr && !tls_->established()) return Close(/*reset=*/false);
  LeaveIdle();
  phase_ = Phase::kClosing;
  deadline_ = SteadyTime::max();  // From here the write stall counts, then the linger time.
  in_ = std::string();
  parser_.Discard();
  AccountBody();
  shared_.metrics.Responded(response.status);
  out_ += FormatResponse(response, head_request, /*close=*/true);
  Pump();
}

void Connection::Pump() {
  if (closed_ || write_blocked_) return;
  for (;;) {
    if (out_sent_ == out_.size()) {
      out_sent_ = 0;
      if (out_.capacity() > kKeptOutputBytes) {
        out_ = std::string();
      } else {
        out_.clear();
      }
      if (exchange_ != nullptr) {
        const Exchange::State state = exchange_->Take(out_);
        if (out_.empty()) return OnDrained(state);
      }
      if (out_.empty()) break;
      write_progress_ = Now();
    }
    error_code ec;
    const size_t n = WriteSome(std::string_view(out_).substr(out_sent_), ec);
    if (ec == asio::error::would_block || ec == asio::error::interrupted) {
      write_blocked_ = true;
      socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](const error_code&) {
        self->write_blocked_ = false;
        self->Pump();
      });
      return;
    }
    if (ec) return Close(/*reset=*/false);
    write_progress_ = Now();
    out_sent_ += n;
    if (exchange_ != nullptr) exchange_->Sent(n);
  }
  if (phase_ == Phase::kClosing) Linger();
}

// All that the exchange had has gone out.
void Connection::OnDrained(Exchange::State state) {
  switch (state) {
    case Exchange::State::kOpen:
    case Exchange::State::kStreaming:
    case Exchange::State::kGone:  // CloseAs is on its way.
      return;
    case Exchange::State::kFinished:
      return ResponseDone();
    case Exchange::State::kAborted:
      // A plain end would look complete to an HTTP/1.0 client.
      if (exchange_->request().http10) return Close(/*reset=*/true);
      EndExchange();
      return Linger();
    case Exchange::State::kDropped: {
      const bool head = exchange_->request().head;
      EndExchange();
      return RespondAndClose({.status = 500,
                              .headers = {{"Content-Type", kJsonContentType}},
                              .body = shared_.handler.ErrorBody(500, "the request was dropped")},
                             head);
    }
  }
}

void Connection::EndExchange() { std::exchange(exchange_, nullptr)->Detach(); }

void Connection::ResponseDone() {
  const bool close = exchange_->closes() || shared_.draining.load();
  EndExchange();
  served_ = true;
  if (close) return Linger();
  phase_ = Phase::kReading;
  EnterIdle();
  SetDeadline(shared_.options.idle_timeout);
  Process();
  if (eof_) OnEof();
  ArmRead();
}

// Closing with request bytes unread makes the kernel send a reset, which can destroy the response
// on its way; so the client is told the end and given a while to close.
void Connection::Linger() {
  error_code ec;
  if (tls_ != nullptr) tls_->SayGoodbye();
  socket_.shutdown(tcp::socket::shutdown_send, ec);
  if (eof_ || ec) return Close(/*reset=*/false);
  phase_ = Phase::kLingering;
  in_ = std::string();
  SetDeadline(shared_.options.linger_timeout);
  ArmRead();
}

void Connection::CloseAs(Reason reason) {
  if (closed_) return;
  shared_.metrics.Rejected(reason);
  Close(/*reset=*/reason == Reason::kSlowReader);
}

void Connection::Close(bool reset) {
  if (closed_) return;
  const std::shared_ptr<Connection> self = shared_from_this();
  closed_ = true;
  error_code ec;  // Nothing to do about a socket that does not close cleanly.
  if (exchange_ != nullptr && exchange_->request().http10 && !exchange_->answered()) reset = true;
  if (reset) socket_.set_option(asio::socket_base::linger(true, 0), ec);
  socket_.close(ec);
  LeaveIdle();
  if (reserved_) shared_.reserved.erase(reserved_place_);
  shared_.body_bytes -= accounted_body_bytes_;
  shared_.ticked.erase(ticked_place_);
  shared_.connections.erase(this);
  if (const auto count = shared_.per_client.find(client_); --count->second == 0) {
    shared_.per_client.erase(count);
  }
  shared_.metrics.connections.Set(static_cast<double>(shared_.connections.size()));
  if (exchange_ != nullptr) EndExchange();
}

void Connection::OnTick(SteadyTime now) {
  if (closed_) return;
  if (write_blocked_ && now - write_progress_ > ToChrono(shared_.options.write_stall_timeout)) {
    return CloseAs(Reason::kSlowReader);
  }
  if (now > deadline_) {
    if (phase_ == Phase::kLingering || between_requests()) return Close(/*reset=*/false);
    return Refuse(Reason::kTimeout, 408, "the request did not arrive in time");
  }
  // With its buffer full of pipelined requests the connection does not read, and so would not see
  // the client leave. (When even the kernel's buffer is full of them, the next write tells.)
  if (!read_armed_ && !eof_ && phase_ == Phase::kHandling && !exchange_->answered()) {
    pollfd fd{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
    if (poll(&fd, 1, 0) == 1) Close(/*reset=*/false);
  }
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const ServerOptions& options, RequestHandler& handler)
      : shared_(options, handler), acceptor_(shared_.io), tick_(shared_.io) {
    const absl::Duration shortest =
        std::min({options.header_timeout, options.body_timeout, options.idle_timeout,
                  options.write_stall_timeout, options.linger_timeout});
    tick_period_ = std::clamp(shortest / 4, absl::Milliseconds(10), absl::Milliseconds(250));
  }

  absl::Status Listen();
  void Start();
  void Stop(absl::Duration drain);
  uint16_t port() const { return port_; }
  void SetTls(std::shared_ptr<const TlsContext> tls) {
    asio::post(shared_.io,
               [this, tls = std::move(tls)]() mutable { shared_.tls = std::move(tls); });
  }

 private:
  void Accept();
  void Admit(tcp::socket socket);
  // Closes the longest idle connection that nobody will miss; false when there is none.
  bool EvictIdle();
  void ArmTick();
  void OnTick();
  // Every connection has its tick once a period, thousands of them in parts: all at once would hold
  // up streams for milliseconds.
  int64_t Slices() const {
    return std::clamp<int64_t>(static_cast<int64_t>(shared_.ticked.size() / kTicksAtOnce), 1,
                               tick_period_ / kShortestTick);
  }
  void BeginDrain(absl::Duration drain);
  // Close() changes the map, so loops go over a copy.
  std::vector<std::shared_ptr<Connection>> Connections() const;

  Shared shared_;
  tcp::acceptor acceptor_;
  asio::steady_timer tick_;
  absl::Duration tick_period_;
  uint16_t port_ = 0;
  bool accepting_ = false;      // An accept is pending; when not, the tick tries again.
  bool accept_failed_ = false;  // The last one failed, and the log says so.
  SteadyTime drain_deadline_;
  std::thread thread_;
};

absl::Status HttpServer::Impl::Listen() {
  const ServerOptions& options = shared_.options;
  error_code ec;
  const asio::ip::address address = asio::ip::make_address(options.address, ec);
  if (ec) return absl::InvalidArgumentError("not an IP address: '" + options.address + "'");
  const tcp::endpoint endpoint(address, options.port);
  acceptor_.open(endpoint.protocol(), ec);
  if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor_.bind(endpoint, ec);
  if (!ec) acceptor_.listen(kListenBacklog, ec);
  if (!ec) port_ = acceptor_.local_endpoint(ec).port();
  if (ec) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", options.address, " port ",
                                               options.port, ": ", ec.message()));
  }
  return absl::OkStatus();
}

void HttpServer::Impl::Start() {
  LYNX_CHECK(!thread_.joinable() && acceptor_.is_open());
  thread_ = std::thread([this] {
    Accept();
    ArmTick();
    shared_.io.run();  // Ends when nothing is pending: after BeginDrain, once all is closed.
  });
}

void HttpServer::Impl::Accept() {
  accepting_ = true;
  acceptor_.async_accept([this](const error_code& ec, tcp::socket socket) {
    accepting_ = false;
    if (shared_.draining.load()) return;
    if (!ec) {
      accept_failed_ = false;
      Admit(std::move(socket));
      return Accept();
    }
    if (ec == asio::error::connection_aborted) return Accept();
    shared_.metrics.Rejected(Reason::kAcceptFailed);  // Most likely out of file descriptors.
    if (!std::exchange(accept_failed_, true)) {
      telemetry::LogError("cannot accept HTTP connections",
                          {{"server", shared_.options.name}, {"error", ec.message()}});
    }
    EvictIdle();
  });
}

bool HttpServer::Impl::EvictIdle() {
  const SteadyTime now = Now();
  int looked_at = 0;
  for (Connection* connection : shared_.idle) {
    if (++looked_at > kEvictionCandidates) return false;
    if (!connection->evictable(now)) continue;
    connection->CloseAs(Reason::kEvicted);
    return true;
  }
  return false;
}

void HttpServer::Impl::Admit(tcp::socket socket) {
  const ServerOptions& options = shared_.options;
  error_code ec;
  const tcp::endpoint peer = socket.remote_endpoint(ec);
  if (ec) return;  // The client has left already.
  if (options.max_connections_per_client > 0) {
    const auto count = shared_.per_client.find(ClientOf(peer.address()));
    if (count != shared_.per_client.end() && count->second >= options.max_connections_per_client) {
      shared_.metrics.Rejected(Reason::kAddressFull);
      return;  // Closes the socket.
    }
  }
  bool reserved = false;
  if (shared_.connections.size() - shared_.reserved.size() >= options.max_connections) {
    if (!EvictIdle()) {
      reserved = true;
      if (shared_.reserved.size() >= options.reserved_connections) {
        shared_.reserved.front()->CloseAs(Reason::kEvicted);
      }
    }
  }
  socket.non_blocking(true, ec);
  if (!ec) socket.set_option(tcp::no_delay(true), ec);
  if (!ec) {
    socket.set_option(asio::socket_base::send_buffer_size(options.socket_send_buffer_bytes), ec);
  }
  if (ec) return;  // The client has left already.
  std::make_shared<Connection>(shared_, std::move(socket), peer, reserved)->Start();
}

void HttpServer::Impl::ArmTick() {
  // Draining is over when the last connection is: look often.
  tick_.expires_after(
      ToChrono(shared_.draining.load() ? absl::Milliseconds(5) : tick_period_ / Slices()));
  tick_.async_wait([this](const error_code&) { OnTick(); });
}

void HttpServer::Impl::OnTick() {
  const SteadyTime now = Now();
  const bool draining = shared_.draining.load();
  std::list<Connection*>& ticked = shared_.ticked;
  // Of those that are there now; a connection may close, and so remove, itself but no other.
  for (size_t left = draining ? ticked.size() : ticked.size() / static_cast<size_t>(Slices()) + 1;
       left > 0 && !ticked.empty(); --left) {
    const std::shared_ptr<Connection> connection = ticked.front()->shared_from_this();
    ticked.splice(ticked.end(), ticked, ticked.begin());
    if (draining && now >= drain_deadline_) {
      connection->Close(/*reset=*/false);
    } else {
      connection->OnTick(now);
    }
  }
  if (draining && shared_.connections.empty()) return;
  if (!draining && !accepting_) Accept();
  ArmTick();
}

std::vector<std::shared_ptr<Connection>> HttpServer::Impl::Connections() const {
  std::vector<std::shared_ptr<Connection>> all;
  all.reserve(shared_.connections.size());
  for (const auto& [raw, connection] : shared_.connections) all.push_back(connection);
  return all;
}

void HttpServer::Impl::BeginDrain(absl::Duration drain) {
  shared_.draining.store(true);
  error_code ec;  // The socket is ours and open; closing it cannot fail in a way that matters.
  acceptor_.close(ec);
  drain_deadline_ = Now() + ToChrono(std::max(drain, absl::ZeroDuration()));
  for (const auto& connection : Connections()) {
    if (connection->between_requests()) connection->Close(/*reset=*/false);
  }
  tick_.cancel();  // Runs OnTick, which arms it anew.
}

void HttpServer::Impl::Stop(absl::Duration drain) {
  if (!thread_.joinable()) {
    error_code ec;
    acceptor_.close(ec);
    return;
  }
  LYNX_CHECK(thread_.get_id() != std::this_thread::get_id());
  asio::post(shared_.io, [this, drain] { BeginDrain(drain); });
  thread_.join();
}

WriteBatch::WriteBatch() { ++thread_batch.depth; }

WriteBatch::~WriteBatch() {
  if (--thread_batch.depth > 0) return;
  for (Shared* shared : std::exchange(thread_batch.waiting, {})) shared->FlushWaiting();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { Stop(absl::ZeroDuration()); }
void HttpServer::Start() { impl_->Start(); }
void HttpServer::Stop(absl::Duration drain) { impl_->Stop(drain); }
uint16_t HttpServer::port() const { return impl_->port(); }
void HttpServer::SetTls(std::shared_ptr<const TlsContext> tls) { impl_->SetTls(std::move(tls)); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(const ServerOptions& options,
                                                               RequestHandler& handler) {
  const auto positive = [](absl::Duration d) {
    return d > absl::ZeroDuration() && d < absl::Hours(24 * 365);
  };
  if (options.max_connections == 0 || options.reserved_connections == 0) {
    return absl::InvalidArgumentError("HTTP server: connection limits must be at least 1");
  }
  if (options.max_header_bytes < 256 || options.max_header_bytes > (size_t{1} << 20) ||
      options.max_target_bytes < 64 || options.max_output_bytes == 0 ||
      options.socket_send_buffer_bytes <= 0) {
    return absl::InvalidArgumentError("HTTP server: a size limit is out of range");
  }
  if (!positive(options.header_timeout) || !positive(options.body_timeout) ||
      !positive(options.idle_timeout) || !positive(options.write_stall_timeout) ||
      !positive(options.linger_timeout)) {
    return absl::InvalidArgumentError("HTTP server: time limits must be above 0 and finite");
  }
  std::unique_ptr<Impl> impl;
  try {
    impl = std::make_unique<Impl>(options, handler);
  } catch (const boost::system::system_error& error) {  // No epoll or timer descriptor to be had.
    return absl::UnavailableError(absl::StrCat("HTTP server: ", error.what()));
  }
  LYNX_RETURN_IF_ERROR(impl->Listen());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

std::optional<HttpResponse> RequestHandler::RefuseEarly(const HttpRequest&) { return std::nullopt; }

bool RequestHandler::AnswersWhenFull(const HttpRequest& head) {
  if (head.method != "GET" && head.method != "HEAD") return false;
  constexpr std::string_view kPaths[] = {"/livez", "/readyz", "/startupz", "/health", "/metrics"};
  return std::find(std::begin(kPaths), std::end(kPaths), head.path) != std::end(kPaths);
}

std::string RequestHandler::ErrorBody(int status, std::string_view message) {
  return PlainErrorBody(status, message);
}

}  // namespace lynx::http
