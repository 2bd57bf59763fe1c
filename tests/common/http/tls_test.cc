#include "common/http/tls.h"

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/http/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/http/raw_client.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace lynx::http {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::RawClient;
using ::lynx::testing::StatusIs;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A certificate that signs itself, and its key, in PEM.
struct Identity {
  std::string cert;
  std::string key;
};

std::string Take(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

Identity MakeIdentity(const std::string& name, long valid_seconds = 3600) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* cert = X509_new();
  X509_set_version(cert, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert), 0);
  X509_gmtime_adj(X509_getm_notAfter(cert), valid_seconds);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(cert, X509_get_subject_name(cert));
  X509_set_pubkey(cert, key);
  X509_sign(cert, key, EVP_sha256());
  BIO* cert_pem = BIO_new(BIO_s_mem());
  BIO* key_pem = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(cert_pem, cert);
  PEM_write_bio_PrivateKey(key_pem, key, nullptr, nullptr, 0, nullptr, nullptr);
  X509_free(cert);
  EVP_PKEY_free(key);
  return {Take(cert_pem), Take(key_pem)};
}

// A client that believes any certificate. Blocks; the server's deadlines end what hangs.
class TlsClient {
 public:
  explicit TlsClient(uint16_t port, int newest = 0, const char* protocol = nullptr)
      : context_(SSL_CTX_new(TLS_client_method())), ssl_(nullptr) {
    if (newest != 0) {
      SSL_CTX_set_min_proto_version(context_, 0);
      SSL_CTX_set_max_proto_version(context_, newest);
    }
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ssl_ = SSL_new(context_);
    if (protocol != nullptr) {
      const std::string offered =
          static_cast<char>(std::string(protocol).size()) + std::string(protocol);
      SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(offered.data()),
                          static_cast<unsigned>(offered.size()));
    }
    SSL_set_fd(ssl_, fd_);
    connected_ = SSL_connect(ssl_) == 1;
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
    close(fd_);
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool connected() const { return connected_; }
  std::string version() const { return SSL_get_version(ssl_); }
  std::string peer_name() const {
    X509* cert = SSL_get1_peer_certificate(ssl_);
    char name[64] = "";
    X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, name, sizeof(name));
    X509_free(cert);
    return name;
  }
  bool Send(const std::string& data) {
    return SSL_write(ssl_, data.data(), static_cast<int>(data.size())) ==
           static_cast<int>(data.size());
  }
  std::string Read(size_t bytes) {
    std::string out;
    char chunk[16384];
    while (out.size() < bytes) {
      const int n = SSL_read(ssl_, chunk, sizeof(chunk));
      if (n <= 0) break;
      out.append(chunk, static_cast<size_t>(n));
    }
    return out;
  }
  // What comes until the server says that it was all. `*proper`: it did say so.
  std::string ReadToEnd(bool* proper) {
    std::string out = Read(std::string::npos);
    *proper = (SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0;
    return out;
  }
  int fd() const { return fd_; }

 private:
  SSL_CTX* const context_;
  SSL* ssl_;
  int fd_ = -1;
  bool connected_ = false;
};

class EchoHandler final : public RequestHandler {
 public:
  void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override {
    writer->Send({.status = 200, .headers = {}, .body = std::move(request.body)}).IgnoreError();
  }
};

class TlsTest : public ::testing::Test {
 protected:
  std::shared_ptr<const TlsContext> Keep(const Identity& identity) {
    const std::string cert = folder_.Write("cert.pem", identity.cert);
    const std::string key = folder_.Write("key.pem", identity.key);
    EXPECT_EQ(chmod(key.c_str(), 0600), 0);
    auto loaded = TlsContext::Load(cert, key);
    EXPECT_THAT(loaded, IsOk());
    return loaded.ok() ? *loaded : nullptr;
  }
  void StartServer() {
    options_.address = "127.0.0.1";
    options_.registry = &registry_;
    options_.tls = Keep(MakeIdentity("first"));
    auto server = HttpServer::Create(options_, handler_);
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
    server_->Start();
  }
  uint16_t port() { return server_->port(); }

  static std::string Post(const std::string& body, const std::string& more = "") {
    return absl::StrCat("POST /echo HTTP/1.1\r\nHost: h\r\n", more, "Content-Length: ", body.size(),
                        "\r\n\r\n", body);
  }

