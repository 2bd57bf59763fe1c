#include "common/http/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>

#include "common/base/check.h"

namespace lynx::http {
namespace {

// The library's own socket BIO writes with write(), which raises SIGPIPE once the client has left.
int Descriptor(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

int SendSome(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(Descriptor(bio), data, static_cast<size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int ReceiveSome(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = recv(Descriptor(bio), data, static_cast<size_t>(size), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO* MakeBio(int socket) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "lynx socket");
    LYNX_CHECK(made != nullptr);
    BIO_meth_set_write(made, SendSome);
    BIO_meth_set_read(made, ReceiveSome);
    BIO_meth_set_ctrl(made, Control);
    return made;
  }();
  BIO* bio = BIO_new(method);
  LYNX_CHECK(bio != nullptr);
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  BIO_set_init(bio, 1);
  return bio;
}

}  // namespace

TlsStream::TlsStream(const TlsContext& context, int socket) : ssl_(SSL_new(context.context())) {
  LYNX_CHECK(ssl_ != nullptr);  // Out of memory.
  BIO* bio = MakeBio(socket);
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_accept_state(ssl_);
}

TlsStream::~TlsStream() { SSL_free(ssl_); }

TlsStream::Outcome TlsStream::Read(std::span<char> into) {
  ERR_clear_error();
  size_t bytes = 0;
  const int returned = SSL_read_ex(ssl_, into.data(), into.size(), &bytes);
  return OutcomeOf(returned, bytes);
}

TlsStream::Outcome TlsStream::Write(std::string_view data) {
  ERR_clear_error();
  size_t bytes = 0;
  const int returned = SSL_write_ex(ssl_, data.data(), data.size(), &bytes);
  return OutcomeOf(returned, bytes);
}

TlsStream::Outcome TlsStream::OutcomeOf(int returned, size_t bytes) {
  if (returned == 1) return {Result::kDone, bytes};
  switch (SSL_get_error(ssl_, returned)) {
    case SSL_ERROR_WANT_READ:
      return {Result::kWantsRead};
    case SSL_ERROR_WANT_WRITE:
      return {Result::kWantsWrite};
    case SSL_ERROR_ZERO_RETURN:
      return {Result::kEnd};
    default:
      broken_ = true;
      ERR_clear_error();
      return {Result::kFailed};
  }
}

bool TlsStream::established() const { return SSL_is_init_finished(ssl_) == 1; }

void TlsStream::SayGoodbye() {
  if (broken_ || !established()) return;
  ERR_clear_error();
  SSL_shutdown(ssl_);
  ERR_clear_error();
}

}  // namespace lynx::http
