#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/text/tokenizer.h"
#include "gtest/gtest.h"
#include "services/router/front/completion_handler.h"
#include "tests/support/fake_response_writer.h"
#include "tests/support/faulty_transfer_engine.h"
#include "tests/support/metrics_sum.h"
#include "tests/support/sim_cluster.h"

// MET-5: what the router says of a request's time and tokens is what its client measures, and the
// parts add up to the whole.
namespace lynx {
namespace {

using ::lynx::testing::FakeResponseWriter;
using ::lynx::testing::FaultyTransferEngine;
using ::lynx::testing::MetricsSum;
using ::lynx::testing::SimCluster;
using ::lynx::testing::TransferFault;

class FirstTokenTimeTest : public ::testing::Test {
 protected:
  FirstTokenTimeTest() {
    SimCluster::Options options = {.prefill = 2, .kv_blocks = 32};
    options.step_time = [this](const model::StepStats& stats) {
      return stats.prefill_rows > 0 ? prefill_step_ : decode_step_;
    };
    options.wrap_transfer = [this](const std::string& name, EventLoop& loop,
                                   std::unique_ptr<transfer::TransferEngine> engine)
        -> std::unique_ptr<transfer::TransferEngine> {
      if (!name.starts_with("prefill")) return engine;
      auto faulty = std::make_unique<FaultyTransferEngine>(std::move(engine), loop);
      faulty->set_script([this](int, const proto::TransferHeader& header) -> TransferFault {
        if (!header.has_commit() || transfer_ == absl::ZeroDuration()) return {};
        return {.kind = TransferFault::kDelay, .delay = transfer_};
      });
      return faulty;
    };
    cluster_ = std::make_unique<SimCluster>(options);
    tokenizer_ = *text::Tokenizer::Load("models/lynx-tiny-moe");
    router::FrontOptions front;
    front.limits.model_names = {"lynx-tiny-moe"};
    front.limits.vocab_size = tokenizer_->vocab_size();
    front.limits.max_context_tokens = 2048;
    handler_ = std::make_unique<router::CompletionHandler>(
        front, *tokenizer_, nullptr, cluster_->service(), cluster_->loop(), registry_);
  }

  std::shared_ptr<FakeResponseWriter> Begin(int max_tokens, const std::string& prompt) {
    auto writer = std::make_shared<FakeResponseWriter>();
    handler_->Handle(
        {.method = "POST",
         .path = "/v1/completions",
         .query = {},
         .headers = {},
         .body = absl::StrCat(R"({"model":"lynx-tiny-moe","temperature":0,"ignore_eos":true,)",
                              R"("stream":true,"stream_options":{"include_usage":true},)",
                              R"("max_tokens":)", max_tokens, R"(,"prompt":")", prompt, "\"}"),
         .peer = {}},
        writer);
    return writer;
  }
  // Runs until the client has read so many events; the time that took.
  absl::Duration Until(const FakeResponseWriter& writer, size_t events) {
    const absl::Time began = cluster_->loop().Now();
    while (writer.Events().size() < events && !writer.finished()) {
      cluster_->Run(absl::Milliseconds(1));
      if (cluster_->loop().Now() - began > absl::Minutes(1)) break;
    }
    EXPECT_GE(writer.Events().size(), events) << writer.body();
    return cluster_->loop().Now() - began;
  }
  double StageSum(const std::string& stage) {
    return MetricsSum(
        cluster_->RouterMetrics(),
        absl::StrCat("lynx_router_stage_duration_seconds_sum{stage=\"", stage, "\"}"));
  }
  double FirstTokenStages() {
    return StageSum("queue") + StageSum("given_up") + StageSum("reserve") + StageSum("prefill");
  }
  double FirstTokenTime() {
    return MetricsSum(registry_.Render(), "lynx_router_time_to_first_token_seconds_sum");
  }

