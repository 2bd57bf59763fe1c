#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "common/http/tls.h"

struct ssl_st;  // OpenSSL's SSL.

namespace lynx::http {

// The server's side of TLS on a connected socket that does not block. The handshake is part of the
// first reads. For HttpServer; not thread-safe.
class TlsStream {
 public:
  enum class Result {
    kDone,        // `bytes` of them, at least one.
    kWantsRead,   // Nothing before the socket has more to read,
    kWantsWrite,  // or takes more.
    kEnd,         // The other end sends no more.
    kFailed,      // Not TLS, no common version or cipher, broken off: close.
  };
  struct Outcome {
    Result result;
    size_t bytes = 0;
  };

  // `socket` is borrowed.
  TlsStream(const TlsContext& context, int socket);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // Reads give all that has been decrypted when `into` has room for a record of 16 KiB: nothing
  // waits inside then. kWantsRead of a write stands for a failure: the handshake is over by then.
  Outcome Read(std::span<char> into);
  // After kWantsWrite call again with at least the same bytes.
  Outcome Write(std::string_view data);

  // Nothing can be written before.
  bool established() const;
  // Tells the other end that this was all, if the socket takes that at once.
  void SayGoodbye();

 private:
  Outcome OutcomeOf(int returned, size_t bytes);

  ssl_st* ssl_;
  bool broken_ = false;  // Nothing may be said any more.
};

}  // namespace lynx::http
