// The whole command against a server in this process that answers at once.
#include "services/cli/loadtest/loadtest.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/http/routes.h"
#include "common/http/server.h"
#include "common/http/sse.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/services/cli/loadtest/raw_server.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace lynx::loadtest {
namespace {

using Json = nlohmann::json;
using ::lynx::testing::IsOk;
using ::lynx::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::Not;

class LoadtestTest : public ::testing::Test {
 protected:
  using Writer = std::shared_ptr<http::ResponseWriter>;

  void SetUp() override {
    routes_.Add("GET", "/v1/models", [](http::HttpRequest, Writer writer) {
      writer->Send({.status = 200, .headers = {}, .body = R"({"data":[{"id":"the <model>"}]})"})
          .IgnoreError();
    });
    routes_.Add("POST", "/v1/chat/completions",
                [this](http::HttpRequest request, Writer writer) { Answer(request, writer); });
    http::ServerOptions options;
    options.address = "127.0.0.1";
    auto server = http::HttpServer::Create(options, routes_);
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
    server_->Start();
  }
  void TearDown() override { server_->Stop(absl::ZeroDuration()); }

  // On the server's thread. A word is two tokens, the template three.
  void Answer(const http::HttpRequest& request, const Writer& writer) {
    authorised_ = request.Header("authorization") == "Bearer secret-key";
    const Json body = Json::parse(request.body);
    const std::string text = body["messages"][0]["content"];
    const std::vector<std::string> words = absl::StrSplit(text, ' ');
    const Json usage = {{"prompt_tokens", 3 + 2 * words.size()},
                        {"completion_tokens", body["max_tokens"]}};
    if (!body.contains("stream")) {
      writer->Send({.status = 200, .headers = {}, .body = Json{{"usage", usage}}.dump()})
          .IgnoreError();
      return;
    }
    if (++asked_ % 5 == 0 && refuse_) {
      writer->Send({.status = 429, .headers = {{"Retry-After", "1"}}, .body = "later"})
          .IgnoreError();
      return;
    }
    writer->StartStream(200, {{"Content-Type", http::kSseContentType}}).IgnoreError();
    std::string stream;
    for (int i = 0; i < body["max_tokens"]; ++i) {
      stream += http::FormatSseData(R"({"choices":[{"delta":{"content":"x"}}]})");
    }
    stream += http::FormatSseData(Json{{"choices", Json::array()}, {"usage", usage}}.dump());
    writer->Write(stream + "data: [DONE]\n\n").IgnoreError();
    writer->End().IgnoreError();
  }

  int Run(std::vector<std::string> arguments) {
    out_.str("");
    err_.str("");
    const std::string url = absl::StrCat("http://127.0.0.1:", server_->port());
    std::vector<const char*> argv = {"loadtest", url.c_str()};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    return RunLoadtest(static_cast<int>(argv.size()), argv.data(), out_, err_);
  }
  std::string File(const std::string& name) { return (dir_.path() / name).string(); }
  std::string Content(const std::string& name) {
    auto content = ReadFile(File(name), 1 << 24);
    EXPECT_THAT(content, IsOk());
    return content.value_or("");
  }

