#include "common/http/server.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/http/routes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/http/raw_client.h"
#include "tests/support/status_matchers.h"

namespace lynx::http {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::RawClient;
using ::lynx::testing::StatusIs;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::chrono::seconds kPatience(20);  // Only matters when a test fails.

// Events of other threads, awaited with a deadline.
template <typename T>
class Mailbox {
 public:
  void Put(T item) {
    MutexLock lock(mu_);
    items_.push_back(std::move(item));
    came_.NotifyAll();
  }
  std::optional<T> Take() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    MutexLock lock(mu_);
    while (items_.empty()) {
      if (!came_.WaitUntil(mu_, deadline) && items_.empty()) return std::nullopt;
    }
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }
  bool empty() {
    MutexLock lock(mu_);
    return items_.empty();
  }

 private:
  Mutex mu_;
  CondVar came_;
  std::deque<T> items_;
};

struct Call {
  HttpRequest request;
  std::shared_ptr<ResponseWriter> writer;
};

HttpResponse Text(std::string body) {
  return {.status = 200, .headers = {{"Content-Type", "text/plain"}}, .body = std::move(body)};
}

// Answers at once under /echo (the body) and /livez; anything else goes to the test's mailbox.
class TestHandler final : public RequestHandler {
 public:
  void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override {
    if (request.path == "/echo" || request.path == "/livez") {
      writer->Send(Text(request.body)).IgnoreError();
    } else {
      calls.Put({std::move(request), std::move(writer)});
    }
  }
  std::optional<HttpResponse> RefuseEarly(const HttpRequest& head) override {
    if (head.path != "/secret") return std::nullopt;
    return HttpResponse{.status = 401, .headers = {}, .body = "who are you"};
  }

  Mailbox<Call> calls;
};

class HttpServerTest : public ::testing::Test {
 protected:
  void StartServer() {
    options_.address = "127.0.0.1";
    options_.registry = &registry_;
    auto server = HttpServer::Create(options_, handler_);
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
    server_->Start();
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Stop(absl::ZeroDuration());
  }

  RawClient Connect() { return RawClient(server_->port()); }
  RawClient ConnectAndSend(std::string_view data) {
    RawClient client = Connect();
    EXPECT_TRUE(client.Send(data));
    return client;
  }
  // The response to the client's only request.
  std::string Ask(std::string_view data) { return ConnectAndSend(data).ReadResponse(); }
  bool Alive() { return Ask("GET /livez HTTP/1.1\r\nHost: h\r\n\r\n").starts_with("HTTP/1.1 200"); }

  // A request whose response is now up to the test.
  Call NextCall() {
    std::optional<Call> call = handler_.calls.Take();
    EXPECT_TRUE(call.has_value()) << "no request arrived";
    return call.has_value() ? *std::move(call) : Call{};
  }
  // Notes in the mailbox when the writer's connection is gone.
  static std::shared_ptr<Mailbox<int>> WatchClosed(ResponseWriter& writer) {
    auto closed = std::make_shared<Mailbox<int>>();
    writer.OnClosed([closed] { closed->Put(1); });
    return closed;
  }
  void WaitForMetric(const std::string& line) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (registry_.Render().find(line + "\n") == std::string::npos) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << line << "\n" << registry_.Render();
      std::this_thread::yield();
    }
  }

  telemetry::Registry registry_;
  TestHandler handler_;
  ServerOptions options_;
  std::unique_ptr<HttpServer> server_;
};

constexpr char kGetHold[] = "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n";
constexpr char kGetLivez[] = "GET /livez HTTP/1.1\r\nHost: h\r\n\r\n";

std::string Post(std::string_view path, std::string_view body) {
  return absl::StrCat("POST ", std::string(path),
                      " HTTP/1.1\r\nHost: h\r\nContent-Length: ", body.size(), "\r\n\r\n",
                      std::string(body));
}