  testing::TempDir folder_;
  telemetry::Registry registry_;
  ServerOptions options_;
  EchoHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(TlsTest, BodiesOfManyRecordsGoBothWays) {
  options_.socket_send_buffer_bytes = 16 * 1024;
  StartServer();
  std::string body(3'000'000, '\0');
  for (size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>('a' + i * i % 23);
  TlsClient client(port());
  ASSERT_TRUE(client.connected());
  EXPECT_EQ(client.version(), "TLSv1.3");
  for (int round = 0; round < 2; ++round) {  // On one connection.
    ASSERT_TRUE(client.Send(Post(body)));
    std::string head = client.Read(1);
    while (head.find("\r\n\r\n") == std::string::npos) head += client.Read(1);
    const size_t end = head.find("\r\n\r\n") + 4;
    const std::string echoed = head.substr(end) + client.Read(body.size() - (head.size() - end));
    EXPECT_TRUE(echoed == body) << echoed.size();
  }
}

TEST_F(TlsTest, OldVersionsAndOtherProtocolsAreRefused) {
  StartServer();
  EXPECT_EQ(TlsClient(port(), TLS1_2_VERSION).version(), "TLSv1.2");
  EXPECT_FALSE(TlsClient(port(), TLS1_1_VERSION).connected());
  EXPECT_TRUE(TlsClient(port(), 0, "http/1.1").connected());
  EXPECT_FALSE(TlsClient(port(), 0, "h2").connected());
}

TEST_F(TlsTest, WhatIsNoTlsIsClosedAndHurtsNobody) {
  StartServer();
  TlsClient other(port());
  for (const char* data :
       {"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n", "\x16\x03\x01\xff\xff garbage", "\n"}) {
    RawClient plain(port());
    plain.Send(data);
    plain.ShutdownWrite();
    bool closed = false;
    plain.ReadToEnd(&closed);
    EXPECT_TRUE(closed) << data;
  }
  ASSERT_TRUE(other.Send(Post("x", "Connection: close\r\n")));
  bool proper = false;
  EXPECT_THAT(other.ReadToEnd(&proper), EndsWith("\r\n\r\nx"));
  EXPECT_TRUE(proper) << "the end is said, not only cut";
}

TEST_F(TlsTest, AHandshakeThatDoesNotComeIsGivenUp) {
  options_.header_timeout = absl::Milliseconds(100);
  StartServer();
  RawClient silent(port());
  bool closed = false;
  EXPECT_EQ(silent.ReadToEnd(&closed), "") << "no HTTP where no TLS is yet";
  EXPECT_TRUE(closed);
  TlsClient slow(port());
  ASSERT_TRUE(slow.connected());
  ASSERT_TRUE(slow.Send("GET / HTTP/1.1\r\nHo"));
  bool proper = false;
  EXPECT_THAT(slow.ReadToEnd(&proper), StartsWith("HTTP/1.1 408"));
}

TEST_F(TlsTest, NewCertificatesAreForNewConnections) {
  StartServer();
  TlsClient before(port());
  EXPECT_EQ(before.peer_name(), "first");
  server_->SetTls(Keep(MakeIdentity("second")));
  // Set by the server's thread before it accepts what connects after this.
  std::string name;
  for (int i = 0; i < 1000 && name != "second"; ++i) name = TlsClient(port()).peer_name();
  EXPECT_EQ(name, "second");
  ASSERT_TRUE(before.Send(Post("still", "Connection: close\r\n")));
  bool proper = false;
  EXPECT_THAT(before.ReadToEnd(&proper), EndsWith("still"));
}

TEST_F(TlsTest, FilesThatWillNotDoAreNamed) {
  const Identity one = MakeIdentity("one", 7200);
  const Identity two = MakeIdentity("two");
  const std::string cert = folder_.Write("cert.pem", one.cert);
  const std::string key = folder_.Write("key.pem", one.key);
  const std::string other_key = folder_.Write("other.pem", two.key);
  const std::string junk = folder_.Write("junk.pem", "junk");
  for (const std::string& file : {key, other_key, junk}) ASSERT_EQ(chmod(file.c_str(), 0640), 0);
  const auto loaded = TlsContext::Load(cert, key);
  ASSERT_THAT(loaded, IsOk());
  EXPECT_NEAR(absl::ToDoubleSeconds((*loaded)->expires() - absl::Now()), 7200, 60);

  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(TlsContext::Load(cert, other_key), StatusIs(kInvalid, HasSubstr("other.pem")));
  EXPECT_THAT(TlsContext::Load(cert, junk), StatusIs(kInvalid, HasSubstr("junk.pem")));
  EXPECT_THAT(TlsContext::Load(junk, key), StatusIs(kInvalid, HasSubstr("junk.pem")));
  EXPECT_THAT(TlsContext::Load(cert, "/nowhere"), StatusIs(kInvalid, HasSubstr("/nowhere")));
  ASSERT_EQ(chmod(key.c_str(), 0644), 0);
  EXPECT_THAT(TlsContext::Load(cert, key),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("key.pem")));
}

}  // namespace
}  // namespace lynx::http