  TempDir dir_;
  http::Routes routes_;
  std::unique_ptr<http::HttpServer> server_;
  std::atomic<bool> authorised_ = false;
  std::atomic<bool> refuse_ = false;
  int asked_ = 0;  // The server's thread only.
  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(LoadtestTest, ReportsWhatItMeasured) {
  ASSERT_EQ(Run({"--concurrency=4", "--requests=40", "--warmup=5", "--seed=9", "--input-tokens=83",
                 "--output-tokens=6", "--slo=ttft=10s", "--api-key=secret-key", "--json",
                 File("a.json"), "--html", File("a.html"), "--records", File("a.jsonl")}),
            0)
      << err_.str();
  EXPECT_TRUE(authorised_);
  EXPECT_THAT(out_.str(), HasSubstr("40 measured, 40 succeeded, 5 of warm-up left out"));
  EXPECT_THAT(out_.str(), HasSubstr("100.00% met it"));

  const Json json = Json::parse(Content("a.json"));
  EXPECT_EQ(json["schema"], "lynx-loadtest/1");
  EXPECT_EQ(json["model"], "the <model>");
  EXPECT_EQ(json["seed"], 9);
  EXPECT_EQ(json["options"]["output-tokens"], "6");
  EXPECT_EQ(json["tokens_per_word"], 2);
  const Json& run = json["runs"][0];
  EXPECT_EQ(run["requests"]["outcomes"]["ok"], 40);
  EXPECT_EQ(run["tokens"]["prompt"]["p50"], 83) << "(83 - 3) / 2 words";
  EXPECT_EQ(run["tokens"]["output"]["mean"], 6);
  EXPECT_EQ(run["latency_s"]["itl"]["count"], 40 * 5);
  for (const char* name :
       {"ttft", "ttft_from_due", "tpot", "itl", "piece_gap", "e2e", "e2e_from_due", "send_delay"}) {
    for (const char* field : {"count", "mean", "std", "min", "p50", "p90", "p95", "p99", "max"}) {
      EXPECT_TRUE(run["latency_s"][name][field].is_number()) << name << " " << field;
    }
  }
  EXPECT_EQ(run["slo"]["attainment"], 1);

  const std::vector<std::string> lines =
      absl::StrSplit(Content("a.jsonl"), '\n', absl::SkipEmpty());
  EXPECT_EQ(lines.size(), 45u);
  EXPECT_EQ(Json::parse(lines[0])["outcome"], "ok");

  for (const char* file : {"a.json", "a.html"}) {
    EXPECT_THAT(Content(file), Not(HasSubstr("secret-key"))) << file;
  }
  const std::string html = Content("a.html");
  EXPECT_THAT(html, HasSubstr("the &lt;model&gt;"));
  EXPECT_THAT(html, Not(HasSubstr("<model>")));
  EXPECT_THAT(html, HasSubstr("<svg"));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme"));
  for (const char* outside : {"http-equiv", "<script", "src=", "@import", "url(", "<link"}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
}

TEST_F(LoadtestTest, RefusalsAreToldApart) {
  refuse_ = true;
  ASSERT_EQ(Run({"--concurrency=1", "--requests=10", "--json", File("a.json")}), 0) << err_.str();
  const Json run = Json::parse(Content("a.json"))["runs"][0];
  EXPECT_EQ(run["requests"]["outcomes"]["refused_429"], 2);
  EXPECT_EQ(run["retry_after_s"]["max"], 1);
  EXPECT_EQ(run["slo"], nullptr);
  EXPECT_THAT(out_.str(), HasSubstr("Retry-After"));
}

TEST_F(LoadtestTest, ARampFindsThatEverythingHolds) {
  ASSERT_EQ(Run({"--ramp=50,200", "--requests=20", "--slo=e2e=1h", "--output-tokens=2", "--json",
                 File("a.json"), "--html", File("a.html")}),
            0)
      << err_.str();
  const Json json = Json::parse(Content("a.json"));
  EXPECT_EQ(json["runs"].size(), 2u);
  EXPECT_EQ(json["ramp"]["capacity_requests_s"], 200);
  EXPECT_EQ(json["ramp"]["lowest_failed_requests_s"], nullptr);
  EXPECT_THAT(Content("a.html"), HasSubstr("Attainment over rate"));
}

TEST_F(LoadtestTest, ReplaysATrace) {
  ASSERT_EQ(Run({"--trace=services/cli/loadtest/traces/mooncake.jsonl", "--speed=1000",
                 "--length-scale=0.1", "--json", File("a.json")}),
            0)
      << err_.str();
  const Json run = Json::parse(Content("a.json"))["runs"][0];
  EXPECT_EQ(run["requests"]["outcomes"]["ok"], 39);
  EXPECT_NEAR(run["tokens"]["prompt_error"]["mean"].get<double>(), 0, 0.02);
}

TEST_F(LoadtestTest, TakesPromptsFromAFile) {
  const std::string file =
      dir_.Write("p.jsonl", "{\"prompt\":\"one two three\",\"max_tokens\":4}\n").string();
  ASSERT_EQ(Run({"--rate=500", "--requests=5", "--prompts", file, "--json", File("a.json")}), 0)
      << err_.str();
  const Json run = Json::parse(Content("a.json"))["runs"][0];
  EXPECT_EQ(run["tokens"]["prompt"]["max"], 9);
  EXPECT_EQ(run["tokens"]["output"]["max"], 4);
}

TEST_F(LoadtestTest, BadFlagsNameThemselvesAndWhatTheyWant) {
  struct Case {
    std::vector<std::string> flags;
    const char* flag;
    const char* wanted;
  };
  const std::string rate = "--rate=1";
  for (const Case& c : std::vector<Case>{
           {{}, "--rate", "one of"},
           {{"--rate=0"}, "--rate", "over 0"},
           {{"--rate=-3"}, "--rate", "[0, 100000]"},
           {{"--rate=1e30"}, "--rate", "[0, 100000]"},
           {{"--rate=1e-9"}, "--rate", "0.001"},
           {{"--rate=nan"}, "--rate", "finite"},
           {{rate, "--concurrency=2"}, "--concurrency", "one of"},
           {{"--concurrency=-1"}, "--concurrency", "[0, 100000]"},
           {{rate, "--arrivals=pareto"}, "--arrivals", "poisson, gamma, fixed"},
           {{rate, "--burstiness=2"}, "--burstiness", "--arrivals gamma"},
           {{rate, "--burstiness=0"}, "--burstiness", "0.01"},
           {{rate, "--input-tokens=zipf:3"}, "--input-tokens", "uniform:LOW,HIGH"},
           {{rate, "--output-tokens=0"}, "--output-tokens", "1 to"},
           {{rate, "--slo=ttft:2"}, "--slo", "ttft=2s"},
           {{rate, "--attainment=1.5"}, "--attainment", "[0.01, 1]"},
           {{"--ramp=5:1", "--slo=ttft=1s"}, "--ramp", "LOW:HIGH"},
           {{"--ramp=1:5"}, "--ramp", "--slo"},
           {{rate, "--duration=-1s"}, "--duration", "duration like"},
           {{rate, "--timeout=0"}, "--timeout", "1ms"},
           {{rate, "--requests=-1"}, "--requests", "[0, 1000000]"},
           {{rate, "--max-open=0"}, "--max-open", "[1, 100000]"},
           {{rate, "--header=nonsense"}, "--header", "X-Name"},
           {{rate, "--header=Content-Length: 3"}, "--header", "frame"},
           {{rate, "--extra-body=[1]"}, "--extra-body", "JSON object"},
           {{rate, "--json=/no/such/folder/x"}, "--json", "/no/such/folder"},
           {{rate, "--html=" + dir_.path().string()}, "--html", "not a folder"},
           {{"--trace=/no/such/trace"}, "/no/such/trace", ""},
           {{"--trace=CHANGELOG.md"}, "CHANGELOG.md:1:1", "Mooncake"},
           {{rate, "--prompts=CHANGELOG.md"}, "CHANGELOG.md:1:1", "JSON"},
           {{rate, "--no-such-flag"}, "--no-such-flag", "unknown"},
       }) {
    EXPECT_EQ(Run(c.flags), 2) << c.flag;
    EXPECT_THAT(err_.str(), HasSubstr(c.flag));
    EXPECT_THAT(err_.str(), HasSubstr(c.wanted));
    EXPECT_EQ(out_.str(), "");
  }
}

TEST_F(LoadtestTest, BadUrlsSayWhatIsWanted) {
  for (const char* url : {"https://127.0.0.1", "127.0.0.1:8000", "http://", "http://h:0",
                          "http://127.0.0.1/?x=1", "ftp://h"}) {
    std::ostringstream out;
    std::ostringstream err;
    const char* const argv[] = {"loadtest", url, "--rate=1"};
    EXPECT_EQ(RunLoadtest(3, argv, out, err), 2) << url;
    EXPECT_THAT(err.str(), HasSubstr("http://")) << url;
  }
}

// What is asked before the load meets answers of any kind.
TEST_F(LoadtestTest, NonsenseBeforeTheLoadIsAnErrorThatNamesTheUrl) {
  for (const char* nonsense :
       {"", "hello", "[1]", "null", "{\"data\":7}", "{\"data\":[]}", "{\"data\":{\"0\":3}}",
        "{\"data\":[{\"id\":null}]}", "{\"usage\":7}", "{\"usage\":{\"prompt_tokens\":-3}}",
        "{\"usage\":{\"prompt_tokens\":1e99}}", "[[[[[["}) {
    SCOPED_TRACE(nonsense);
    RawServer server([&](int fd) {
      char byte;
      std::string head;
      while (head.find("\r\n\r\n") == std::string::npos && read(fd, &byte, 1) == 1) head += byte;
      WriteAll(fd, absl::StrCat("HTTP/1.1 200 OK\r\nContent-Length: ", strlen(nonsense), "\r\n\r\n",
                                nonsense));
      shutdown(fd, SHUT_WR);
      while (read(fd, &byte, 1) == 1) {  // So that what is unread does not reset the connection.
      }
    });
    const std::string url = absl::StrCat("http://127.0.0.1:", server.port());
    for (const char* model : {"", "m"}) {
      const std::string flag = absl::StrCat("--model=", model);
      std::vector<const char*> argv = {"loadtest", url.c_str(), "--rate=1", "--requests=1"};
      if (*model != '\0') argv.push_back(flag.c_str());
      std::ostringstream out;
      std::ostringstream err;
      EXPECT_EQ(RunLoadtest(static_cast<int>(argv.size()), argv.data(), out, err), 1);
      EXPECT_THAT(err.str(), HasSubstr(url));
    }
  }
}

TEST_F(LoadtestTest, AServerWithoutModelsIsNamed) {
  server_->Stop(absl::ZeroDuration());
  EXPECT_EQ(Run({"--rate=1"}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("cannot connect to 127.0.0.1"));
}

}  // namespace
}  // namespace lynx::loadtest