TEST_F(HttpServerTest, OneConnectionServesManyRequests) {
  StartServer();
  RawClient client = Connect();
  for (int i = 0; i < 50; ++i) {
    const std::string body = absl::StrCat("request ", i);
    ASSERT_TRUE(client.Send(Post("/echo", body)));
    const std::string response = client.ReadResponse();
    EXPECT_THAT(response, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(response, Not(HasSubstr("Connection: close")));
    EXPECT_THAT(response, EndsWith("\r\n\r\n" + body));
  }
}

TEST_F(HttpServerTest, ARequestTellsTheHandlerWhereItCameFrom) {
  StartServer();
  RawClient client = ConnectAndSend("GET /hold?x=1 HTTP/1.1\r\nHost: h\r\nX-Id: 7\r\n\r\n");
  const Call call = NextCall();
  EXPECT_EQ(call.request.path, "/hold");
  EXPECT_EQ(call.request.query, "x=1");
  EXPECT_EQ(call.request.Header("x-id"), "7");
  EXPECT_THAT(call.request.peer, StartsWith("127.0.0.1:"));
}

TEST_F(HttpServerTest, HeadGetsTheHeaderOfTheGet) {
  StartServer();
  RawClient client = ConnectAndSend("HEAD /hold HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(NextCall().writer->Send(Text("twelve bytes")), IsOk());
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("Content-Length: 12\r\n"));
  // The next thing on the connection is the next response, not a body.
  ASSERT_TRUE(client.Send(kGetLivez));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpServerTest, AHeadRequestOfAStreamHasNoBodyEither) {
  StartServer();
  RawClient client = ConnectAndSend("HEAD /hold HTTP/1.1\r\nHost: h\r\n\r\n");
  const Call call = NextCall();
  EXPECT_THAT(call.writer->StartStream(200, {}), IsOk());
  EXPECT_THAT(call.writer->Write("body"), IsOk());
  EXPECT_THAT(call.writer->End(), IsOk());
  client.ReadUntil("\r\n\r\n");
  ASSERT_TRUE(client.Send(kGetLivez));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpServerTest, AStreamArrivesPieceByPiece) {
  StartServer();
  RawClient client = ConnectAndSend(kGetHold);
  const Call call = NextCall();
  ASSERT_THAT(call.writer->StartStream(200, {{"Content-Type", "text/event-stream"}}), IsOk());
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("Transfer-Encoding: chunked\r\n"));
  for (const char* piece : {"data: a\n\n", ": keep-alive\n\n", "data: b\n\n"}) {
    ASSERT_THAT(call.writer->Write(piece), IsOk());
    EXPECT_EQ(client.ReadUntil("\n\n\r\n"),
              absl::StrCat(absl::Hex(std::string(piece).size()), "\r\n", piece, "\r\n"));
  }
  ASSERT_THAT(call.writer->Write(""), IsOk()) << "an empty piece must not end the body";
  ASSERT_THAT(call.writer->End(), IsOk());
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "0\r\n\r\n");
  ASSERT_TRUE(client.Send(kGetLivez));
  EXPECT_THAT(client.ReadResponse(), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, WritesOfABatchGoOutWhenItEnds) {
  StartServer();
  RawClient clients[2] = {ConnectAndSend("GET /a HTTP/1.1\r\nHost: h\r\n\r\n"), Connect()};
  Call first = NextCall();
  ASSERT_TRUE(clients[1].Send("GET /b HTTP/1.1\r\nHost: h\r\n\r\n"));
  Call second = NextCall();
  for (int round = 0; round < 3; ++round) {
    {
      const WriteBatch outer;
      {
        const WriteBatch inner;
        if (round == 0) {
          EXPECT_THAT(first.writer->StartStream(200, {}), IsOk());
          EXPECT_THAT(second.writer->StartStream(200, {}), IsOk());
        }
        EXPECT_THAT(first.writer->Write("one"), IsOk());
      }
      if (round == 1) {
        EXPECT_TRUE(Alive()) << "others' answers do not wait";
      }
      EXPECT_THAT(second.writer->Write("two"), IsOk());
    }
    EXPECT_THAT(clients[0].ReadUntil("one\r\n"), EndsWith("one\r\n"));
    EXPECT_THAT(clients[1].ReadUntil("two\r\n"), EndsWith("two\r\n"));
  }
  EXPECT_THAT(first.writer->End(), IsOk());
  EXPECT_THAT(clients[0].ReadUntil("0\r\n\r\n"), EndsWith("0\r\n\r\n")) << "without a batch";
}

TEST_F(HttpServerTest, OldClientsGetAStreamThatEndsWithTheConnection) {
  StartServer();
  RawClient client = ConnectAndSend("GET /hold HTTP/1.0\r\n\r\n");
  const Call call = NextCall();
  ASSERT_THAT(call.writer->StartStream(200, {}), IsOk());
  ASSERT_THAT(call.writer->Write("one "), IsOk());
  ASSERT_THAT(call.writer->Write("two"), IsOk());
  ASSERT_THAT(call.writer->End(), IsOk());
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), Not(HasSubstr("chunked")));
  EXPECT_EQ(client.ReadToEnd(), "one two");
}

TEST_F(HttpServerTest, AbortSendsWhatWasWrittenAndNoProperEnd) {
  StartServer();
  RawClient client = ConnectAndSend(kGetHold);
  const Call call = NextCall();
  ASSERT_THAT(call.writer->StartStream(200, {}), IsOk());
  ASSERT_THAT(call.writer->Write("the error"), IsOk());
  call.writer->Abort();
  bool closed = false;
  EXPECT_THAT(client.ReadToEnd(&closed), EndsWith("9\r\nthe error\r\n"));
  EXPECT_TRUE(closed);
  EXPECT_THAT(call.writer->Write("more"), Not(IsOk()));
}

