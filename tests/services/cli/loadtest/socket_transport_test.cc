// Real sockets under a clock that only the test moves: what is measured is exact.
#include "services/cli/loadtest/socket_transport.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/http/routes.h"
#include "common/http/server.h"
#include "common/http/sse.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/loadtest/load_driver.h"
#include "services/cli/loadtest/run_result.h"
#include "tests/services/cli/loadtest/raw_server.h"
#include "tests/support/status_matchers.h"

namespace lynx::loadtest {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Matters only when a test fails.
constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr absl::Duration kTimeout = absl::Seconds(60);  // Of a request, by the test's clock.

class FixedWorkload final : public Workload {
 public:
  explicit FixedWorkload(int64_t count) : count_(count) {}
  std::optional<PlannedRequest> Next() override {
    if (next_ == count_) return std::nullopt;
    PlannedRequest request;
    request.index = next_++;
    request.output_tokens = 8;
    return request;
  }
  std::string Body() override { return "{}"; }

 private:
  const int64_t count_;
  int64_t next_ = 0;
};

class SocketTransportTest : public ::testing::Test {
 protected:
  void Connect(uint16_t port) {
    SocketTransport::Options options;
    options.url = {.host = "127.0.0.1", .port = port, .target = "/v1/chat/completions"};
    auto transport = SocketTransport::Create(options, clock_);
    ASSERT_THAT(transport, IsOk());
    transport_ = *std::move(transport);
  }

  // Runs `count` requests, at most `open` at a time; `between` is called again and again.
  RunLog Run(
      int64_t count, int64_t open = 1, const std::function<void()>& between = [] {}) {
    FixedWorkload workload(count);
    LoadDriver driver({.closed_loop = true, .max_open = open, .timeout = kTimeout}, workload,
                      *transport_, next_id_, clock_.Now());
    driver_ = &driver;
    transport_->SetObserver(&driver);
    const absl::Time deadline = SteadyClock::Instance().Now() + kPatience;
    while (!driver.done() && SteadyClock::Instance().Now() < deadline) {
      driver.Tick(clock_.Now());
      between();
      transport_->Poll(absl::Milliseconds(2), -1);
    }
    EXPECT_TRUE(driver.done());
    driver.Stop(clock_.Now());
    next_id_ = driver.next_id();
    return driver.TakeLog();
  }

  // What one request makes of a server that does `serve`.
  RequestRecord Against(std::function<void(int)> serve) {
    RawServer server(std::move(serve));
    Connect(server.port());
    const RunLog log = Run(1);
    transport_.reset();
    problem_ = log.problems.empty() ? "" : log.problems.begin()->first.second;
    return log.records.empty() ? RequestRecord{} : log.records[0];
  }

