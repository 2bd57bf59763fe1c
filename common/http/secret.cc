#include "common/http/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "common/base/check.h"

namespace lynx::http {

Sha256Digest Sha256(std::string_view text) {
  Sha256Digest digest;
  unsigned int size = 0;
  LYNX_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) ==
                 1 &&
             size == digest.size());
  return digest;
}

bool EqualInConstantTime(const Sha256Digest& a, const Sha256Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace lynx::http
