#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX, which stays inside.

namespace lynx::http {

// The certificate and key that a server shows, and how it speaks: TLS 1.2 or 1.3, HTTP/1.1 within.
// Immutable; thread-safe.
class TlsContext {
 public:
  // Reads PEM files: the server's certificate followed by those between it and the one that clients
  // trust, and its key, which has no pass phrase.
  //   InvalidArgument   a file is missing or malformed, or the two do not belong together; names
  //   it. PermissionDenied  others than the key's owner and group may read or write it.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> Load(const std::string& cert_file,
                                                                const std::string& key_file);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  absl::Time expires() const { return expires_; }  // The server's certificate.
  ssl_ctx_st* context() const { return context_; }

 private:
  TlsContext() = default;

  ssl_ctx_st* context_ = nullptr;
  absl::Time expires_;
};

}  // namespace lynx::http