TEST_F(HttpServerTest, CallsOutOfOrderAreRefusedAndChangeNothing) {
  StartServer();
  RawClient client = ConnectAndSend(kGetHold);
  const Call call = NextCall();
  const auto out_of_order = StatusIs(absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(call.writer->Write("x"), out_of_order);
  EXPECT_THAT(call.writer->End(), out_of_order);
  EXPECT_THAT(call.writer->Send(Text("answer")), IsOk());
  EXPECT_THAT(call.writer->Send(Text("second")), out_of_order);
  EXPECT_THAT(call.writer->StartStream(200, {}), out_of_order);
  EXPECT_THAT(client.ReadResponse(), EndsWith("\r\n\r\nanswer"));
  ASSERT_TRUE(client.Send(kGetLivez));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpServerTest, ADroppedRequestIsAnsweredNotForgotten) {
  StartServer();
  RawClient client = ConnectAndSend(kGetHold);
  NextCall().writer.reset();
  EXPECT_THAT(client.ReadResponse(), StartsWith("HTTP/1.1 500"));

  RawClient stream = ConnectAndSend(kGetHold);
  {
    const Call call = NextCall();
    ASSERT_THAT(call.writer->StartStream(200, {}), IsOk());
    ASSERT_THAT(call.writer->Write("part"), IsOk());
  }
  EXPECT_THAT(stream.ReadToEnd(), EndsWith("4\r\npart\r\n"));
}

TEST_F(HttpServerTest, AHeaderValueCannotSmuggleAField) {
  StartServer();
  RawClient client = ConnectAndSend(kGetHold);
  HttpResponse response = Text("x");
  response.headers.emplace_back("X-Model", "a\r\nSet-Cookie: b");
  response.headers.emplace_back("content-length", "999");
  EXPECT_THAT(NextCall().writer->Send(std::move(response)), IsOk());
  const std::string text = client.ReadResponse();
  EXPECT_THAT(text, HasSubstr("\r\nX-Model: a  Set-Cookie: b\r\n"));
  EXPECT_THAT(text, Not(HasSubstr("999")));
}

TEST_F(HttpServerTest, PipelinedRequestsAreHandledOneAfterAnother) {
  StartServer();
  RawClient client = ConnectAndSend(absl::StrCat(kGetHold, kGetHold, Post("/echo", "third")));
  const Call first = NextCall();
  EXPECT_TRUE(handler_.calls.empty());
  ASSERT_THAT(first.writer->Send(Text("first")), IsOk());
  EXPECT_THAT(client.ReadResponse(), EndsWith("first"));
  ASSERT_THAT(NextCall().writer->Send(Text("second")), IsOk());
  EXPECT_THAT(client.ReadResponse(), EndsWith("second"));
  EXPECT_THAT(client.ReadResponse(), EndsWith("third"));
}

TEST_F(HttpServerTest, HundredsOfPipelinedRequestsGetTheirAnswersInOrder) {
  StartServer();
  std::string requests;
  for (int i = 0; i < 2000; ++i) requests += Post("/echo", absl::StrCat("<", i, ">"));
  RawClient client = Connect();
  std::jthread sender([&] { EXPECT_TRUE(client.Send(requests)); });
  sender.join();
  for (int i = 0; i < 2000; ++i) {
    ASSERT_THAT(client.ReadResponse(), EndsWith(absl::StrCat("\r\n\r\n<", i, ">")));
  }
}

TEST_F(HttpServerTest, ContinueIsSentOnlyToThoseWhoWaitForIt) {
  StartServer();
  RawClient client = ConnectAndSend(
      "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(client.Send("body"));
  EXPECT_THAT(client.ReadResponse(), EndsWith("\r\n\r\nbody"));
  // The body is already there.
  ASSERT_TRUE(client.Send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody"));
  EXPECT_THAT(client.ReadResponse(), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, WhoMayNotAskNeedNotUpload) {
  StartServer();
  RawClient client = ConnectAndSend(
      "POST /secret HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5000\r\n\r\n");
  EXPECT_THAT(client.ReadResponse(), StartsWith("HTTP/1.1 401"));
  bool closed = false;
  client.ReadToEnd(&closed);
  EXPECT_TRUE(closed) << "the unread body makes the connection useless";
  // Without a body the connection goes on.
  RawClient second = ConnectAndSend("GET /secret HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(second.ReadResponse(), StartsWith("HTTP/1.1 401"));
  ASSERT_TRUE(second.Send(kGetLivez));
  EXPECT_THAT(second.ReadResponse(), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ErrorsAreJsonAndCloseTheConnection) {
  StartServer();
  RawClient client = ConnectAndSend("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
  const std::string response = client.ReadResponse();
  EXPECT_THAT(response, StartsWith("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_THAT(response, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(response, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(response,
              EndsWith("{\"error\":{\"message\":\"the Host field is repeated\",\"code\":400}}"));
  bool closed = false;
  client.ReadToEnd(&closed);
  EXPECT_TRUE(closed);
  EXPECT_THAT(registry_.Render(),
              HasSubstr("lynx_http_rejected_total{reason=\"bad_request\",server=\"http\"} 1\n"));
}

TEST_F(HttpServerTest, APromisedTerabyteIsRefusedBeforeItComes) {
  StartServer();
  EXPECT_THAT(Ask("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000000\r\n\r\n"),
              StartsWith("HTTP/1.1 413"));
}

// The client sends the whole body before it looks for an answer, as many do: it must see the
// answer and not a reset.
TEST_F(HttpServerTest, ATooLargeBodyGetsItsAnswerThoughItIsSentWhole) {
  StartServer();
  RawClient client = Connect();
  client.SendWhileTaken(Post("/echo", std::string(20 << 20, 'x')), absl::Milliseconds(500));
  EXPECT_THAT(client.ReadResponse(), StartsWith("HTTP/1.1 413"));
}

TEST_F(HttpServerTest, AChunkedBodyWithoutEndIsRefusedAtTheLimit) {
  options_.max_body_bytes = 100'000;
  StartServer();
  RawClient client =
      ConnectAndSend("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = absl::StrCat("2710\r\n", std::string(10'000, 'x'), "\r\n");
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(client.Send(chunk));
  ASSERT_TRUE(client.Send("1\r\nx\r\n"));
  EXPECT_THAT(client.ReadResponse(), StartsWith("HTTP/1.1 413"));
}

TEST_F(HttpServerTest, AHugeHeaderOrTargetIsRefused) {
  StartServer();
  RawClient header = Connect();
  header.SendWhileTaken("GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(64 * 1024, 'x'),
                        absl::Milliseconds(500));
  EXPECT_THAT(header.ReadResponse(), StartsWith("HTTP/1.1 431"));
  RawClient target = Connect();
  target.SendWhileTaken("GET /" + std::string(16 * 1024, 'x'), absl::Milliseconds(500));
  EXPECT_THAT(target.ReadResponse(), StartsWith("HTTP/1.1 414"));
}

TEST_F(HttpServerTest, AllBodiesTogetherHaveALimit) {
  options_.max_total_body_bytes = 1'000'000;
  StartServer();
  const std::string half_sent = "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 800000\r\n\r\n" +
                                std::string(600'000, 'x');
  RawClient first = ConnectAndSend(half_sent);
  RawClient second = Connect();
  second.SendWhileTaken(half_sent, absl::Milliseconds(500));
  WaitForMetric("lynx_http_rejected_total{reason=\"memory\",server=\"http\"} 1");
  // Which of the two meets the limit is open; the other one is served.
  const auto finish = [](RawClient& client) {
    client.SendWhileTaken(std::string(200'000, 'x'), absl::Milliseconds(500));
    return client.ReadResponse().substr(0, 12);
  };
  EXPECT_THAT((std::vector<std::string>{finish(first), finish(second)}),
              ::testing::UnorderedElementsAre("HTTP/1.1 200", "HTTP/1.1 503"));
  // What they held is given back.
  first.Close();
  second.Close();
  WaitForMetric("lynx_http_connections{server=\"http\"} 0");
  EXPECT_THAT(Ask(Post("/echo", std::string(900'000, 'x'))), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, AHeaderThatDripsInRunsOutOfTime) {
  options_.header_timeout = absl::Milliseconds(200);
  StartServer();
  RawClient client = ConnectAndSend("GET /livez HTTP/1.1\r\n");
  std::atomic<bool> stop = false;
  std::jthread drip([&] {
    // One byte at a time for as long as the server takes them: it must not extend the deadline.
    while (!stop && client.SendWhileTaken("X", absl::ZeroDuration()) == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  RawClient other = ConnectAndSend("GET /livez HTTP/1.1\r\n");
  EXPECT_THAT(other.ReadResponse(), StartsWith("HTTP/1.1 408"));
  WaitForMetric("lynx_http_rejected_total{reason=\"timeout\",server=\"http\"} 2");
  stop = true;
}

TEST_F(HttpServerTest, ABodyThatStopsRunsOutOfTime) {
  options_.body_timeout = absl::Milliseconds(100);
  StartServer();
  EXPECT_THAT(Ask("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf"),
              StartsWith("HTTP/1.1 408"));
}

TEST_F(HttpServerTest, AnIdleConnectionIsClosedQuietly) {
  options_.idle_timeout = absl::Milliseconds(100);
  StartServer();
  RawClient client = ConnectAndSend(kGetLivez);
  EXPECT_THAT(client.ReadResponse(), StartsWith("HTTP/1.1 200"));
  bool closed = false;
  EXPECT_EQ(client.ReadToEnd(&closed), "");
  EXPECT_TRUE(closed);
}

TEST_F(HttpServerTest, AConnectionThatNeverAsksIsClosed) {
  options_.header_timeout = absl::Milliseconds(100);
  StartServer();
  RawClient client = Connect();
  bool closed = false;
  EXPECT_EQ(client.ReadToEnd(&closed), "");
  EXPECT_TRUE(closed);
}

TEST_F(HttpServerTest, AHandlerMayTakeLongerThanEveryTimeLimit) {
  options_.header_timeout = options_.body_timeout = options_.idle_timeout =
      options_.write_stall_timeout = absl::Milliseconds(40);
  StartServer();
  RawClient waiting = ConnectAndSend(kGetHold);
  const Call call = NextCall();
  // A connection with the same limits comes and goes twice meanwhile.
  for (int i = 0; i < 2; ++i) Connect().ReadToEnd();
  EXPECT_THAT(call.writer->Send(Text("late")), IsOk());
  EXPECT_THAT(waiting.ReadResponse(), EndsWith("late"));
}

TEST_F(HttpServerTest, AnIdleConnectionMakesRoomForANewOne) {
  options_.max_connections = 8;
  StartServer();
  std::vector<RawClient> idle;
  for (int i = 0; i < 8; ++i) {
    idle.push_back(ConnectAndSend(kGetLivez));
    ASSERT_THAT(idle.back().ReadResponse(), StartsWith("HTTP/1.1 200"));
  }
  EXPECT_THAT(Ask(Post("/echo", "hello")), EndsWith("hello"));
  bool closed = false;
  EXPECT_EQ(idle[0].ReadToEnd(&closed), "") << "the longest idle goes";
  EXPECT_TRUE(closed);
  ASSERT_TRUE(idle[7].Send(kGetLivez));
  EXPECT_THAT(idle[7].ReadResponse(), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ProbesAreAnsweredWhenStreamsTakeEveryConnection) {
  options_.max_connections = 4;
  options_.reserved_connections = 2;
  StartServer();
  std::vector<RawClient> streams;
  std::vector<Call> calls;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(ConnectAndSend(kGetHold));
    calls.push_back(NextCall());
  }
  for (int i = 0; i < 5; ++i) {
    const std::string probe = Ask(kGetLivez);
    EXPECT_THAT(probe, StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(probe, HasSubstr("Connection: close"));
    const std::string refused = Ask(Post("/echo", "x"));
    EXPECT_THAT(refused, StartsWith("HTTP/1.1 503"));
    EXPECT_THAT(refused, HasSubstr("Retry-After: "));
  }
  EXPECT_THAT(calls[3].writer->Send(Text("still here")), IsOk());
  EXPECT_THAT(streams[3].ReadResponse(), EndsWith("still here"));
}

TEST_F(HttpServerTest, ProbesAreAnsweredWhenSlowHeadersTakeTheReserveToo) {
  options_.max_connections = 4;
  options_.reserved_connections = 4;
  options_.header_timeout = absl::Minutes(10);
  StartServer();
  std::vector<RawClient> slow;
  for (int i = 0; i < 40; ++i) slow.push_back(ConnectAndSend("GET /livez HT"));
  WaitForMetric("lynx_http_connections{server=\"http\"} 8");
  WaitForMetric("lynx_http_rejected_total{reason=\"evicted\",server=\"http\"} 32");
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Alive());
}

TEST_F(HttpServerTest, RunningOutOfDescriptorsIsSurvived) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan opens a pipe to check pointers, and reports an error when it cannot";
#endif
  options_.address = "127.0.0.1";
  options_.registry = &registry_;
  auto server = HttpServer::Create(options_, handler_);
  ASSERT_THAT(server, IsOk());
  server_ = *std::move(server);
  RawClient client = ConnectAndSend(kGetLivez);  // Waits in the listen queue.

  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next_free = dup(0);
  ASSERT_GE(next_free, 0);
  close(next_free);
  rlimit none_left = before;
  none_left.rlim_cur = static_cast<rlim_t>(next_free);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
  server_->Start();
  const std::string failed = "lynx_http_rejected_total{reason=\"accept_failed\",server=\"http\"} ";
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (registry_.Render().find(failed + "0\n") != std::string::npos &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(registry_.Render(), Not(HasSubstr(failed + "0\n")));
  EXPECT_THAT(client.ReadResponse(), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, AClientThatLeavesIsNoticedWithoutAWrite) {
  StartServer();
  RawClient closes = ConnectAndSend(kGetHold);
  const Call first = NextCall();
  const auto first_closed = WatchClosed(*first.writer);
  closes.Close();
  EXPECT_TRUE(first_closed->Take().has_value());
  EXPECT_THAT(first.writer->Send(Text("x")), StatusIs(absl::StatusCode::kCancelled));

  RawClient resets = ConnectAndSend(kGetHold);
  const Call second = NextCall();
  ASSERT_THAT(second.writer->StartStream(200, {}), IsOk());
  const auto second_closed = WatchClosed(*second.writer);
  resets.Reset();
  EXPECT_TRUE(second_closed->Take().has_value());
  EXPECT_THAT(second.writer->Write("x"), StatusIs(absl::StatusCode::kCancelled));

  RawClient half_closes = ConnectAndSend(kGetHold);
  const Call third = NextCall();
  const auto third_closed = WatchClosed(*third.writer);
  half_closes.ShutdownWrite();
  EXPECT_TRUE(third_closed->Take().has_value());

  // Registered too late: runs at once.
  EXPECT_FALSE(WatchClosed(*third.writer)->empty());
  EXPECT_TRUE(first_closed->empty() && second_closed->empty()) << "closed twice";
}

TEST_F(HttpServerTest, AClientThatLeavesIsNoticedBehindABufferFullOfRequests) {
  StartServer();
  RawClient client = ConnectAndSend(kGetHold);
  const Call call = NextCall();
  const auto closed = WatchClosed(*call.writer);
  std::string requests;
  while (requests.size() < 150'000) requests += Post("/echo", "next");
  ASSERT_TRUE(client.Send(requests));
  client.Close();
  EXPECT_TRUE(closed->Take().has_value());
}

TEST_F(HttpServerTest, AFinishedResponseIsNeverReportedClosed) {
  StartServer();
  auto token = std::make_shared<int>(1);
  RawClient client = ConnectAndSend(kGetHold);
  const Call call = NextCall();
  call.writer->OnClosed([token] { FAIL() << "ran"; });
  ASSERT_THAT(call.writer->Send(Text("x")), IsOk());
  EXPECT_EQ(token.use_count(), 1) << "what the callback held must be free now";
  client.ReadResponse();
  client.Close();
  WaitForMetric("lynx_http_connections{server=\"http\"} 0");
}

TEST_F(HttpServerTest, RequestsSentBeforeAHalfCloseAreAnswered) {
  StartServer();
  RawClient client = ConnectAndSend(absl::StrCat(Post("/echo", "one"), Post("/echo", "two")));
  client.ShutdownWrite();
  EXPECT_THAT(client.ReadResponse(), EndsWith("one"));
  EXPECT_THAT(client.ReadResponse(), EndsWith("two"));
  bool closed = false;
  EXPECT_EQ(client.ReadToEnd(&closed), "");
  EXPECT_TRUE(closed);
}

TEST_F(HttpServerTest, ARequestCutShortIsNotHandled) {
  StartServer();
  RawClient client =
      ConnectAndSend("POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf");
  client.ShutdownWrite();
  EXPECT_EQ(client.ReadToEnd(), "");
  EXPECT_TRUE(handler_.calls.empty());
}

// Every stream of a client that never reads is bounded and reported; one that reads goes on.
TEST_F(HttpServerTest, ClientsThatNeverReadAreBoundedAndCutOff) {
  constexpr size_t kClients = 50;
  options_.max_output_bytes = 64 * 1024;
  options_.socket_send_buffer_bytes = 16 * 1024;
  StartServer();
  std::vector<RawClient> clients;
  std::vector<Call> calls;
  std::vector<std::shared_ptr<Mailbox<int>>> closed;
  for (size_t i = 0; i < kClients; ++i) {
    clients.emplace_back(server_->port(), /*receive_buffer_bytes=*/4096);
    ASSERT_TRUE(clients.back().Send(kGetHold));
    calls.push_back(NextCall());
    ASSERT_THAT(calls.back().writer->StartStream(200, {}), IsOk());
    closed.push_back(WatchClosed(*calls.back().writer));
  }
  RawClient reader = ConnectAndSend(kGetHold);
  const Call neighbour = NextCall();
  ASSERT_THAT(neighbour.writer->StartStream(200, {}), IsOk());

  const std::string piece(1000, 'x');
  std::vector<size_t> taken(kClients, 0);
  std::vector<absl::Status> ends(kClients);
  size_t running = kClients;
  while (running > 0) {
    for (size_t i = 0; i < kClients; ++i) {
      if (!ends[i].ok()) continue;
      ends[i] = calls[i].writer->Write(piece);
      if (ends[i].ok()) {
        taken[i] += piece.size();
      } else {
        --running;
      }
      ASSERT_LT(taken[i], size_t{1} << 20) << "unbounded";
    }
    ASSERT_THAT(neighbour.writer->Write("tick\n"), IsOk());
    ASSERT_THAT(reader.ReadUntil("tick\n"), EndsWith("tick\n"));
  }
  for (size_t i = 0; i < kClients; ++i) {
    EXPECT_THAT(ends[i], StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_TRUE(closed[i]->Take().has_value());
    EXPECT_THAT(calls[i].writer->Write(piece), StatusIs(absl::StatusCode::kCancelled));
  }
  WaitForMetric("lynx_http_connections{server=\"http\"} 1");
  WaitForMetric("lynx_http_rejected_total{reason=\"slow_reader\",server=\"http\"} 50");
}

TEST_F(HttpServerTest, AStalledStreamWithinItsBufferIsCutOffInTime) {
  options_.socket_send_buffer_bytes = 4096;
  options_.write_stall_timeout = absl::Milliseconds(200);
  StartServer();
  RawClient client(server_->port(), /*receive_buffer_bytes=*/4096);
  ASSERT_TRUE(client.Send(kGetHold));
  const Call call = NextCall();
  const auto closed = WatchClosed(*call.writer);
  ASSERT_THAT(call.writer->StartStream(200, {}), IsOk());
  ASSERT_THAT(call.writer->Write(std::string(300'000, 'x')), IsOk());
  EXPECT_TRUE(closed->Take().has_value());
}

TEST_F(HttpServerTest, AStreamMuchLongerThanItsBufferReachesAClientThatReads) {
  options_.max_output_bytes = 64 * 1024;
  StartServer();
  RawClient client = ConnectAndSend(kGetHold);
  const Call call = NextCall();
  ASSERT_THAT(call.writer->StartStream(200, {}), IsOk());
  const std::string piece = std::string(20'000, 'x') + "\n";
  for (int i = 0; i < 100; ++i) {
    ASSERT_THAT(call.writer->Write(piece), IsOk()) << "piece " << i;
    ASSERT_THAT(client.ReadUntil("x\n\r\n"), EndsWith(piece + "\r\n"));
  }
}

TEST_F(HttpServerTest, ABurstOverTheLimitIsRefusedNotCutOff) {
  options_.max_connections = 4;
  options_.reserved_connections = 40;
  options_.linger_timeout = absl::Minutes(10);
  StartServer();
  std::vector<RawClient> clients;
  for (int i = 0; i < 30; ++i) clients.push_back(ConnectAndSend(kGetHold));
  WaitForMetric("lynx_http_connections{server=\"http\"} 30");
  for (int i = 0; i < 4; ++i) {
    const Call call = NextCall();
    EXPECT_THAT(call.writer->Send(Text("served")), IsOk());
  }
  int served = 0;
  int refused = 0;
  for (RawClient& client : clients) {
    const std::string response = client.ReadResponse();
    served += response.starts_with("HTTP/1.1 200");
    refused += response.starts_with("HTTP/1.1 503");
  }
  EXPECT_EQ(served + refused, 30);
  EXPECT_EQ(served, 4);
}

TEST_F(HttpServerTest, ALargeResponseReachesASlowButReadingClient) {
  options_.max_output_bytes = 1024;  // Does not bound Send.
  StartServer();
  RawClient client(server_->port(), /*receive_buffer_bytes=*/4096);
  ASSERT_TRUE(client.Send(kGetHold));
  const std::string body(3'000'000, 'x');
  ASSERT_THAT(NextCall().writer->Send(Text(body)), IsOk());
  EXPECT_THAT(client.ReadResponse(), EndsWith("\r\n\r\n" + body));
}

TEST_F(HttpServerTest, HundredsOfStreamsRunAtOnceFromOtherThreads) {
  constexpr size_t kStreams = 200;
  constexpr size_t kPieces = 20;
  constexpr size_t kThreads = 4;
  StartServer();
  std::vector<RawClient> clients;
  for (size_t i = 0; i < kStreams; ++i) clients.push_back(ConnectAndSend(kGetHold));
  std::vector<Call> calls;
  for (size_t i = 0; i < kStreams; ++i) calls.push_back(NextCall());
  {
    std::vector<std::jthread> writers;
    for (size_t t = 0; t < kThreads; ++t) {
      writers.emplace_back([&, t] {
        for (size_t i = t; i < kStreams; i += kThreads) {
          EXPECT_THAT(calls[i].writer->StartStream(200, {}), IsOk());
        }
        for (size_t n = 0; n < kPieces; ++n) {
          for (size_t i = t; i < kStreams; i += kThreads) {
            EXPECT_THAT(calls[i].writer->Write("piece"), IsOk());
          }
        }
        for (size_t i = t; i < kStreams; i += kThreads) {
          EXPECT_THAT(calls[i].writer->End(), IsOk());
        }
      });
    }
    for (size_t i = 0; i < kStreams; ++i) EXPECT_TRUE(i % 50 != 0 || Alive());
  }
  std::string body;
  for (size_t n = 0; n < kPieces; ++n) body += "5\r\npiece\r\n";
  for (RawClient& client : clients) {
    client.ReadUntil("\r\n\r\n");
    EXPECT_EQ(client.ReadUntil("0\r\n\r\n"), body + "0\r\n\r\n");
  }
}

// Meaningful mainly under the sanitizers: writers, leaving clients and Stop at the same time.
TEST_F(HttpServerTest, WritersClientsAndStopMayRace) {
  constexpr size_t kStreams = 60;
  StartServer();
  std::vector<RawClient> clients;
  for (size_t i = 0; i < kStreams; ++i) clients.push_back(ConnectAndSend(kGetHold));
  std::vector<Call> calls;
  std::atomic<int> closed = 0;
  for (size_t i = 0; i < kStreams; ++i) calls.push_back(NextCall());
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = t; i < kStreams; i += 3) {
          calls[i].writer->OnClosed([&closed] { ++closed; });
          calls[i].writer->StartStream(200, {}).IgnoreError();
          while (calls[i].writer->Write("x").ok()) {
          }
          calls[i].writer->Abort();
          calls[i].writer.reset();
        }
      });
    }
    for (size_t i = 0; i < kStreams / 2; ++i) clients[i].Reset();
    server_->Stop(absl::ZeroDuration());
  }
  EXPECT_EQ(closed, static_cast<int>(kStreams));
}

TEST_F(HttpServerTest, StopLetsRequestsInProgressFinish) {
  StartServer();
  RawClient idle = ConnectAndSend(kGetLivez);
  idle.ReadResponse();
  RawClient client = ConnectAndSend(kGetHold);
  const Call call = NextCall();
  const uint16_t port = server_->port();
  std::jthread stopper([&] { server_->Stop(absl::Seconds(15)); });
  idle.ReadToEnd();  // Closed at once: draining has begun.
  EXPECT_FALSE(RawClient(port).connected());
  EXPECT_THAT(call.writer->Send(Text("finished")), IsOk());
  const std::string response = client.ReadResponse();
  EXPECT_THAT(response, HasSubstr("Connection: close"));
  EXPECT_THAT(response, EndsWith("finished"));
  client.Close();
  stopper.join();
}

TEST_F(HttpServerTest, StopClosesWhatDoesNotFinishAndWritersOutliveTheServer) {
  StartServer();
  RawClient client = ConnectAndSend(kGetHold);
  const Call call = NextCall();
  ASSERT_THAT(call.writer->StartStream(200, {}), IsOk());
  const auto closed = WatchClosed(*call.writer);
  server_->Stop(absl::Milliseconds(50));
  EXPECT_FALSE(closed->empty()) << "no callback may come after Stop, so it must have come";
  server_->Stop(absl::Milliseconds(50));
  server_.reset();
  EXPECT_THAT(call.writer->Write("x"), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(call.writer->End(), StatusIs(absl::StatusCode::kCancelled));
  call.writer->Abort();
}

TEST(HttpServerCreateTest, SaysWhatIsWrong) {
  TestHandler handler;
  ServerOptions options;
  options.address = "localhost";
  EXPECT_THAT(HttpServer::Create(options, handler),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("localhost")));
  options.address = "127.0.0.1";
  options.idle_timeout = absl::ZeroDuration();
  EXPECT_THAT(HttpServer::Create(options, handler), StatusIs(absl::StatusCode::kInvalidArgument));
  options.idle_timeout = absl::Seconds(1);
  auto first = HttpServer::Create(options, handler);
  ASSERT_THAT(first, IsOk());
  ASSERT_NE((*first)->port(), 0);
  options.port = (*first)->port();
  EXPECT_THAT(HttpServer::Create(options, handler),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(absl::StrCat(options.port))));
}

TEST_F(HttpServerTest, RoutesTellAWrongMethodFromAWrongPath) {
  Routes routes(&handler_);
  routes.Add("GET", "/thing", [](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
    writer->Send(Text("thing")).IgnoreError();
  });
  Routes bare;
  bare.Add("POST", "/only", [](HttpRequest, std::shared_ptr<ResponseWriter>) {});
  options_.address = "127.0.0.1";
  auto server = HttpServer::Create(options_, routes);
  auto bare_server = HttpServer::Create(options_, bare);
  ASSERT_THAT(server, IsOk());
  ASSERT_THAT(bare_server, IsOk());
  server_ = *std::move(server);
  server_->Start();
  (*bare_server)->Start();

  EXPECT_THAT(Ask("GET /thing HTTP/1.1\r\nHost: h\r\n\r\n"), EndsWith("thing"));
  EXPECT_THAT(Ask(Post("/echo", "fallback")), EndsWith("fallback"));
  const std::string wrong_method = Ask("DELETE /thing HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(wrong_method, StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(wrong_method, HasSubstr("\r\nAllow: GET, HEAD\r\n"));

  RawClient client((*bare_server)->port());
  ASSERT_TRUE(client.Send("GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n"));
  EXPECT_THAT(client.ReadResponse(), StartsWith("HTTP/1.1 404"));
  ASSERT_TRUE(client.Send("POST /\"odd%ff HTTP/1.1\r\nHost: h\r\n\r\n"));
  EXPECT_THAT(client.ReadResponse(), HasSubstr("there is nothing at /\\\"odd\xEF\xBF\xBD"));
  ASSERT_TRUE(client.Send("GET /only HTTP/1.1\r\nHost: h\r\n\r\n"));
  EXPECT_THAT(client.ReadResponse(), HasSubstr("\r\nAllow: POST\r\n"));
  (*bare_server)->Stop(absl::ZeroDuration());
  server_->Stop(absl::ZeroDuration());
  server_.reset();  // Before `routes`.
}

}  // namespace
}  // namespace lynx::http