  ManualClock clock_;
  std::unique_ptr<SocketTransport> transport_;
  LoadDriver* driver_ = nullptr;
  RequestId next_id_ = 1;
  std::string problem_;
};

const char kHead[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string ChunkOf(const std::string& data) {
  return absl::StrCat(absl::Hex(data.size()), "\r\n", data, "\r\n");
}

std::string TextEvent() {
  return http::FormatSseData(R"({"choices":[{"delta":{"content":"x"}}]})");
}

TEST_F(SocketTransportTest, NobodyThere) {
  SocketTransport::Options options;
  options.url = {.host = "127.0.0.1", .port = 1, .target = "/"};
  EXPECT_THAT(SocketTransport::Create(options, clock_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("127.0.0.1 port 1")));
  options.url.host = "no-such-host.invalid";
  EXPECT_THAT(SocketTransport::Create(options, clock_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no-such-host")));
}

TEST_F(SocketTransportTest, HeadersCannotSmuggle) {
  SocketTransport::Options options;
  options.url = {.host = "127.0.0.1", .port = 1, .target = "/"};
  options.headers = {{"X", "a\r\nY: b"}};
  EXPECT_THAT(SocketTransport::Create(options, clock_),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// A server whose every step waits until the client has read the one before, and then lets a known
// time pass.
TEST_F(SocketTransportTest, MeasuresAScriptedStreamExactly) {
  std::shared_ptr<http::ResponseWriter> writer;
  std::atomic<bool> asked = false;
  http::Routes routes;
  routes.Add("POST", "/v1/chat/completions",
             [&](http::HttpRequest, std::shared_ptr<http::ResponseWriter> to) {
               to->StartStream(200, {{"Content-Type", http::kSseContentType}}).IgnoreError();
               writer = std::move(to);
               asked = true;
             });
  http::ServerOptions options;
  options.address = "127.0.0.1";
  auto server = http::HttpServer::Create(options, routes);
  ASSERT_THAT(server, IsOk());
  (*server)->Start();
  Connect((*server)->port());

  struct Step {
    int after_ms;
    std::string data;
  };
  const std::vector<Step> steps = {
      {50, http::FormatSseData(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})")},
      {200, TextEvent()},
      {10, TextEvent()},
      {30, TextEvent()},
      {20,
       http::FormatSseData(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}})")},
      {5, "data: [DONE]\n\n"}};
  size_t next = 0;
  size_t seen = 0;  // Bytes of the body that the client has read.
  size_t written = 0;
  class Watcher final : public TransportObserver {
   public:
    Watcher(LoadDriver*& driver, size_t& bytes) : driver_(driver), seen_(bytes) {}
    void OnHead(RequestId id, const http::HttpResponse& head, absl::Time now) override {
      driver_->OnHead(id, head, now);
    }
    bool OnBody(RequestId id, std::string_view piece, absl::Time now) override {
      seen_ += piece.size();
      return driver_->OnBody(id, piece, now);
    }
    void OnEnd(RequestId id, const absl::Status& status, absl::Time now) override {
      driver_->OnEnd(id, status, now);
    }

   private:
    LoadDriver*& driver_;
    size_t& seen_;
  } watcher(driver_, seen);

  const RunLog log = Run(1, 1, [&] {
    transport_->SetObserver(&watcher);
    if (!asked || seen < written || next == steps.size()) return;
    clock_.Advance(absl::Milliseconds(steps[next].after_ms));
    written += steps[next].data.size();
    ASSERT_THAT(writer->Write(steps[next].data), IsOk());
    if (++next < steps.size()) return;
    ASSERT_THAT(writer->End(), IsOk());
  });
  writer.reset();
  ASSERT_THAT(log.records, SizeIs(1));
  const RequestRecord& record = log.records[0];
  EXPECT_EQ(record.outcome, Outcome::kOk);
  EXPECT_NEAR(record.ttft_s(), 0.250, 1e-9) << "to the first text, not to the first piece";
  EXPECT_NEAR(record.tpot_s(), 0.020, 1e-9);
  EXPECT_NEAR(record.e2e_s(), 0.315, 1e-9);
  EXPECT_EQ(record.output_tokens, 3);
  EXPECT_EQ(record.prompt_tokens, 7);
  EXPECT_NEAR(log.gaps.tokens.Summarise().max, 0.030, 1e-9);
  (*server)->Stop(absl::ZeroDuration());
}

TEST_F(SocketTransportTest, ConnectionsAreUsedAgain) {
  http::Routes routes;
  routes.Add("POST", "/v1/chat/completions",
             [&](http::HttpRequest, std::shared_ptr<http::ResponseWriter> writer) {
               writer->StartStream(200, {{"Content-Type", http::kSseContentType}}).IgnoreError();
               writer->Write(TextEvent() + "data: [DONE]\n\n").IgnoreError();
               writer->End().IgnoreError();
             });
  http::ServerOptions options;
  options.address = "127.0.0.1";
  auto server = http::HttpServer::Create(options, routes);
  ASSERT_THAT(server, IsOk());
  (*server)->Start();
  Connect((*server)->port());
  const RunLog log = Run(200, 8);
  ASSERT_THAT(log.records, SizeIs(200));
  for (const RequestRecord& record : log.records) EXPECT_TRUE(record.ok());
  // A connection whose last chunk is still to come when the next request is due cannot be taken.
  EXPECT_LT(transport_->connections_opened(), 100u);
  (*server)->Stop(absl::ZeroDuration());
}

// The server closes its end of a kept connection: the client sees it and takes another.
TEST_F(SocketTransportTest, AClosedIdleConnectionCostsNoRequest) {
  const std::string answer = ChunkOf(TextEvent() + "data: [DONE]\n\n") + "0\r\n\r\n";
  RawServer server([&](int fd) {
    if (ReadRequest(fd)) WriteAll(fd, kHead + answer);
  });
  Connect(server.port());
  const RunLog log = Run(20);
  ASSERT_THAT(log.records, SizeIs(20));
  for (const RequestRecord& record : log.records) EXPECT_TRUE(record.ok());
}

// [DONE] and then nothing: the request is over, and its connection does not stay for long.
TEST_F(SocketTransportTest, AMessageThatDoesNotEndAfterDoneCostsNothing) {
  RawServer server([&](int fd) {
    if (!ReadRequest(fd)) return;
    WriteAll(fd, kHead + ChunkOf(TextEvent() + "data: [DONE]\n\n"));
    char byte;
    while (read(fd, &byte, 1) > 0) {
    }
  });
  Connect(server.port());
  RunLog log = Run(1);
  ASSERT_THAT(log.records, SizeIs(1));
  EXPECT_TRUE(log.records[0].ok());
  // The server takes the second request only once the first connection has been closed.
  clock_.Advance(absl::Seconds(2));
  log = Run(1);
  ASSERT_THAT(log.records, SizeIs(1));
  EXPECT_TRUE(log.records[0].ok());
}

TEST_F(SocketTransportTest, AServerThatStallsTimesOut) {
  for (const std::string& start :
       {std::string(), std::string("HTTP/1.1 200 OK\r\nConte"), kHead + ChunkOf(TextEvent())}) {
    std::atomic<bool> stalled = false;
    RawServer server([&](int fd) {
      if (!ReadRequest(fd)) return;
      WriteAll(fd, start);
      stalled = true;
      char byte;
      while (read(fd, &byte, 1) > 0) {
      }
    });
    Connect(server.port());
    const RunLog log = Run(1, 1, [&] {
      if (stalled) clock_.Advance(absl::Seconds(1));
    });
    ASSERT_THAT(log.records, SizeIs(1));
    EXPECT_EQ(log.records[0].outcome, Outcome::kTimeout) << start;
    transport_.reset();
  }
}

TEST_F(SocketTransportTest, HalfClosedWithoutAnAnswer) {
  EXPECT_EQ(Against([](int fd) {
              if (ReadRequest(fd)) shutdown(fd, SHUT_WR);
              char byte;
              while (read(fd, &byte, 1) > 0) {
              }
            }).outcome,
            Outcome::kConnection);
}

TEST_F(SocketTransportTest, CutOffWithinTheStream) {
  EXPECT_EQ(Against([](int fd) {
              if (ReadRequest(fd)) WriteAll(fd, kHead + ChunkOf(TextEvent()));
            }).outcome,
            Outcome::kCut);
  EXPECT_EQ(Against([](int fd) {
              if (ReadRequest(fd)) WriteAll(fd, kHead + ChunkOf(TextEvent()) + "0\r\n\r\n");
            }).outcome,
            Outcome::kCut)
      << "a proper end, but no [DONE]";
}

TEST_F(SocketTransportTest, Garbage) {
  for (const char* garbage : {"\x16\x03\x01 TLS?", "SSH-2.0-OpenSSH\r\n", "HTTP/1.1 abc OK\r\n\r\n",
                              "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\nxx"}) {
    EXPECT_EQ(Against([&](int fd) {
                if (ReadRequest(fd)) WriteAll(fd, garbage);
              }).outcome,
              Outcome::kProtocol)
        << garbage;
  }
}

TEST_F(SocketTransportTest, AnEndlessEventEndsAtTheLimit) {
  const RequestRecord record = Against([](int fd) {
    if (!ReadRequest(fd) || !WriteAll(fd, std::string(kHead) + "7fffffff\r\ndata: ")) return;
    const std::string more(1 << 16, 'x');
    while (WriteAll(fd, more)) {
    }
  });
  EXPECT_EQ(record.outcome, Outcome::kProtocol);
  EXPECT_THAT(problem_, HasSubstr("larger than"));
}

TEST_F(SocketTransportTest, EndlessPiecesEndAtTheLimit) {
  const RequestRecord record = Against([](int fd) {
    if (!ReadRequest(fd) || !WriteAll(fd, kHead)) return;
    while (WriteAll(fd, ChunkOf(TextEvent()))) {
    }
  });
  EXPECT_EQ(record.outcome, Outcome::kProtocol);
  EXPECT_THAT(problem_, HasSubstr("pieces"));
}

TEST_F(SocketTransportTest, FiveThousandHeaders) {
  const RequestRecord record = Against([](int fd) {
    if (!ReadRequest(fd)) return;
    std::string head = "HTTP/1.1 200 OK\r\n";
    for (int i = 0; i < 5000; ++i) absl::StrAppend(&head, "X-Header-", i, ": some value\r\n");
    WriteAll(fd, head + "\r\n");
  });
  EXPECT_EQ(record.outcome, Outcome::kProtocol);
}

TEST_F(SocketTransportTest, AnAnswerToHalfARequestIsRead) {
  const RequestRecord record = Against([](int fd) {
    char byte;
    if (read(fd, &byte, 1) != 1) return;
    WriteAll(fd, "HTTP/1.1 429 Slow Down\r\nRetry-After: 3\r\nContent-Length: 4\r\n\r\nbusy");
    while (read(fd, &byte, 1) > 0) {
    }
  });
  EXPECT_EQ(record.outcome, Outcome::kRefused);
  EXPECT_EQ(record.retry_after_s, 3);
  EXPECT_EQ(problem_, "busy");
}

}  // namespace
}  // namespace lynx::loadtest
