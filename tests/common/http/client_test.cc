#include "common/http/client.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/http/routes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/http/raw_client.h"
#include "tests/support/status_matchers.h"

namespace lynx::http {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kPatience = absl::Seconds(20);

TEST(ParseUrlTest, TakesWhatItServes) {
  struct Case {
    const char* url;
    const char* host;
    int port;
    const char* target;
  };
  for (const Case& c :
       {Case{"http://h", "h", 80, "/"}, Case{"http://h:8080/v1?x=1#frag", "h", 8080, "/v1?x=1"},
        Case{"http://[::1]:9/", "::1", 9, "/"}, Case{"http://[::1]", "::1", 80, "/"},
        Case{"http://h?q", "h", 80, "/?q"}}) {
    const auto url = ParseUrl(c.url);
    ASSERT_THAT(url, IsOk()) << c.url;
    EXPECT_EQ(url->host, c.host) << c.url;
    EXPECT_EQ(url->port, c.port) << c.url;
    EXPECT_EQ(url->target, c.target) << c.url;
  }
}

TEST(ParseUrlTest, RefusesTheRest) {
  for (const char* url :
       {"", "h:80", "https://h", "http://", "http://:80", "http://h:", "http://h:0",
        "http://h:65536", "http://h:8x", "http://h:-1", "http://[::1", "http://[::1]x:1",
        "http://user@h", "http://h/a b", "http://h/\r\nX: y"}) {
    EXPECT_THAT(ParseUrl(url), StatusIs(absl::StatusCode::kInvalidArgument)) << url;
  }
}

// A server whose pages behave as their names say.
class HttpClientTest : public ::testing::Test {
 protected:
  using Writer = std::shared_ptr<ResponseWriter>;

  void SetUp() override {
    routes_.Add("GET", "/hello", [](HttpRequest, Writer writer) {
      writer->Send({.status = 200, .headers = {{"X-A", "b"}}, .body = "hello"}).IgnoreError();
    });
    routes_.Add("POST", "/echo", [](HttpRequest request, Writer writer) {
      writer->Send({.status = 200, .headers = {}, .body = request.body}).IgnoreError();
    });
    routes_.Add("POST", "/events", [](HttpRequest, Writer writer) {
      writer->StartStream(200, {{"Content-Type", "text/event-stream; charset=utf-8"}})
          .IgnoreError();
      writer->Write(FormatSseComment("waiting")).IgnoreError();
      for (const char* data : {"one", "two\nlines", "[DONE]"}) {
        writer->Write(FormatSseData(data)).IgnoreError();
      }
      writer->End().IgnoreError();
    });
    routes_.Add("POST", "/cut", [](HttpRequest, Writer writer) {
      writer->StartStream(200, {{"Content-Type", kSseContentType}}).IgnoreError();
      writer->Write(FormatSseData("one")).IgnoreError();
      writer->Abort();
    });
    routes_.Add("POST", "/endless", [this](HttpRequest, Writer writer) {
      writer->StartStream(200, {{"Content-Type", kSseContentType}}).IgnoreError();
      writer->Write(FormatSseData("one")).IgnoreError();
      held_.push_back(writer);
    });
    ServerOptions options;
    options.address = "127.0.0.1";
    options.max_body_bytes = 4 << 20;
    auto server = HttpServer::Create(options, routes_);
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
    server_->Start();
  }
  void TearDown() override { server_->Stop(absl::ZeroDuration()); }

  std::string Url(const std::string& path) {
    return "http://127.0.0.1:" + std::to_string(server_->port()) + path;
  }
  absl::StatusOr<HttpResponse> Events(const std::string& path,
                                      HttpClient::StreamTimeouts timeouts = {.total = kPatience}) {
    return client_.PostForEvents(Url(path), {}, "{}", timeouts, [&](const SseEvent& event) {
      events_.push_back(event.data);
      return event.data != stop_at_;
    });
  }

  Routes routes_;
  std::vector<Writer> held_;  // The server's thread only.
  std::unique_ptr<HttpServer> server_;
  HttpClient client_;
  std::vector<std::string> events_;
  std::string stop_at_ = "never";
};

TEST_F(HttpClientTest, GetsAndPosts) {
  const auto hello = client_.Get(Url("/hello"), {}, kPatience);
  ASSERT_THAT(hello, IsOk());
  EXPECT_EQ(hello->status, 200);
  EXPECT_EQ(hello->body, "hello");
  EXPECT_EQ(hello->Header("x-a"), "b");
  const std::string body(3'000'000, 'x');
  const auto echo = client_.Post(Url("/echo"), {{"Content-Type", "text/plain"}}, body, kPatience);
  ASSERT_THAT(echo, IsOk());
  EXPECT_EQ(echo->body, body);
}

TEST_F(HttpClientTest, AnErrorStatusIsAnAnswer) {
  const auto missing = client_.Get(Url("/missing"), {}, kPatience);
  ASSERT_THAT(missing, IsOk());
  EXPECT_EQ(missing->status, 404);
  const auto large = client_.Post(Url("/echo"), {}, std::string(20 << 20, 'x'), kPatience);
  ASSERT_THAT(large, IsOk()) << "refused while sending, and the answer is seen";
  EXPECT_EQ(large->status, 413);
}

TEST_F(HttpClientTest, HandsOverEachEvent) {
  const auto response = Events("/events");
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->status, 200);
  EXPECT_THAT(events_, ElementsAre("one", "two\nlines", "[DONE]"));
}

TEST_F(HttpClientTest, AStreamCutShortIsAnErrorAfterItsEvents) {
  EXPECT_THAT(Events("/cut"), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(events_, ElementsAre("one"));
}

TEST_F(HttpClientTest, AnAnswerThatIsNoStreamIsItsBody) {
  const auto response = Events("/missing");
  ASSERT_THAT(response, IsOk());
  EXPECT_EQ(response->status, 404);
  EXPECT_THAT(response->body, HasSubstr("there is nothing at /missing"));
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(HttpClientTest, TheReaderMayStopAnEndlessStream) {
  stop_at_ = "one";
  const auto response = Events("/endless");
  ASSERT_THAT(response, IsOk());
  EXPECT_THAT(events_, ElementsAre("one"));
}

TEST_F(HttpClientTest, EveryWaitEnds) {
  EXPECT_THAT(Events("/endless", {.total = kPatience, .silence = absl::Milliseconds(50)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(Events("/endless", {.total = absl::Milliseconds(50)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(HttpClientTest, AResponseLargerThanTheLimitIsRefused) {
  const HttpClient small({.max_response_bytes = 3});
  EXPECT_THAT(small.Get(Url("/hello"), {}, kPatience),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(HttpClientTest, SaysWhyItCannotAsk) {
  const std::string url = Url("/hello");
  EXPECT_THAT(client_.Get(url, {{"X", "a\r\nY: b"}}, kPatience),
              StatusIs(absl::StatusCode::kInvalidArgument));
  server_->Stop(absl::ZeroDuration());
  EXPECT_THAT(client_.Get(url, {}, kPatience),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("127.0.0.1")));
}

}  // namespace
}  // namespace lynx::http
