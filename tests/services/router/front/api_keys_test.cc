#include "services/router/front/api_keys.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace lynx::router {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointee;

std::string HexOf(std::string_view key) {
  const http::Sha256Digest digest = http::Sha256(key);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

absl::StatusOr<ApiKeys> Parse(const std::string& text) { return ApiKeys::Parse(text, "keys"); }

TEST(ApiKeysTest, AKeyIsFoundByItsHashAsSha256sumPrintsIt) {
  const auto keys = Parse("ann 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae\n");
  ASSERT_THAT(keys, IsOk());
  EXPECT_THAT(keys->FindName("foo"), Pointee(std::string("ann")));
  EXPECT_EQ(keys->FindName("fo"), nullptr);
  EXPECT_EQ(keys->FindName("foo "), nullptr);
  EXPECT_EQ(keys->FindName(""), nullptr);
  EXPECT_EQ(keys->FindName("2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"),
            nullptr)
      << "the file's content is no key";
}

TEST(ApiKeysTest, ANameMayHaveSeveralKeysAndLimits) {
  const auto keys = Parse(absl::StrCat(
      "# who      hash\n\n  ann ", HexOf("old"), " requests-per-minute=60 tokens-per-minute=9000\n",
      "ann\t", HexOf("new"), "\ttokens-per-minute=9000  requests-per-minute=60 # from May on\r\n",
      "bob ", HexOf("b")));
  ASSERT_THAT(keys, IsOk());
  EXPECT_EQ(keys->size(), 3u);
  EXPECT_THAT(keys->FindName("old"), Pointee(std::string("ann")));
  EXPECT_THAT(keys->FindName("new"), Pointee(std::string("ann")));
  EXPECT_THAT(keys->FindName("b"), Pointee(std::string("bob")));
  EXPECT_EQ(keys->limits().at("ann"),
            (RateLimits{.requests_per_minute = 60, .tokens_per_minute = 9000}));
  EXPECT_EQ(keys->limits().at("bob"), RateLimits());
}

TEST(ApiKeysTest, FoundNamesStayWhenTheKeysMove) {
  auto parsed = Parse("ann " + HexOf("a"));
  ASSERT_THAT(parsed, IsOk());
  const ApiKeys moved = *std::move(parsed);
  EXPECT_THAT(moved.FindName("a"), Pointee(std::string("ann")));
}

TEST(ApiKeysTest, AMalformedLineIsNamedAndNeverQuoted) {
  const std::string good = "ann " + HexOf("a") + "\n";
  for (const std::string& bad : std::vector<std::string>{
           "bob", "bob sk-my-plain-key", "b/b " + HexOf("b"), "bob " + HexOf("b").substr(1),
           "bob " + HexOf("b") + " requests-per-minute=0",
           "bob " + HexOf("b") + " requests-per-minute=many",
           "bob " + HexOf("b") + " requests-per-minute=1 requests-per-minute=1",
           "bob " + HexOf("b") + " rpm=1", "bob " + HexOf("a"),
           "ann " + HexOf("b") + " tokens-per-minute=1", std::string(65, 'n') + " " + HexOf("b")}) {
    const auto keys = Parse(good + bad + "\n");
    EXPECT_THAT(keys, StatusIs(absl::StatusCode::kInvalidArgument)) << bad;
    EXPECT_THAT(std::string(keys.status().message()), HasSubstr("keys:2: ")) << bad;
    EXPECT_THAT(std::string(keys.status().message()), Not(HasSubstr("sk-my-plain-key")));
  }
}

TEST(ApiKeysTest, NoKeyAtAllIsAnError) {
  EXPECT_THAT(Parse(""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Parse("# ann comes in May\n"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ApiKeysTest, AFileThatAnybodyMayReadIsRefused) {
  const testing::TempDir folder;
  const std::filesystem::path file = folder.path() / "keys";
  EXPECT_THAT(LoadApiKeys(file), StatusIs(absl::StatusCode::kNotFound));
  std::ofstream(file) << "ann " << HexOf("a") << "\n";
  for (const mode_t mode : {0644, 0604, 0602}) {
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    EXPECT_THAT(LoadApiKeys(file), StatusIs(absl::StatusCode::kPermissionDenied)) << mode;
  }
  ASSERT_EQ(chmod(file.c_str(), 0640), 0);
  const auto keys = LoadApiKeys(file);
  ASSERT_THAT(keys, IsOk());
  EXPECT_THAT(keys->FindName("a"), Pointee(std::string("ann")));
}

}  // namespace
}  // namespace lynx::router
