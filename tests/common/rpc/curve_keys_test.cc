#include "common/rpc/curve_keys.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/rpc/control_keys.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace lynx::rpc {
namespace {

using ::lynx::testing::StatusIs;
using ::lynx::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A secret certificate with that mode.
std::filesystem::path WriteSecret(const TempDir& folder, const std::string& content, mode_t mode) {
  const std::filesystem::path file = folder.Write("own.key_secret", content);
  EXPECT_EQ(chmod(file.c_str(), mode), 0);
  return file;
}

TEST(CurveKeysTest, APairGoesThroughItsFiles) {
  const TempDir folder;
  const CurvePair pair = NewCurvePair();
  const auto read = LoadCurvePair(WriteSecret(folder, SecretCertificate(pair), 0600));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->public_key, pair.public_key);
  EXPECT_EQ(read->secret_key, pair.secret_key);
  EXPECT_THAT(PublicCertificate(pair), Not(HasSubstr(pair.secret_key)));
}

// As CZMQ writes it, with metadata that may be called anything but a key.
TEST(CurveKeysTest, CertificatesOfOtherToolsAreRead) {
  const auto pair = ParseCertificate(
      "#   ****  Generated on 2026-12-01 by CZMQ  ****\r\n"
      "metadata\r\n    name = \"router = 1\"\r\ncurve\r\n"
      "    public-key = \"E*c4*H#>f1gvJ4U5WLw/I^b^-0+xW{?1r!E]+x!c\"\r\n");
  ASSERT_TRUE(pair.ok()) << pair.status();
  EXPECT_EQ(pair->public_key, "E*c4*H#>f1gvJ4U5WLw/I^b^-0+xW{?1r!E]+x!c");
  EXPECT_EQ(pair->secret_key, "");
}

TEST(CurveKeysTest, ASecretThatOthersMayReadIsRefusedWithItsMode) {
  const TempDir folder;
  const std::string text = SecretCertificate(NewCurvePair());
  for (const mode_t mode : {0604, 0602, 0644, 0660, 0620, 0777}) {
    const auto file = WriteSecret(folder, text, mode);
    EXPECT_THAT(
        LoadCurvePair(file).status(),
        StatusIs(absl::StatusCode::kPermissionDenied,
                 AllOf(HasSubstr(file.string()),
                       HasSubstr(absl::StrCat("mode 0", mode >> 6, (mode >> 3) & 7, mode & 7)))));
  }
}

// What Kubernetes mounts is root's, and a group of the process's own may read it.
TEST(CurveKeysTest, AGroupMayReadWhatIsRootsAndNothingElse) {
  const TempDir folder;
  const auto file = WriteSecret(folder, SecretCertificate(NewCurvePair()), 0440);
  if (geteuid() != 0) {
    EXPECT_THAT(LoadCurvePair(file).status(), StatusIs(absl::StatusCode::kPermissionDenied));
    return;
  }
  EXPECT_TRUE(LoadCurvePair(file).ok());
  ASSERT_EQ(chown(file.c_str(), 65534, 65534), 0);
  EXPECT_THAT(LoadCurvePair(file).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("mode 0440")));
}

TEST(CurveKeysTest, WhatIsNoPairIsRefusedAndNotRepeated) {
  const TempDir folder;
  const CurvePair pair = NewCurvePair();
  const CurvePair other = NewCurvePair();
  const std::string secret = SecretCertificate(pair);
  for (const std::string& text :
       {std::string(), PublicCertificate(pair), std::string("{\"json\": 1}"),
        SecretCertificate({.public_key = other.public_key, .secret_key = pair.secret_key}),
        secret + "    secret-key = \"" + pair.secret_key + "\"\n",
        secret.substr(0, secret.size() - 4) + "\"\n", std::string(100'000, 'x')}) {
    const auto file = WriteSecret(folder, text, 0600);
    EXPECT_THAT(
        LoadCurvePair(file).status(),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr(file.string()), Not(HasSubstr(pair.secret_key.substr(0, 20))))))
        << text.substr(0, 300);
  }
  EXPECT_THAT(LoadCurvePair(folder.path() / "none").status(),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(CurveKeysTest, AFolderOfPublicKeysIsReadAndSecretsInItAreLeftAlone) {
  const TempDir folder;
  const CurvePair a = NewCurvePair();
  const CurvePair b = NewCurvePair();
  folder.Write("a.key", PublicCertificate(a));
  folder.Write("again.key", PublicCertificate(a));
  folder.Write("b.key", PublicCertificate(b));
  folder.Write("own.key_secret", "not looked at");
  folder.Write("README", "nor this");
  const auto keys = LoadCurvePeers(folder.path());
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(*keys, (std::set<std::string>{a.public_key, b.public_key}));
  folder.Write("broken.key", "curve\n");
  EXPECT_THAT(LoadCurvePeers(folder.path()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("broken.key")));
}

TEST(CurveKeysTest, AFolderWithoutKeysWouldLeaveNobody) {
  const TempDir folder;
  EXPECT_THAT(LoadCurvePeers(folder.path()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(folder.path().string())));
  EXPECT_THAT(LoadCurvePeers(folder.path() / "none").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

TEST(ControlKeysTest, BothFilesOrNone) {
  telemetry::Registry registry;
  EXPECT_THAT(ControlKeys::Load("file", "", registry).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--control-peers")));
  telemetry::Registry other;
  const auto plain = ControlKeys::Load("", "", other);
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE((*plain)->keys().has_value());
  EXPECT_THAT(other.Render(),
              AllOf(HasSubstr("lynx_control_curve 0"),
                    HasSubstr("lynx_control_key_loads_total{result=\"failed\"} 0")));
}

}  // namespace
}  // namespace lynx::rpc
