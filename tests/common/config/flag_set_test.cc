#include "common/config/flag_set.h"

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace lynx::config {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::lynx::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class FlagSetTest : public ::testing::Test {
 protected:
  FlagSetTest() : flags_("lynx-test", "A program for tests.") {
    flags_.AddString("host", &host_, "Address to listen on");
    flags_.AddInt("port", &port_, {1, 65535}, "Port to listen on");
    flags_.AddDouble("share", &share_, {0, 1}, "Share of memory");
    flags_.AddBool("verbose", &verbose_, "Say more");
    flags_.AddDuration("wait-limit", &wait_limit_, {absl::Milliseconds(1), absl::Minutes(1)},
                       "Longest wait");
    flags_.AddBytes("cache-bytes", &cache_bytes_, {int64_t{1} << 20}, "Size of the cache");
    flags_.AddStrings("node", &nodes_, "Nodes to join");
    flags_.AddChoice("dtype", &dtype_, {"f32", "bf16"}, "Arithmetic");
    flags_.AddSecret("api-key", &api_key_, "Key that clients must send");
    flags_.SetOutput(&out_);
  }
  ~FlagSetTest() override {
    for (const std::string& name : variables_) unsetenv(name.c_str());
  }

  void SetEnv(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    variables_.push_back(name);
  }
  absl::StatusOr<ParseOutcome> Parse(const std::vector<std::string>& arguments) {
    std::vector<const char*> argv = {"lynx-test"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    return flags_.Parse(static_cast<int>(argv.size()), argv.data());
  }
  std::string ConfigFlag(const std::string& text) {
    return "--config=" + dir_.Write("lynx.toml", text).string();
  }

  TempDir dir_;
  FlagSet flags_;
  std::ostringstream out_;
  std::vector<std::string> variables_;
  std::string host_ = "0.0.0.0";
  int32_t port_ = 8000;
  double share_ = 0.5;
  bool verbose_ = false;
  absl::Duration wait_limit_ = absl::Seconds(2);
  int64_t cache_bytes_ = int64_t{64} << 20;
  std::vector<std::string> nodes_ = {"one:1"};
  std::string dtype_ = "bf16";
  std::string api_key_;
};

TEST_F(FlagSetTest, DefaultsStayWhenNothingIsGiven) {
  ASSERT_THAT(Parse({}), IsOk());
  EXPECT_EQ(host_, "0.0.0.0");
  EXPECT_EQ(port_, 8000);
  EXPECT_THAT(nodes_, ElementsAre("one:1"));
}

TEST_F(FlagSetTest, EveryTypeIsReadFromFlags) {
  ASSERT_THAT(Parse({"--host", "::1", "--port=9000", "--share", "0.25", "--verbose",
                     "--wait-limit=500ms", "--cache-bytes", "1.5GiB", "--node", "a:1", "--node",
                     "b:2,c:3", "--dtype", "f32", "--api-key", "-dash"}),
              IsOk());
  EXPECT_EQ(host_, "::1");
  EXPECT_EQ(port_, 9000);
  EXPECT_EQ(share_, 0.25);
  EXPECT_TRUE(verbose_);
  EXPECT_EQ(wait_limit_, absl::Milliseconds(500));
  EXPECT_EQ(cache_bytes_, int64_t{3} << 29);
  EXPECT_THAT(nodes_, ElementsAre("a:1", "b:2", "c:3"));
  EXPECT_EQ(dtype_, "f32");
  EXPECT_EQ(api_key_, "-dash");
}

TEST_F(FlagSetTest, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  SetEnv("LYNX_HOST", "from-environment");
  SetEnv("LYNX_PORT", "2");
  const std::string file = ConfigFlag("host = file\nport = 3\nshare = 0.75  # of all\n");
  ASSERT_THAT(Parse({"--host=from-flag", file}), IsOk());
  EXPECT_EQ(host_, "from-flag");
  EXPECT_EQ(port_, 2);
  EXPECT_EQ(share_, 0.75);
  EXPECT_EQ(dtype_, "bf16");
  EXPECT_THAT(flags_.Describe(),
              AllOf(HasSubstr("host=from-flag (flag)"), HasSubstr("port=2 (environment)"),
                    HasSubstr("share=0.75 (file)"), HasSubstr("dtype=bf16 (default)")));
}

TEST_F(FlagSetTest, EveryTypeIsReadFromAFileNamedByTheEnvironment) {
  SetEnv("LYNX_CONFIG", dir_.Write("a.toml",
                                   "# Comment\n\nhost = \"a # \\\"b\\\"\"\nport=1\r\n"
                                   "verbose = true\nwait-limit = 1m\ncache-bytes = 2MB\n"
                                   "node = [\"x, y:1\", z:2,]\ndtype = f32")
                            .string());
  ASSERT_THAT(Parse({}), IsOk());
  EXPECT_EQ(host_, "a # \"b\"");
  EXPECT_EQ(port_, 1);
  EXPECT_TRUE(verbose_);
  EXPECT_EQ(wait_limit_, absl::Minutes(1));
  EXPECT_EQ(cache_bytes_, 2'000'000);
  EXPECT_THAT(nodes_, ElementsAre("x", "y:1", "z:2"));
  EXPECT_EQ(dtype_, "f32");
}

TEST_F(FlagSetTest, UnknownNamesAreErrorsThatNameThem) {
  EXPECT_THAT(Parse({"--prot=1"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--prot")));
  EXPECT_THAT(Parse({"stray"}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stray")));
  EXPECT_THAT(Parse({ConfigFlag("\nprot = 1\n")}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("lynx.toml:2"), HasSubstr("'prot'"))));
}

TEST_F(FlagSetTest, BadValuesAreErrorsThatNameOptionValueRangeAndSource) {
  const struct {
    std::string argument, option, value, wanted;
  } kCases[] = {
      {"--port=70000", "--port", "'70000'", "[1, 65535]"},
      {"--port=80x", "--port", "'80x'", "integer"},
      {"--port=99999999999999999999", "--port", "'99999999999999999999'", "integer"},
      {"--share=nan", "--share", "'nan'", "[0, 1]"},
      {"--share=1.5", "--share", "'1.5'", "[0, 1]"},
      {"--verbose=maybe", "--verbose", "maybe", "true"},
      {"--wait-limit=2", "--wait-limit", "'2'", "[1ms, 1m]"},
      {"--wait-limit=inf", "--wait-limit", "'inf'", "[1ms, 1m]"},
      {"--cache-bytes=5KiB", "--cache-bytes", "'5KiB'", "64MiB >= 1MiB"},
      {"--cache-bytes=-1", "--cache-bytes", "'-1'", ">= 1MiB"},
      {"--dtype=f64", "--dtype", "'f64'", "f32, bf16"},
      {"--node=a,,b", "--node", "'a,,b'", "without empty items"},
      {"--node=a,", "--node", "'a,'", "without empty items"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(Parse({c.argument}), StatusIs(absl::StatusCode::kInvalidArgument,
                                              AllOf(HasSubstr(c.option.substr(2)),
                                                    HasSubstr(c.value), HasSubstr(c.wanted))))
        << c.argument;
  }
  SetEnv("LYNX_PORT", "tcp://10.0.0.1:80");
  EXPECT_THAT(Parse({}), StatusIs(absl::StatusCode::kInvalidArgument,
                                  AllOf(HasSubstr("tcp://10.0.0.1:80"), HasSubstr("LYNX_PORT"))));
}

TEST_F(FlagSetTest, AFlagGivenTwiceIsAnError) {
  EXPECT_THAT(Parse({"--port=1", "--port=2"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--port"), HasSubstr("one value"))));
}

TEST_F(FlagSetTest, MissingValueIsAnError) {
  EXPECT_THAT(Parse({"--port"}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--port")));
}

TEST_F(FlagSetTest, NothingAfterTheEqualsSignIsAnEmptyValue) {
  ASSERT_THAT(Parse({"--host=", "--api-key=", "--port=9000"}), IsOk());
  EXPECT_EQ(host_, "");
  EXPECT_EQ(api_key_, "");
  EXPECT_EQ(port_, 9000);
  EXPECT_THAT(Parse({"--port=", "--host", "::1"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--port: ''")));
  EXPECT_THAT(Parse({"--verbose="}), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(FlagSetTest, HelpShowsEveryOptionWithItsDefault) {
  const auto outcome = Parse({"--help"});
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, ParseOutcome::kPrinted);
  EXPECT_THAT(out_.str(),
              AllOf(HasSubstr("--port"), HasSubstr("default 8000"), HasSubstr("[1, 65535]"),
                    HasSubstr("--cache-bytes"), HasSubstr("default 64MiB"), HasSubstr("f32|bf16"),
                    HasSubstr("LYNX_CACHE_BYTES")));
}

TEST_F(FlagSetTest, VersionIsPrinted) {
  const auto outcome = Parse({"--version"});
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, ParseOutcome::kPrinted);
  EXPECT_THAT(out_.str(), HasSubstr("lynx-test "));
}

TEST_F(FlagSetTest, SecretsNeverShow) {
  api_key_ = "";
  EXPECT_THAT(flags_.Describe(), HasSubstr("api-key=<unset>"));
  ASSERT_THAT(Parse({"--api-key=hunter2"}), IsOk());
  EXPECT_EQ(api_key_, "hunter2");
  EXPECT_THAT(flags_.Describe(), AllOf(HasSubstr("api-key=<set>"), Not(HasSubstr("hunter2"))));
  EXPECT_THAT(Parse({"--api-key=hunter2", "--api-key=hunter3"}),
              StatusIs(absl::StatusCode::kInvalidArgument, Not(HasSubstr("hunter"))));
}

TEST_F(FlagSetTest, ValuesAreWhatDescribeShows) {
  ASSERT_THAT(Parse({"--api-key=hunter2", "--port=9"}), IsOk());
  const auto values = flags_.Values();
  EXPECT_THAT(values, ::testing::Contains(::testing::Pair("port", "9")));
  EXPECT_THAT(values, ::testing::Contains(::testing::Pair("api-key", "<set>")));
  EXPECT_THAT(values, Not(::testing::Contains(::testing::Pair("config", ::testing::_))));
}

TEST_F(FlagSetTest, WhatIsPrintedIsAConfigFileThatGivesTheSame) {
  flags_.AddConfigActions();
  SetEnv("LYNX_PORT", "1234");
  ASSERT_THAT(Parse({"--host", "a \"b\" \\ #c\nd", "--share=0.123456789", "--wait-limit=1.5s",
                     "--node=h:1,[::1]:2", "--api-key=hunter2", "--verbose", "--print-config"}),
              IsOk());
  EXPECT_TRUE(flags_.AnswerConfigActions());
  const std::string printed = out_.str();
  EXPECT_THAT(printed, Not(HasSubstr("hunter2")));
  EXPECT_THAT(printed,
              AllOf(HasSubstr("# api-key is <set>\n"), HasSubstr("port = 1234  # environment"),
                    HasSubstr("verbose = true  # flag"), HasSubstr("dtype = bf16\n")));
  unsetenv("LYNX_PORT");

  const std::string host = host_;
  host_ = dtype_ = "other";
  port_ = 1;
  share_ = 0;
  wait_limit_ = absl::ZeroDuration();
  nodes_ = {"other"};
  verbose_ = false;
  ASSERT_THAT(Parse({ConfigFlag(printed)}), IsOk());
  EXPECT_EQ(host_, host);
  EXPECT_EQ(port_, 1234);
  EXPECT_EQ(share_, 0.123456789);
  EXPECT_EQ(wait_limit_, absl::Milliseconds(1500));
  EXPECT_THAT(nodes_, ElementsAre("h:1", "[::1]:2"));
  EXPECT_TRUE(verbose_);
  EXPECT_EQ(dtype_, "bf16");
}

TEST_F(FlagSetTest, AnEmptyListAndAnEmptyTextSurviveBeingPrinted) {
  nodes_ = {};
  host_ = "";
  const std::string printed = flags_.ToConfigFile();
  host_ = "other";
  nodes_ = {"other"};
  ASSERT_THAT(Parse({ConfigFlag(printed)}), IsOk());
  EXPECT_EQ(host_, "");
  EXPECT_THAT(nodes_, IsEmpty());
}

TEST_F(FlagSetTest, ActionsAreForTheCommandLineAlone) {
  flags_.AddConfigActions();
  SetEnv("LYNX_CHECK_CONFIG", "true");
  ASSERT_THAT(Parse({}), IsOk());
  EXPECT_FALSE(flags_.AnswerConfigActions());
  EXPECT_THAT(flags_.Describe(), Not(HasSubstr("check-config")));
  ASSERT_THAT(Parse({"--check-config"}), IsOk());
  EXPECT_TRUE(flags_.AnswerConfigActions());
  EXPECT_THAT(out_.str(), HasSubstr("lynx-test: the configuration is fine"));
  EXPECT_THAT(Parse({ConfigFlag("check-config = true\n")}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown key")));
}

TEST_F(FlagSetTest, AnOptionCanBeKeptFromTheEnvironment) {
  setenv("LYNX_HOST", "from-environment", 1);
  flags_.IgnoreEnvironment("host");
  ASSERT_THAT(Parse({}), IsOk());
  unsetenv("LYNX_HOST");
  EXPECT_NE(host_, "from-environment");
}

TEST_F(FlagSetTest, MalformedFilesAreErrorsWithTheirLine) {
  for (const char* line : {"[section]", "port", "port =", "= 1", "host = \"open", "host = a b",
                           "node = [a", "node = [a b]", "host = \"a\\t\"", "port = 1 = 2"}) {
    EXPECT_THAT(Parse({ConfigFlag(std::string("share = 0\n") + line + "\n")}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lynx.toml:2")))
        << line;
  }
  EXPECT_THAT(Parse({ConfigFlag("port = 1\nport = 2\n")}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("line 1")));
  EXPECT_THAT(Parse({ConfigFlag("port = [1, 2]\n")}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one value")));
  EXPECT_THAT(Parse({"--config=/nonexistent/lynx.toml"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/lynx.toml")));
  EXPECT_THAT(Parse({"--config=" + dir_.path().string()}), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(FlagSetTest, PositionalsAreTakenOnlyWhenDeclared) {
  std::string mode;
  flags_.AddPositional("mode", &mode, "What to run");
  ASSERT_THAT(Parse({"decode", "--port=1"}), IsOk());
  EXPECT_EQ(mode, "decode");
  EXPECT_THAT(Parse({"decode", "prefill"}), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(FlagSetDeathTest, WrongDeclarationsAbort) {
  FlagSet flags("lynx-test", "");
  int32_t port = 0;
  EXPECT_DEATH(flags.AddInt("port", &port, {1, 2}, ""), "out of its range");
  EXPECT_DEATH(flags.AddInt("Port", &port, {}, ""), "lower-case");
  EXPECT_DEATH(flags.AddInt("config", &port, {}, ""), "twice");
}

TEST(ParseBytesTest, ReadsUnitsAndRefusesTheRest) {
  EXPECT_EQ(*ParseBytes("0"), 0);
  EXPECT_EQ(*ParseBytes("4096"), 4096);
  EXPECT_EQ(*ParseBytes("64KiB"), 65536);
  EXPECT_EQ(*ParseBytes("2GB"), 2'000'000'000);
  EXPECT_EQ(*ParseBytes("7B"), 7);
  EXPECT_EQ(FormatBytes(65536), "64KiB");
  EXPECT_EQ(FormatBytes(0), "0");
  EXPECT_EQ(FormatBytes(1000), "1000");
  for (const char* text : {"", "MiB", "x", "1XB", "-1", "1e30", "9223372036854775807KiB", "nan"}) {
    EXPECT_THAT(ParseBytes(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

}  // namespace
}  // namespace lynx::config
