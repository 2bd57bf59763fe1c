#include "common/model/sha256.h"

#include <string>

#include "gtest/gtest.h"

namespace lynx::model {
namespace {

std::string Digest(std::string_view text) {
  Sha256 hash;
  hash.Update(text);
  return hash.HexDigest();
}

// The examples of FIPS 180-2, appendix B.
TEST(Sha256Test, MatchesThePublishedExamples) {
  EXPECT_EQ(Digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Digest(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, PiecesDoNotMatter) {
  for (size_t size : {55u, 56u, 63u, 64u, 65u, 200u}) {
    const std::string text(size, 'x');
    Sha256 hash;
    for (char c : text) hash.Update(std::string_view(&c, 1));
    EXPECT_EQ(hash.HexDigest(), Digest(text)) << size;
  }
}

}  // namespace
}  // namespace lynx::model
