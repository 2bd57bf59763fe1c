#include "services/router/front/access_control.h"

#include <sys/stat.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_response_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace lynx::router {
namespace {

using ::lynx::testing::FakeResponseWriter;
using ::lynx::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;

std::string LineFor(const std::string& name, std::string_view key, const std::string& limits = "") {
  const http::Sha256Digest digest = http::Sha256(key);
  return absl::StrCat(name, " ",
                      absl::BytesToHexString(absl::string_view(
                          reinterpret_cast<const char*>(digest.data()), digest.size())),
                      " ", limits, "\n");
}

// Notes whose requests came through.
class Behind final : public http::RequestHandler {
 public:
  void Handle(http::HttpRequest request, std::shared_ptr<http::ResponseWriter> writer) override {
    users.push_back(request.user);
    writer->Send({.status = 200, .headers = {}, .body = "in"}).IgnoreError();
  }
  std::vector<std::string> users;
};

class AccessControlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_THAT(Keep(LineFor("ann", "key-a") + LineFor("bob", "key-b")), IsOk());
  }

  absl::Status Keep(const std::string& text) {
    const auto file = folder_.Write("keys", text);
    EXPECT_EQ(chmod(file.c_str(), 0600), 0);
    return access_.Load(file);
  }

  // As the server calls: the head first, and the rest unless that was refused.
  http::HttpResponse Ask(const std::string& method, const std::string& path,
                         http::Headers headers = {}) {
    http::HttpRequest request{.method = method,
                              .path = path,
                              .query = {},
                              .headers = std::move(headers),
                              .body = {},
                              .peer = {}};
    if (auto refusal = access_.RefuseEarly(request); refusal.has_value()) return *refusal;
    auto writer = std::make_shared<FakeResponseWriter>();
    access_.Handle(std::move(request), writer);
    return {.status = writer->status(), .headers = {}, .body = writer->body()};
  }
  http::HttpResponse AskAs(const std::string& key, const std::string& method = "GET") {
    return Ask(method, "/v1/models", {{"authorization", "Bearer " + key}});
  }

  testing::TempDir folder_;
  telemetry::Registry registry_;
  ManualClock clock_;
  Behind behind_;
  RateLimiter limiter_;
  AccessControl access_{behind_, limiter_, clock_, registry_};
};

TEST_F(AccessControlTest, WhoHasAKeyComesInUnderItsName) {
  EXPECT_EQ(AskAs("key-a").status, 200);
  EXPECT_EQ(Ask("GET", "/", {{"authorization", "bearer key-b"}}).status, 200);
  EXPECT_EQ(Ask("GET", "/", {{"authorization", "BEARER   key-b"}}).status, 200);
  EXPECT_THAT(behind_.users, ElementsAre("ann", "bob", "bob"));
}

