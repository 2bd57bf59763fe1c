#include "common/http/message_parser.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::http {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using State = RequestParser::State;

RequestLimits SmallLimits() {
  return {.max_header_bytes = 2048,
          .max_header_fields = 20,
          .max_target_bytes = 200,
          .max_body_bytes = 1000};
}

struct Outcome {
  std::vector<HttpRequest> requests;
  int error_status = 0;  // 0: no error.
  std::string error_message;
};

// Feeds `stream` in pieces that end at `cuts`, keeping what is left over, as a connection does.
Outcome ParseAll(std::string_view stream, const std::vector<size_t>& cuts = {},
                 const RequestLimits& limits = SmallLimits()) {
  RequestParser parser(limits);
  Outcome out;
  std::string buffer;
  size_t at = 0;
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const size_t end = i < cuts.size() ? cuts[i] : stream.size();
    buffer += stream.substr(at, end - at);
    at = end;
    for (;;) {
      const size_t consumed = parser.Feed(buffer);
      EXPECT_LE(consumed, buffer.size());
      buffer.erase(0, consumed);
      if (parser.state() == State::kFailed) {
        out.error_status = parser.error_status();
        out.error_message = parser.error_message();
        EXPECT_NE(out.error_message, "");
        return out;
      }
      if (parser.state() == State::kDone) {
        out.requests.push_back(parser.TakeRequest());
      } else if (consumed == 0) {
        break;
      }
    }
  }
  return out;
}

TEST(RequestParserTest, ReadsARequest) {
  const Outcome out = ParseAll(
      "POST /v1/chat%20x/%C3%A9?a=%20b&c HTTP/1.1\r\nHost: h\r\nX-Mixed-Case:  v w \r\n"
      "Content-Length: 4\r\n\r\nbody");
  ASSERT_EQ(out.error_status, 0) << out.error_message;
  ASSERT_EQ(out.requests.size(), 1u);
  const HttpRequest& request = out.requests[0];
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/v1/chat x/\xC3\xA9");
  EXPECT_EQ(request.query, "a=%20b&c");
  EXPECT_EQ(request.body, "body");
  EXPECT_THAT(request.headers, ElementsAre(Pair("host", "h"), Pair("x-mixed-case", "v w"),
                                           Pair("content-length", "4")));
  EXPECT_EQ(request.Header("X-MIXED-case"), "v w");
}

TEST(RequestParserTest, TakesTargetsInEveryFormThatServersMust) {
  struct Case {
    std::string target;
    std::string path;
    std::string query;
  };
  for (const Case& c :
       {Case{"/", "/", ""}, Case{"/a?", "/a", ""}, Case{"http://h:1/a/b?q", "/a/b", "q"},
        Case{"HTTP://h", "/", ""}, Case{"http://h?q", "/", "q"}, Case{"*", "*", ""},
        Case{"/a?x=http://y", "/a", "x=http://y"}}) {
    SCOPED_TRACE(c.target);
    const Outcome out = ParseAll("GET " + c.target + " HTTP/1.1\r\nHost: h\r\n\r\n");
    ASSERT_EQ(out.requests.size(), 1u) << out.error_message;
    EXPECT_EQ(out.requests[0].path, c.path);
    EXPECT_EQ(out.requests[0].query, c.query);
  }
}

struct Malformed {
  const char* name;
  std::string bytes;
  int status;
};

