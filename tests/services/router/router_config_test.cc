#include "services/router/router_config.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/flag_set.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace lynx::router {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

absl::StatusOr<RouterConfig> Parse(std::vector<const char*> arguments) {
  RouterConfig config;
  config::FlagSet flags("lynx-router", "test");
  AddRouterFlags(flags, config);
  arguments.insert(arguments.begin(), "lynx-router");
  auto parsed = flags.Parse(static_cast<int>(arguments.size()), arguments.data());
  if (!parsed.ok()) return parsed.status();
  if (absl::Status status = CompleteRouterConfig(config); !status.ok()) return status;
  return config;
}

TEST(RouterConfigTest, DerivesWhatIsNotGiven) {
  auto config = Parse({"--model", "/models/tiny/", "--prefill", "a:1,b:2", "--decode", "c:3",
                       "--heartbeat-interval", "200ms"});
  ASSERT_THAT(config, IsOk());
  EXPECT_THAT(config->served_model_names, ElementsAre("tiny"));
  EXPECT_THAT(config->prefill, ElementsAre("a:1", "b:2"));
  EXPECT_EQ(config->suspect_after, absl::Milliseconds(600));
  EXPECT_EQ(config->gone_after, absl::Seconds(2));
}

TEST(RouterConfigTest, NamesWhatIsMissingOrAtOdds) {
  EXPECT_THAT(Parse({"--prefill", "a:1", "--decode", "b:1"}),
              StatusIs(kInvalid, HasSubstr("--model")));
  EXPECT_THAT(Parse({"--model", "m", "--prefill", "a:1"}),
              StatusIs(kInvalid, HasSubstr("--decode")));
  EXPECT_THAT(Parse({"--model", "m", "--prefill", "a:1", "--decode", "b:1", "--suspect-after", "6s",
                     "--gone-after", "5s"}),
              StatusIs(kInvalid, AllOf(HasSubstr("--suspect-after 6s"), HasSubstr("5s"))));
  EXPECT_THAT(Parse({"--model", "..", "--prefill", "a:1", "--decode", "b:1"}),
              StatusIs(kInvalid, HasSubstr("--served-model-name")));
  EXPECT_THAT(Parse({"--model", "/m\xff", "--prefill", "a:1", "--decode", "b:1"}),
              StatusIs(kInvalid, HasSubstr("not UTF-8")));
  EXPECT_THAT(Parse({"--max-inflight", "0"}), StatusIs(kInvalid, HasSubstr("max-inflight")));
}

TEST(RouterConfigTest, PlacementByTimesNeedsLimits) {
  const auto with = [](std::vector<const char*> more) {
    std::vector<const char*> arguments = {"--model", "m", "--prefill", "a:1", "--decode", "b:1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Parse(arguments);
  };
  EXPECT_THAT(with({"--placement", "round-robin"}), IsOk());
  EXPECT_THAT(with({"--placement", "slo-aware", "--slo-tpot", "50ms"}), IsOk());
  EXPECT_THAT(with({"--placement", "slo-aware"}), StatusIs(kInvalid, HasSubstr("--slo-ttft")));
  EXPECT_THAT(with({"--slo-ttft", "2s", "--slo-tpot", "50ms"}), IsOk());
  EXPECT_THAT(with({"--slo-ttft", "2s", "--refuse-late"}),
              StatusIs(kInvalid, HasSubstr("--placement slo-aware")));
  EXPECT_THAT(with({"--placement", "slo-aware", "--slo-tpot", "50ms", "--refuse-late"}),
              StatusIs(kInvalid, HasSubstr("--slo-ttft")));
  EXPECT_THAT(with({"--placement", "fastest"}), StatusIs(kInvalid, HasSubstr("fastest")));
}

TEST(RouterConfigTest, ReadsListenAddresses) {
  auto v4 = ParseListenAddress("listen", "127.0.0.1:0");
  ASSERT_THAT(v4, IsOk());
  EXPECT_EQ(v4->host, "127.0.0.1");
  EXPECT_EQ(v4->port, 0);
  auto v6 = ParseListenAddress("listen", "[::1]:65535");
  ASSERT_THAT(v6, IsOk());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->port, 65535);
  for (const char* bad : {"", "8080", ":8080", "a:", "a:-1", "a:65536", "a:b"}) {
    EXPECT_THAT(ParseListenAddress("listen", bad), StatusIs(kInvalid, HasSubstr("--listen")))
        << bad;
  }
}

