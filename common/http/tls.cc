#include "common/http/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <array>
#include <ctime>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace lynx::http {
namespace {

// The library's last words, of this thread; forgets them.
std::string LastError() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  if (code == 0) return "malformed";
  std::array<char, 256> text{};
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

absl::Status Fails(const std::string& file) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", LastError()));
}

// HTTP/1.1 where the client offers a choice; a client that offers only others hears so.
int SelectProtocol(SSL*, const unsigned char** out, unsigned char* out_size,
                   const unsigned char* offered, unsigned int offered_size, void*) {
  constexpr std::string_view kWanted = "http/1.1";
  for (unsigned int at = 0; at < offered_size; at += 1u + offered[at]) {
    if (at + 1u + offered[at] > offered_size) break;
    const std::string_view name(reinterpret_cast<const char*>(offered + at + 1), offered[at]);
    if (name != kWanted) continue;
    *out = offered + at + 1;
    *out_size = offered[at];
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::Load(const std::string& cert_file,
                                                                   const std::string& key_file) {
  struct stat status;
  if (stat(key_file.c_str(), &status) == 0 && (status.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(key_file, ": anybody may read or write it; chmod o-rw ", key_file));
  }
  ERR_clear_error();
  std::shared_ptr<TlsContext> made(new TlsContext);
  made->context_ = SSL_CTX_new(TLS_server_method());
  SSL_CTX* const context = made->context_;
  if (context == nullptr) return absl::InternalError("TLS: " + LastError());
  if (SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1) {
    return absl::InternalError("TLS: " + LastError());
  }
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                   SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
  // What waits to be sent may move in memory; idle connections keep no buffers.
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(context, SelectProtocol, nullptr);
  // A key with a pass phrase fails, where the library would ask at the terminal.
  SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return 0; });

  if (SSL_CTX_use_certificate_chain_file(context, cert_file.c_str()) != 1) return Fails(cert_file);
  if (SSL_CTX_use_PrivateKey_file(context, key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return Fails(key_file);
  }
  std::tm ends{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(SSL_CTX_get0_certificate(context)), &ends) != 1) {
    return Fails(cert_file);
  }
  made->expires_ = absl::FromTM(ends, absl::UTCTimeZone());
  return std::shared_ptr<const TlsContext>(std::move(made));
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

}  // namespace lynx::http