std::vector<Malformed> Corpus() {
  const std::string get = "GET / HTTP/1.1\r\nHost: h\r\n";
  const std::string post = "POST / HTTP/1.1\r\nHost: h\r\n";
  return {
      {"both lengths", post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"both lengths, other order",
       post + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400},
      {"length twice, same", post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
      {"length twice, other", post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {"length list", post + "Content-Length: 3, 3\r\n\r\nabc", 400},
      {"length negative", post + "Content-Length: -1\r\n\r\n", 400},
      {"length signed", post + "Content-Length: +3\r\n\r\nabc", 400},
      {"length hex", post + "Content-Length: 0x3\r\n\r\nabc", 400},
      {"length empty", post + "Content-Length: \r\n\r\n", 400},
      {"length past 64 bits", post + "Content-Length: 99999999999999999999\r\n\r\n", 400},
      {"chunked twice", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
       400},
      {"gzip then chunked", post + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"chunked then gzip", post + "Transfer-Encoding: chunked, gzip\r\n\r\n", 501},
      {"identity", post + "Transfer-Encoding: identity\r\n\r\n", 501},
      {"chunked in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"gzip body", post + "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 415},
      {"unknown expectation", post + "Expect: cake\r\nContent-Length: 3\r\n\r\n", 417},
      {"folded field", get + "X: a\r\n b\r\n\r\n", 400},
      {"folded by tab", get + "X: a\r\n\tb\r\n\r\n", 400},
      {"space before the first field", "GET / HTTP/1.1\r\n Host: h\r\n\r\n", 400},
      {"space before colon", get + "X : a\r\n\r\n", 400},
      {"no colon", get + "X\r\n\r\n", 400},
      {"no name", get + ": a\r\n\r\n", 400},
      {"bad name", get + "X(y): a\r\n\r\n", 400},
      {"null in value", get + std::string("X: a\0b\r\n\r\n", 10), 400},
      {"control in value", get + "X: a\x01 b\r\n\r\n", 400},
      {"bare line feed", "GET / HTTP/1.1\nHost: h\n\n", 400},
      {"bare carriage return", get + "X: a\rb\r\n\r\n", 400},
      {"no host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"two hosts", get + "Host: g\r\n\r\n", 400},
      {"no version", "GET /\r\n\r\n", 400},
      {"version 0.9", "GET / HTTP/0.9\r\nHost: h\r\n\r\n", 400},
      {"version 2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"lower-case version", "GET / http/1.1\r\nHost: h\r\n\r\n", 400},
      {"text after version", "GET / HTTP/1.1 x\r\nHost: h\r\n\r\n", 400},
      {"two spaces", "GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"no target", "GET HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"relative target", "GET a/b HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"authority form", "CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"other scheme", "GET ftp://h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"no host in absolute form", "GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"bad escape", "GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"cut escape", "GET /a%2 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"escaped null", "GET /a%00b HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"escaped line break", "GET /a%0d%0ab HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"TLS", "\x16\x03\x01\x02", 400},
      {"only empty lines", "\r\n\r\n\r\n\r\n\r\n\r\n", 400},
      {"long target", "GET /" + std::string(300, 'a') + " HTTP/1.1\r\nHost: h\r\n\r\n", 414},
      {"target without end", "GET /" + std::string(300, 'a'), 414},
      {"long target, and no header yet", "GET /" + std::string(300, 'a') + " HTTP/1.1\r\n", 414},
      {"long header", get + "X: " + std::string(3000, 'a'), 431},
      {"long header, complete", get + "X: " + std::string(3000, 'a') + "\r\n\r\n", 431},
      {"many fields",
       get +
           [] {
             std::string fields;
             for (int i = 0; i < 25; ++i) absl::StrAppend(&fields, "x", i, ":\r\n");
             return fields;
           }() +
           "\r\n",
       431},
      {"body by length", post + "Content-Length: 1001\r\n\r\n", 413},
      {"body of a terabyte", post + "Content-Length: 1000000000000\r\n\r\n", 413},
      {"chunk too large", post + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n", 413},
      {"chunks too large", post + "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n3e8\r\n", 413},
      {"chunk size past 64 bits", post + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
       400},
      {"chunk without size", post + "Transfer-Encoding: chunked\r\n\r\n\r\nabc\r\n", 400},
      {"chunk size not hex", post + "Transfer-Encoding: chunked\r\n\r\nxyz\r\nabc", 400},
      {"chunk longer than said", post + "Transfer-Encoding: chunked\r\n\r\n2\r\nabcdefghi\r\n",
       400},
      {"chunk extension without end",
       post + "Transfer-Encoding: chunked\r\n\r\n1;" + std::string(9000, 'x'), 400},
      {"trailers without end",
       post + "Transfer-Encoding: chunked\r\n\r\n0\r\nx: " + std::string(9000, 'x'), 400},
      {"length as trailer",
       post + "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n", 400},
  };
}

TEST(RequestParserTest, RefusesEveryMalformedRequestByName) {
  for (const Malformed& c : Corpus()) {
    const Outcome out = ParseAll(c.bytes);
    EXPECT_EQ(out.error_status, c.status) << c.name << ": " << out.error_message;
    EXPECT_TRUE(out.requests.empty()) << c.name;
  }
}

TEST(RequestParserTest, WhereTheBytesAreCutMakesNoDifference) {
  std::vector<std::string> streams = {
      "GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
      "\r\nPOST /b?q HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
      "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "2\r\nde\r\n1;ext=\"1\"\r\nf\r\n0\r\nTrailer: t\r\n\r\n"
      "GET /d HTTP/1.0\r\n\r\n"};
  for (const Malformed& c : Corpus()) {
    if (c.bytes.size() < 200) streams.push_back(c.bytes);
  }
  for (const std::string& stream : streams) {
    const Outcome whole = ParseAll(stream);
    std::vector<size_t> every_byte;
    for (size_t cut = 1; cut < stream.size(); ++cut) {
      every_byte.push_back(cut);
      const Outcome cut_once = ParseAll(stream, {cut});
      ASSERT_EQ(cut_once.error_status, whole.error_status) << stream << " cut at " << cut;
      ASSERT_EQ(cut_once.requests.size(), whole.requests.size()) << stream << " cut at " << cut;
    }
    const Outcome bytewise = ParseAll(stream, every_byte);
    EXPECT_EQ(bytewise.error_status, whole.error_status) << stream;
    ASSERT_EQ(bytewise.requests.size(), whole.requests.size()) << stream;
    for (size_t i = 0; i < whole.requests.size(); ++i) {
      EXPECT_EQ(bytewise.requests[i].path, whole.requests[i].path);
      EXPECT_EQ(bytewise.requests[i].headers, whole.requests[i].headers);
      EXPECT_EQ(bytewise.requests[i].body, whole.requests[i].body);
    }
  }
  const Outcome first = ParseAll(streams[0]);
  ASSERT_EQ(first.requests.size(), 4u) << first.error_message;
  EXPECT_EQ(first.requests[1].body, "abc");
  EXPECT_EQ(first.requests[2].body, "def");
  EXPECT_FALSE(first.requests[2].Header("trailer").has_value());
}

// Whatever bytes come, the parser ends in a state, without a crash (sanitizers watch).
TEST(RequestParserTest, SurvivesRandomDamage) {
  constexpr uint32_t kSeed = 20240611;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 rng(kSeed);
  const std::vector<Malformed> corpus = Corpus();
  for (int round = 0; round < 20000; ++round) {
    std::string bytes =
        "POST /c?d HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        "2\r\nde\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n";
    if (round % 2 == 0) bytes = corpus[rng() % corpus.size()].bytes.substr(0, 300);
    for (uint32_t edits = 1 + rng() % 4; edits > 0; --edits) {
      const size_t at = rng() % bytes.size();
      switch (rng() % 3) {
        case 0:
          bytes[at] = static_cast<char>(rng());
          break;
        case 1:
          bytes.erase(at, 1 + rng() % 3);
          break;
        default:
          bytes.insert(at, bytes.substr(rng() % bytes.size(), rng() % 8));
      }
      if (bytes.empty()) bytes = "x";
    }
    const Outcome out = ParseAll(bytes, {rng() % bytes.size()});
    for (const HttpRequest& request : out.requests) {
      ASSERT_LE(request.body.size(), SmallLimits().max_body_bytes);
    }
  }
}

// Feeds in pieces of `step`; returns the body, or the error.
std::string ParseResponse(std::string_view stream, bool head_request, size_t step) {
  ResponseParser parser(head_request);
  std::string body;
  for (size_t at = 0; at < stream.size(); at += step) {
    const absl::Status status = parser.Feed(stream.substr(at, step), [&](std::string_view piece) {
      body += piece;
      return true;
    });
    if (!status.ok()) return absl::StrCat("error ", status.raw_code());
  }
  const absl::Status end = parser.FeedEof();
  if (!end.ok()) return absl::StrCat("error ", end.raw_code());
  return absl::StrCat(parser.head().status, " ", body);
}

TEST(ResponseParserTest, KnowsWhereEachKindOfResponseEnds) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  const std::string data_loss =
      absl::StrCat("error ", static_cast<int>(absl::StatusCode::kDataLoss));
  const std::string invalid =
      absl::StrCat("error ", static_cast<int>(absl::StatusCode::kInvalidArgument));
  struct Case {
    std::string stream;
    bool head_request;
    std::string result;
  };
  for (const Case& c : {
           Case{ok + "Content-Length: 3\r\n\r\nabc", false, "200 abc"},
           Case{ok + "Content-Length: 3\r\n\r\n", true, "200 "},
           Case{ok + "Content-Length: 3\r\n\r\nab", false, data_loss},
           Case{ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", false,
                "200 abc"},
           Case{ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", false, data_loss},
           Case{ok + "\r\nto the end", false, "200 to the end"},
           Case{"HTTP/1.1 100 Continue\r\n\r\n" + ok + "Content-Length: 1\r\n\r\nx", false,
                "200 x"},
           Case{"HTTP/1.1 204 No Content\r\n\r\n", false, "204 "},
           Case{"", false, data_loss},
           Case{"HTTP/1.1 200", false, data_loss},
           Case{"SSH-2.0-OpenSSH\r\n\r\n", false, invalid},
       }) {
    for (size_t step : {size_t{1}, size_t{7}, size_t{1000}}) {
      EXPECT_EQ(ParseResponse(c.stream, c.head_request, step), c.result) << c.stream << step;
    }
  }
}

}  // namespace
}  // namespace lynx::http