TEST(RouterConfigTest, TheAllowListNamesPolicies) {
  RouterConfig config;
  config.model = "models/lynx-tiny-moe";
  config.prefill = config.decode = {"a:1"};
  config.lynx_allow = {"exact", "lynx", "budget"};
  EXPECT_THAT(CompleteRouterConfig(config), IsOk());
  for (const char* bad : {"linx", "lynx:alpha=3", "auto", ""}) {
    config.lynx_allow = {"lynx", bad};
    EXPECT_THAT(CompleteRouterConfig(config),
                StatusIs(kInvalid,
                         AllOf(HasSubstr("--lynx-allow"), HasSubstr(absl::StrCat("'", bad, "'")))));
  }
}

TEST(ModelInfoTest, ReadsTheDemoModel) {
  auto info = LoadModelInfo("models/lynx-tiny-moe");
  ASSERT_THAT(info, IsOk());
  EXPECT_EQ(info->vocab_size, 4096);
  EXPECT_EQ(info->max_context_tokens, 2048);
  EXPECT_EQ(info->experts, 64);
  EXPECT_EQ(info->experts_per_token, 8);
}

TEST(ModelInfoTest, NamesFileAndFault) {
  testing::TempDir dir;
  EXPECT_THAT(LoadModelInfo(dir.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json")));
  std::filesystem::create_directory(dir.path() / "config.json");
  EXPECT_THAT(LoadModelInfo(dir.path()),
              StatusIs(kInvalid, AllOf(HasSubstr("config.json"), HasSubstr("not a regular file"))));
  std::filesystem::remove(dir.path() / "config.json");
  const auto with = [&](const std::string& text) {
    dir.Write("config.json", text);
    return LoadModelInfo(dir.path());
  };
  EXPECT_THAT(with("{"), StatusIs(kInvalid, HasSubstr("not a JSON object")));
  EXPECT_THAT(with("[]"), StatusIs(kInvalid, HasSubstr("not a JSON object")));
  EXPECT_THAT(with(std::string(10000, '[')), StatusIs(kInvalid, HasSubstr("deep")));
  EXPECT_THAT(with(R"({"max_position_embeddings": 5})"),
              StatusIs(kInvalid, HasSubstr("\"vocab_size\" is missing")));
  for (const char* bad : {"0", "-1", "1.5", "\"7\"", "4294967296", "null", "1e30"}) {
    EXPECT_THAT(with(std::string(R"({"max_position_embeddings": 5, "vocab_size": )") + bad + "}"),
                StatusIs(kInvalid, HasSubstr("\"vocab_size\" is")))
        << bad;
  }
  EXPECT_THAT(with(R"({"max_position_embeddings": 5, "vocab_size": 7, "vocab_size": 8})"),
              StatusIs(kInvalid, AllOf(HasSubstr("config.json"), HasSubstr("'vocab_size'"),
                                       HasSubstr("occurs twice"))));
  auto nested = with(R"({"text_config": {"max_position_embeddings": 5, "vocab_size": 7}})");
  ASSERT_THAT(nested, IsOk());
  EXPECT_EQ(nested->vocab_size, 7);
  EXPECT_EQ(nested->experts, 0) << "a dense model";

  const auto experts = [&](const std::string& keys) {
    return with(absl::StrCat(R"({"max_position_embeddings": 5, "vocab_size": 7, )", keys, "}"));
  };
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    auto info = experts(absl::StrCat("\"", key, "\": 16, \"num_experts_per_tok\": 2"));
    ASSERT_THAT(info, IsOk()) << key;
    EXPECT_EQ(info->experts, 16);
    EXPECT_EQ(info->experts_per_token, 2);
  }
  for (const char* dense : {R"("num_experts": 0)", R"("num_experts": null)"}) {
    auto info = experts(dense);
    ASSERT_THAT(info, IsOk()) << dense;
    EXPECT_EQ(info->experts, 0);
  }
  EXPECT_THAT(experts(R"("num_experts": 16)"),
              StatusIs(kInvalid, HasSubstr("num_experts_per_tok")));
  EXPECT_THAT(experts(R"("num_experts": -1)"), StatusIs(kInvalid, HasSubstr("num_experts")));
  EXPECT_THAT(experts(R"("num_experts": 4, "num_experts_per_tok": 5)"),
              StatusIs(kInvalid, HasSubstr("5 of 4")));
}

}  // namespace
}  // namespace lynx::router