  absl::Duration prefill_step_ = absl::Milliseconds(300);
  absl::Duration decode_step_ = absl::Milliseconds(500);
  absl::Duration transfer_ = absl::Milliseconds(200);
  telemetry::Registry registry_;
  std::unique_ptr<SimCluster> cluster_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<router::CompletionHandler> handler_;
};

constexpr double kClientClock = 0.0011;  // The client looks once a millisecond.

TEST_F(FirstTokenTimeTest, PartsAddUpToWhatTheClientMeasures) {
  auto other = Begin(60, "def g(x):");  // Keeps decode in steps of half a second.
  Until(*other, 3);
  const double others = FirstTokenTime();
  const double others_stages = FirstTokenStages();
  EXPECT_NEAR(others_stages, others, 1e-9);

  const double transfer = StageSum("kv_transfer");
  const double wait = StageSum("decode_wait");
  auto writer = Begin(4, "import os");
  const absl::Duration first = Until(*writer, 1);
  const absl::Duration second = first + Until(*writer, 2);
  EXPECT_GE(first, absl::Milliseconds(300));
  EXPECT_NEAR(FirstTokenTime() - others, absl::ToDoubleSeconds(first), kClientClock);
  EXPECT_NEAR(FirstTokenStages() - others_stages, FirstTokenTime() - others, 1e-9);
  EXPECT_GE(StageSum("kv_transfer") - transfer, 0.2);
  EXPECT_GE(StageSum("decode_wait") - wait, 0.5);
  EXPECT_NEAR(FirstTokenStages() - others_stages + StageSum("kv_transfer") - transfer +
                  StageSum("decode_wait") - wait,
              absl::ToDoubleSeconds(second), kClientClock);
  EXPECT_TRUE(cluster_->RunUntil([&] { return other->finished() && writer->finished(); }));
}

// The time of an attempt that was given up is part of it.
TEST_F(FirstTokenTimeTest, ARetryLosesNoTime) {
  auto writer = Begin(4, "import os");
  cluster_->Run(absl::Milliseconds(100));
  for (const char* name : {"prefill-0", "prefill-1"}) {
    if (MetricsSum(cluster_->Metrics(name), "lynx_node_running_requests") > 0) {
      cluster_->Kill(name);
      break;
    }
  }
  const absl::Duration first = absl::Milliseconds(100) + Until(*writer, 1);
  EXPECT_GT(MetricsSum(cluster_->RouterMetrics(), "lynx_router_retries_total"), 0);
  EXPECT_NEAR(FirstTokenTime(), absl::ToDoubleSeconds(first), kClientClock);
  EXPECT_NEAR(FirstTokenStages(), FirstTokenTime(), 1e-9);
  EXPECT_GT(StageSum("given_up"), 0.1);
  EXPECT_TRUE(cluster_->RunUntil([&] { return writer->finished(); }));
}

// Both roles see the prompt; its tokens count as computed or cached once, and the client hears of
// cached ones once.
TEST_F(FirstTokenTimeTest, PromptTokensCountOnceOverBothRoles) {
  const auto tokens = [&](const std::string& source) {
    double sum = 0;
    for (const char* node : {"prefill-0", "prefill-1", "decode-0"}) {
      sum += MetricsSum(
          cluster_->Metrics(node),
          absl::StrCat("lynx_node_prompt_tokens_total{model_name=\"lynx-tiny-moe\",source=\"",
                       source, "\"}"));
    }
    return sum;
  };
  std::string prompt = "x";
  for (int i = 0; i < 40; ++i) absl::StrAppend(&prompt, " ", i * 37);
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  // Three times: two prefill nodes take turns, so the third finds its beginning kept.
  for (int i = 0; i < 3; ++i) {
    auto writer = Begin(2, prompt);
    ASSERT_TRUE(cluster_->RunUntil([&] { return writer->finished(); }));
    const std::string& body = writer->body();
    const auto number = [&](const std::string& key) {
      const size_t at = body.find(absl::StrCat("\"", key, "\":"));
      EXPECT_NE(at, std::string::npos) << body;
      return std::stoll(body.substr(at + key.size() + 3));
    };
    prompt_tokens += number("prompt_tokens");
    cached_tokens += number("cached_tokens");
  }
  EXPECT_GT(cached_tokens, 0);
  EXPECT_EQ(tokens("cached"), static_cast<double>(cached_tokens));
  EXPECT_EQ(tokens("computed") + tokens("cached"), static_cast<double>(prompt_tokens));
}

}  // namespace
}  // namespace lynx