TEST_F(AccessControlTest, EverybodyElseHears401OnEveryPathAndMethod) {
  for (const char* path : {"/v1/models", "/v1/completions", "/v1/chat/completions", "/tokenize",
                           "/detokenize", "/metrics", "/nodes", "/openapi.json", "/unknown", "/",
                           "/livez/", "//livez", "/livez/x", "/LIVEZ"}) {
    for (const char* method : {"GET", "HEAD", "POST", "OPTIONS", "DELETE"}) {
      EXPECT_EQ(Ask(method, path).status, 401) << method << " " << path;
    }
  }
  for (const char* method : {"POST", "OPTIONS", "DELETE"}) {
    EXPECT_EQ(Ask(method, "/livez").status, 401) << method;
  }
  const std::vector<http::Headers> wrong = {
      {{"authorization", ""}},
      {{"authorization", "Bearer"}},
      {{"authorization", "Bearer "}},
      {{"authorization", "Bearer   "}},
      {{"authorization", "Bearer wrong"}},
      {{"authorization", "Bearer key-a "}},
      {{"authorization", "Basic key-a"}},
      {{"authorization", "key-a"}},
      {{"authorization", "Bearer key-a"}, {"authorization", "Bearer key-a"}},
      {{"authorization", "Bearer " + std::string(20'000, 'k')}},
      {{"x-api-key", "key-a"}},
      {{"proxy-authorization", "Bearer key-a"}}};
  for (const http::Headers& headers : wrong) {
    EXPECT_EQ(Ask("POST", "/v1/completions", headers).status, 401)
        << headers.front().second.substr(0, 40);
  }
  EXPECT_THAT(behind_.users, IsEmpty());
}

TEST_F(AccessControlTest, HealthIsOpenToAll) {
  for (const char* path : {"/livez", "/readyz", "/startupz", "/health"}) {
    EXPECT_EQ(Ask("GET", path).status, 200) << path;
    EXPECT_EQ(Ask("HEAD", path).status, 200) << path;
  }
}

TEST_F(AccessControlTest, TheRefusalIsOpenAisAndDoesNotRepeatTheKey) {
  const http::HttpResponse refusal = AskAs("sk-not-mine");
  EXPECT_THAT(refusal.Header("www-authenticate"), Optional(std::string_view("Bearer")));
  EXPECT_TRUE(refusal.Header("x-request-id").has_value());
  EXPECT_THAT(refusal.body, Not(HasSubstr("sk-not-mine")));
  const auto error = nlohmann::json::parse(refusal.body)["error"];
  EXPECT_EQ(error["code"], "invalid_api_key");
  EXPECT_EQ(error["type"], "invalid_request_error");
}

TEST_F(AccessControlTest, ANewFileCountsAtOnceAndABadOneNotAtAll) {
  EXPECT_FALSE(Keep("bob key-b\n").ok());
  EXPECT_EQ(AskAs("key-a").status, 200);
  EXPECT_FALSE(Keep("").ok());
  EXPECT_EQ(AskAs("key-a").status, 200);
  ASSERT_THAT(Keep(LineFor("bob", "key-b") + LineFor("bob", "key-c")), IsOk());
  EXPECT_EQ(AskAs("key-a").status, 401);
  EXPECT_EQ(AskAs("key-c").status, 200);
  const std::string page = registry_.Render();
  EXPECT_THAT(page, HasSubstr("lynx_router_api_keys 2\n"));
  EXPECT_THAT(page, HasSubstr("lynx_router_api_key_loads_total{result=\"failed\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("lynx_router_api_key_loads_total{result=\"ok\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("lynx_router_denied_requests_total{reason=\"unknown_key\"} 1\n"));
}

TEST_F(AccessControlTest, NobodyComesInWithoutALoadedFile) {
  telemetry::Registry registry;
  AccessControl access(behind_, limiter_, clock_, registry);
  const http::HttpRequest request{.method = "GET",
                                  .path = "/v1/models",
                                  .query = {},
                                  .headers = {{"authorization", "Bearer key-a"}},
                                  .body = {},
                                  .peer = {}};
  ASSERT_TRUE(access.RefuseEarly(request).has_value());
  EXPECT_EQ(access.RefuseEarly(request)->status, 401);
}

TEST_F(AccessControlTest, PostsOverTheLimitHear429UntilItIsThereAgain) {
  ASSERT_THAT(Keep(LineFor("ann", "key-a", "requests-per-minute=2") +
                   LineFor("ann", "key-2", "requests-per-minute=2") + LineFor("bob", "key-b")),
              IsOk());
  EXPECT_EQ(AskAs("key-a", "POST").status, 200);
  EXPECT_EQ(AskAs("key-2", "POST").status, 200) << "keys of one name share its limits";
  const http::HttpResponse refusal = AskAs("key-a", "POST");
  EXPECT_EQ(refusal.status, 429);
  EXPECT_THAT(refusal.Header("retry-after"), Optional(std::string_view("30")));
  EXPECT_THAT(refusal.Header("x-ratelimit-limit-requests"), Optional(std::string_view("2")));
  EXPECT_THAT(refusal.Header("x-ratelimit-remaining-requests"), Optional(std::string_view("0")));
  EXPECT_THAT(refusal.Header("x-ratelimit-reset-requests"), Optional(std::string_view("1m")));
  const auto error = nlohmann::json::parse(refusal.body)["error"];
  EXPECT_EQ(error["code"], "rate_limit_exceeded");
  EXPECT_EQ(error["type"], "requests");
  EXPECT_EQ(AskAs("key-a", "GET").status, 200) << "only POSTs count";
  EXPECT_EQ(AskAs("key-b", "POST").status, 200);
  clock_.Advance(absl::Seconds(29));
  EXPECT_EQ(AskAs("key-a", "POST").status, 429);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(AskAs("key-a", "POST").status, 200);
}

}  // namespace
}  // namespace lynx::router
