#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/local_generator.h"
#include "common/node/sampling_wire.h"
#include "common/rpc/inproc_channel.h"
#include "common/telemetry/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/metrics_sum.h"
#include "tests/support/sim_cluster.h"
#include "tests/support/test_size.h"

namespace lynx {
namespace {

using ::lynx::testing::LoadEngine;
using ::lynx::testing::MetricsSum;
using ::lynx::testing::PlainSampling;
using ::lynx::testing::RecordingSink;
using ::lynx::testing::SimCluster;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

struct Ask {
  std::vector<TokenId> prompt;
  proto::SamplingParams sampling;
};

// Requests of mixed lengths and settings; a pure function of the seed.
std::vector<Ask> MixedAsks(int count, uint32_t seed, uint32_t max_prompt = 150,
                           uint32_t max_new = 40, uint32_t vocabulary = 4093) {
  std::mt19937 rng(seed);
  std::vector<Ask> asks;
  for (int i = 0; i < count; ++i) {
    Ask ask;
    const size_t length = 1 + rng() % max_prompt;
    for (size_t t = 0; t < length; ++t)
      ask.prompt.push_back(static_cast<TokenId>(rng() % vocabulary));
    ask.sampling = PlainSampling(static_cast<int32_t>(1 + rng() % max_new));
    ask.sampling.set_seed(rng());
    ask.sampling.set_choice_index(static_cast<uint32_t>(rng() % 3));
    switch (i % 5) {
      case 1:
        ask.sampling.set_temperature(0.8f);
        ask.sampling.set_top_p(0.9f);
        break;
      case 2:
        ask.sampling.set_temperature(1.2f);
        ask.sampling.set_top_k(20);
        ask.sampling.set_presence_penalty(0.7f);
        ask.sampling.set_frequency_penalty(0.3f);
        break;
      case 3:
        ask.sampling.set_temperature(1.0f);
        ask.sampling.set_min_p(0.05f);
        ask.sampling.set_repetition_penalty(1.2f);
        ask.sampling.set_top_logprobs(3);
        break;
      case 4:
        ask.sampling.add_stop_token_ids(static_cast<int32_t>(rng() % std::min(300u, vocabulary)));
        ask.sampling.set_temperature(0.5f);
        ask.sampling.set_min_new_tokens(2);
        if (ask.sampling.max_new_tokens() < 2) ask.sampling.set_max_new_tokens(2);
        break;
      default:
        break;
    }
    asks.push_back(std::move(ask));
  }
  return asks;
}

// What one process alone generates: the tokens as the wire carries them.
std::vector<std::vector<proto::Token>> Alone(const SimCluster::Options& options,
                                             const std::vector<Ask>& asks) {
  auto engine = LoadEngine(options);
  std::vector<std::vector<proto::Token>> answers;
  for (const Ask& ask : asks) {
    const engine::GenerateRequest request = {ask.prompt, node::SamplingFromWire(ask.sampling)};
    auto result = engine::Generate(
        *engine, std::span(&request, 1),
        {.max_context_tokens = 2048, .max_chunk_tokens = options.step_rows, .max_sequences = 1});
    EXPECT_TRUE(result.ok()) << result.status();
    const engine::GenerateResult& one = result->front();
    EXPECT_TRUE(one.status.ok()) << one.status;
    std::vector<proto::Token> tokens;
    for (const engine::SampledToken& token : one.output) tokens.push_back(node::TokenToWire(token));
    if (one.finish_reason == engine::FinishReason::kStop) tokens.pop_back();
    answers.push_back(std::move(tokens));
  }
  return answers;
}

std::vector<std::string> Serialized(const std::vector<proto::Token>& tokens) {
  std::vector<std::string> bytes;
  for (const proto::Token& token : tokens) bytes.push_back(token.SerializeAsString());
  return bytes;
}

// Returns the metrics pages of the first nodes at the end; that of a prefill node if there is one.
std::string ExpectClusterEqualsAlone(const SimCluster::Options& options,
                                     const std::vector<Ask>& asks) {
  const auto want = Alone(options, asks);
  SimCluster cluster(options);
  std::vector<std::unique_ptr<RecordingSink>> sinks;
  for (const Ask& ask : asks) {
    sinks.push_back(std::make_unique<RecordingSink>());
    cluster.Submit(ask.prompt, ask.sampling, *sinks.back());
  }
  EXPECT_TRUE(cluster.RunUntil([&] {
    return std::all_of(sinks.begin(), sinks.end(), [](const auto& sink) { return sink->ended; });
  }));
  for (size_t i = 0; i < asks.size(); ++i) {
    EXPECT_TRUE(sinks[i]->end.status.ok()) << i << ": " << sinks[i]->end.status;
    // Log-probabilities included: equal bytes are equal bits.
    EXPECT_THAT(Serialized(sinks[i]->tokens), ElementsAreArray(Serialized(want[i])))
        << "request " << i;
  }
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Seconds(10)));
  return cluster.Metrics("decode-0") + (options.prefill > 0 ? cluster.Metrics("prefill-0") : "");
}

TEST(ClusterTest, ThirtyTwoConcurrentRequestsGetTheTokensOfOneProcessAlone) {
  ExpectClusterEqualsAlone({.prefill = 2, .decode = 2},
                           MixedAsks(testing::ForTestSize(6, 32, 200), /*seed=*/20240229));
}

TEST(ClusterTest, TheSameInFullPrecision) {
  ExpectClusterEqualsAlone({.prefill = 2, .decode = 2, .compute_dtype = DType::kF32},
                           MixedAsks(testing::ForTestSize(3, 16, 64), /*seed=*/7));
}

// Latents instead of heads' keys and values in the KV that is handed over.
TEST(ClusterTest, TheSameOfAModelWithLatents) {
  ExpectClusterEqualsAlone(
      {.prefill = 2, .decode = 2, .model_dir = "tests/golden/variants/deepseek-v3-plain"},
      MixedAsks(testing::ForTestSize(6, 32, 200), /*seed=*/11, /*max_prompt=*/150, /*max_new=*/40,
                /*vocabulary=*/97));
}

std::string Variant(const std::string& name) { return "tests/golden/variants/" + name; }

// A prompt that begins like an earlier one continues from its KV, also among many at a time, and
// after what was kept had to make room.
TEST(ClusterTest, AKeptPrefixChangesNoToken) {
  for (const char* model : {"models/lynx-tiny-moe", "tests/golden/variants/gpt-oss",
                            "tests/golden/variants/deepseek-v3-plain"}) {
    for (const int32_t blocks : {256, 40}) {
      SCOPED_TRACE(::testing::Message() << model << " with " << blocks << " blocks");
      std::vector<Ask> asks = MixedAsks(testing::ForTestSize(8, 32, 200), /*seed=*/3,
                                        /*max_prompt=*/60, /*max_new=*/20, /*vocabulary=*/97);
      for (size_t i = 0; i < asks.size(); ++i) {
        // One of three long beginnings.
        std::mt19937 rng(static_cast<uint32_t>(i % 3));
        std::vector<TokenId> prompt;
        while (prompt.size() < 40 + 25 * (i % 3)) {
          prompt.push_back(static_cast<TokenId>(rng() % 97));
        }
        prompt.insert(prompt.end(), asks[i].prompt.begin(), asks[i].prompt.end());
        asks[i].prompt = std::move(prompt);
        asks[i].sampling.set_prompt_logprobs(i % 8 == 7);
      }
      const std::string metrics = ExpectClusterEqualsAlone(
          {.kv_blocks = blocks, .step_rows = 48, .model_dir = model}, asks);
      EXPECT_GT(MetricsSum(metrics,
                           "lynx_node_prompt_tokens_total{model_name=\"lynx-tiny-moe\","
                           "source=\"cached\"}"),
                0);
    }
  }
}

TEST(ClusterTest, AnAnswerSaysHowMuchOfItsPromptWasKept) {
  SimCluster cluster({});
  std::vector<TokenId> prompt(70);
  std::iota(prompt.begin(), prompt.end(), 5);
  const auto cached = [&](bool prompt_logprobs) {
    RecordingSink sink;
    proto::SamplingParams sampling = PlainSampling(2);
    sampling.set_prompt_logprobs(prompt_logprobs);
    cluster.Submit(prompt, sampling, sink);
    EXPECT_TRUE(cluster.RunUntil([&] { return sink.ended; }));
    EXPECT_EQ(sink.prompt_logprobs, prompt_logprobs ? 69 : 0);
    return sink.cached_tokens;
  };
  EXPECT_EQ(cached(false), 0);
  EXPECT_EQ(cached(false), 64);
  EXPECT_EQ(cached(true), 0) << "every row's logits are wanted";
  prompt.resize(64);
  EXPECT_EQ(cached(false), 48) << "a token is left to compute";
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Seconds(10)));
}

// Windows of 8 tokens in two of three layers, chunks of 16 in four of five, a window in all.
TEST(ClusterTest, TheSameOfModelsWithWindows) {
  for (const char* name : {"gpt-oss", "llama4", "mistral-window"}) {
    SCOPED_TRACE(name);
    ExpectClusterEqualsAlone(
        {.prefill = 2, .decode = 2, .step_rows = 48, .model_dir = Variant(name)},
        MixedAsks(testing::ForTestSize(6, 24, 100), /*seed=*/11,
                  /*max_prompt=*/200, /*max_new=*/90, /*vocabulary=*/97));
  }
}

TEST(ClusterTest, PreemptionChangesNoTokenOfModelsWithWindows) {
  std::vector<Ask> asks = MixedAsks(testing::ForTestSize(4, 8, 24), /*seed=*/5, /*max_prompt=*/24,
                                    /*max_new=*/100, /*vocabulary=*/97);
  for (Ask& ask : asks) {  // All grow as long: two that were admitted early cannot both stay.
    ask.sampling.set_max_new_tokens(240);
    ask.sampling.clear_stop_token_ids();
  }
  for (const auto& [name, blocks] : {std::pair{"gpt-oss", 30}, {"llama4", 36}}) {
    SCOPED_TRACE(name);
    const std::string metrics = ExpectClusterEqualsAlone(
        {.kv_blocks = blocks, .step_rows = 32, .max_batch = 16, .model_dir = Variant(name)}, asks);
    EXPECT_GT(MetricsSum(metrics, "lynx_node_preemptions_total{"), 0)
        << "the pool is small enough that this test must preempt";
  }
}

// A window of 11 tokens in every layer: neither prompt nor answer would fit into the pools whole.
TEST(ClusterTest, ASequenceLongerThanThePoolIsServed) {
  const SimCluster::Options options = {
      .kv_blocks = 4, .step_rows = 16, .max_batch = 2, .model_dir = Variant("mistral-window")};
  Ask ask{.prompt = {}, .sampling = PlainSampling(150)};
  for (int i = 0; i < 300; ++i) ask.prompt.push_back(i * i % 97);
  const auto want =
      Alone({.kv_blocks = 64, .step_rows = 64, .model_dir = options.model_dir}, {ask});
  SimCluster cluster(options);
  RecordingSink sink;
  cluster.Submit(ask.prompt, ask.sampling, sink);
  int32_t least_free = 4;
  EXPECT_TRUE(cluster.RunUntil([&] {
    least_free = std::min(least_free, cluster.pool("decode-0").free_blocks());
    return sink.ended;
  }));
  EXPECT_TRUE(sink.end.status.ok()) << sink.end.status;
  EXPECT_THAT(Serialized(sink.tokens), ElementsAreArray(Serialized(want[0])));
  EXPECT_GE(least_free, 1) << "11 tokens and room for the next lie in 3 blocks at most";
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Seconds(10)));
  // The last 11 tokens lie in one block or two, of two layers.
  const double sent = MetricsSum(cluster.Metrics("prefill-0"), "lynx_kv_transfer_bytes_total{");
  EXPECT_LT(sent, 8192);
}

// The decode pool holds a fraction of what the batch needs, so sequences are preempted and
// recomputed there.
TEST(ClusterTest, PreemptionChangesNoToken) {
  const SimCluster::Options options = {.kv_blocks = 12, .step_rows = 32, .max_batch = 16};
  const std::string metrics = ExpectClusterEqualsAlone(
      options,
      MixedAsks(testing::ForTestSize(8, 24, 100), /*seed=*/5, /*max_prompt=*/24, /*max_new=*/120));
  EXPECT_GT(MetricsSum(metrics, "lynx_node_preemptions_total{"), 0)
      << "the pool is small enough that this test must preempt";
}

// The same when what they held is copied out and back, and when there is place for few copies.
TEST(ClusterTest, CopiesOfPreemptedSequencesChangeNoToken) {
  for (const char* model : {"models/lynx-tiny-moe", "tests/golden/variants/gpt-oss",
                            "tests/golden/variants/deepseek-v3-plain"}) {
    for (const int64_t swap_blocks : {1000, 9}) {
      SCOPED_TRACE(::testing::Message() << model << " " << swap_blocks);
      const bool windows = std::string(model).ends_with("gpt-oss");
      std::vector<Ask> asks = MixedAsks(testing::ForTestSize(8, 24, 100), /*seed=*/5,
                                        /*max_prompt=*/24, /*max_new=*/120, /*vocabulary=*/97);
      for (Ask& ask : asks) ask.sampling.set_max_new_tokens(120);
      const std::string metrics = ExpectClusterEqualsAlone({.kv_blocks = windows ? 30 : 12,
                                                            .step_rows = 32,
                                                            .max_batch = 16,
                                                            .swap_blocks = swap_blocks,
                                                            .model_dir = model},
                                                           asks);
      EXPECT_GT(MetricsSum(metrics, "lynx_node_preemptions_total{"), 0);
      EXPECT_GT(MetricsSum(metrics, "lynx_node_swapped_out_bytes_total"), 0);
    }
  }
}

// Chunks of prompts beside rows that decode, prefixes that are kept, preempted prompts, copies: all
// on one node.
TEST(ClusterTest, PromptsComputedOnTheirDecodeNodeChangeNoToken) {
  for (const char* model : {"models/lynx-tiny-moe", "tests/golden/variants/gpt-oss",
                            "tests/golden/variants/deepseek-v3-plain"}) {
    const int few = std::string(model).ends_with("gpt-oss") ? 30 : 14;
    for (const auto& [blocks, swap_blocks] : {std::pair{256, 0}, {few, 0}, {few, 1000}}) {
      SCOPED_TRACE(::testing::Message() << model << " " << blocks << " " << swap_blocks);
      std::vector<Ask> asks = MixedAsks(testing::ForTestSize(24, 24, 200), /*seed=*/3,
                                        /*max_prompt=*/60, /*max_new=*/90, /*vocabulary=*/97);
      for (size_t i = 0; i < asks.size(); ++i) {
        asks[i].prompt.insert(asks[i].prompt.begin(), 10 + 15 * (i % 3), 7);  // They begin alike.
        asks[i].sampling.set_max_new_tokens(90);
        asks[i].sampling.set_prompt_logprobs(i % 8 == 7);
      }
      const std::string metrics = ExpectClusterEqualsAlone({.prefill = 0,
                                                            .kv_blocks = blocks,
                                                            .step_rows = 32,
                                                            .max_batch = 16,
                                                            .prompt_rows = 8,
                                                            .swap_blocks = swap_blocks,
                                                            .model_dir = model},
                                                           asks);
      EXPECT_EQ(MetricsSum(metrics, "lynx_node_local_prefills_total{"), asks.size());
      EXPECT_GT(MetricsSum(metrics,
                           "lynx_node_prompt_tokens_total{model_name=\"lynx-tiny-moe\","
                           "source=\"cached\"}"),
                0);
      EXPECT_EQ(MetricsSum(metrics, "lynx_node_preemptions_total{") > 0, blocks == few);
      EXPECT_EQ(MetricsSum(metrics, "lynx_node_swapped_out_bytes_total") > 0, swap_blocks > 0);
    }
  }
}

TEST(ClusterTest, LogProbabilitiesOfAPromptAreTheSameWhereverItIsComputed) {
  const auto logprobs = [](int prefill) {
    SimCluster cluster({.prefill = prefill, .max_batch = 4, .prompt_rows = 8});
    std::vector<TokenId> prompt(70);
    std::iota(prompt.begin(), prompt.end(), 5);
    RecordingSink other;
    cluster.Submit({1, 2, 3}, PlainSampling(60), other);
    RecordingSink sink;
    proto::SamplingParams sampling = PlainSampling(3);
    sampling.set_prompt_logprobs(true);
    cluster.Submit(prompt, sampling, sink);
    EXPECT_TRUE(cluster.RunUntil([&] { return sink.ended && other.ended; }));
    EXPECT_EQ(sink.prompt.size(), 69u);
    return Serialized(sink.prompt);
  };
  EXPECT_THAT(logprobs(0), ElementsAreArray(logprobs(1)));
}

// Every third request asks to be exact, in batches that are otherwise remapped without mercy.
// `meanwhile` happens once all are submitted. Returns the metrics page of the decode node.
std::string ExpectExactAmongRemapped(
    const SimCluster::Options& options, std::vector<Ask> asks,
    const std::function<void(SimCluster&)>& meanwhile = [](SimCluster&) {}) {
  const auto want = Alone(options, asks);
  SimCluster cluster(options);
  std::vector<std::unique_ptr<RecordingSink>> sinks;
  size_t others_changed = 0;
  for (size_t i = 0; i < asks.size(); ++i) {
    sinks.push_back(std::make_unique<RecordingSink>());
    if (i % 3 == 0) asks[i].sampling.set_policy("exact");
    if (i % 3 == 1) asks[i].sampling.set_policy("vote:M=9,floor=0");
    cluster.Submit(asks[i].prompt, asks[i].sampling, *sinks.back());
  }
  meanwhile(cluster);
  EXPECT_TRUE(cluster.RunUntil([&] {
    return std::all_of(sinks.begin(), sinks.end(), [](const auto& sink) { return sink->ended; });
  }));
  for (size_t i = 0; i < asks.size(); ++i) {
    EXPECT_TRUE(sinks[i]->end.status.ok()) << i << ": " << sinks[i]->end.status;
    if (i % 3 == 0) {
      EXPECT_THAT(Serialized(sinks[i]->tokens), ElementsAreArray(Serialized(want[i])))
          << "request " << i;
    } else if (Serialized(sinks[i]->tokens) != Serialized(want[i])) {
      ++others_changed;
    }
  }
  EXPECT_GT(others_changed, 0u) << "nothing was remapped, so this test shows nothing";
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Seconds(10)));
  const std::string page = cluster.Metrics("decode-0");
  EXPECT_GT(MetricsSum(page, "lynx_moe_remapped_assignments_total{phase=\"decode\"}"), 0);
  EXPECT_GT(MetricsSum(page, "lynx_moe_expert_weight_saved_bytes_total"), 0);
  if (options.prefill > 1) {
    EXPECT_EQ(MetricsSum(cluster.Metrics("prefill-1"), "lynx_moe_remapped_assignments_total"), 0);
  }
  return page;
}

constexpr char kHarsh[] = "lynx:alpha=1,beta=1,floor=0";

TEST(ClusterTest, ExactRequestsAmongRemappedOnesGetTheTokensOfOneProcessAlone) {
  ExpectExactAmongRemapped({.prefill = 2, .lynx_policy = kHarsh},
                           MixedAsks(testing::ForTestSize(9, 32, 200), /*seed=*/20240229));
}

// A preempted exact request recomputes its KV in chunks, beside decode rows that are remapped in
// the one case and not in the other.
TEST(ClusterTest, PreemptionAmongRemappedRequestsChangesNoTokenOfExactOnes) {
  for (const bool remap_mixed_steps : {false, true}) {
    SCOPED_TRACE(remap_mixed_steps ? "mixed steps remapped" : "mixed steps exact");
    const std::string page = ExpectExactAmongRemapped(
        {.prefill = 2,
         .kv_blocks = 12,
         .step_rows = 32,
         .max_batch = 16,
         .lynx_policy = kHarsh,
         .remap_mixed_steps = remap_mixed_steps},
        MixedAsks(testing::ForTestSize(8, 24, 100), /*seed=*/5, /*max_prompt=*/24,
                  /*max_new=*/120));
    EXPECT_GT(MetricsSum(page, "lynx_node_preemptions_total{"), 0);
    const double mixed =
        MetricsSum(page, "lynx_moe_plans_total{phase=\"mixed\",result=\"applied\"}");
    EXPECT_EQ(mixed > 0, remap_mixed_steps);
  }
}

// The same of exact requests whose prompts are computed beside decode rows.
TEST(ClusterTest, PromptsBesideRemappedRequestsChangeNoTokenOfExactOnes) {
  for (const bool remap_mixed_steps : {false, true}) {
    SCOPED_TRACE(remap_mixed_steps ? "mixed steps remapped" : "mixed steps exact");
    const std::string page =
        ExpectExactAmongRemapped({.prefill = 0,
                                  .max_batch = 16,
                                  .prompt_rows = 32,
                                  .lynx_policy = kHarsh,
                                  .remap_mixed_steps = remap_mixed_steps},
                                 MixedAsks(testing::ForTestSize(24, 32, 200), /*seed=*/20240229));
    const double mixed =
        MetricsSum(page, "lynx_moe_plans_total{phase=\"mixed\",result=\"applied\"}");
    EXPECT_EQ(mixed > 0, remap_mixed_steps);
    EXPECT_EQ(MetricsSum(page, "lynx_moe_remapped_assignments_total{phase=\"prefill\"}"), 0);
  }
}

TEST(ClusterTest, APolicyOutlivesARetry) {
  ExpectExactAmongRemapped(
      {.prefill = 2, .lynx_policy = kHarsh},
      MixedAsks(testing::ForTestSize(9, 24, 60), /*seed=*/11), [](SimCluster& cluster) {
        cluster.Run(absl::Milliseconds(3));
        cluster.Kill("prefill-0");
        cluster.Run(absl::Seconds(10));
        EXPECT_GT(MetricsSum(cluster.RouterMetrics(), "lynx_router_retries_total"), 0);
      });
}

TEST(ClusterTest, APolicyThatTheNodeCannotReadFailsItsOwnSequenceOnly) {
  SimCluster cluster({.lynx_policy = kHarsh});
  for (const char* policy : {"made_up", "lynx:alpha=-1", "lynx:floor=9", "auto"}) {
    RecordingSink bad;
    RecordingSink good;
    auto sampling = PlainSampling(20);
    cluster.Submit({1, 2, 3}, sampling, good);
    sampling.set_policy(policy);
    cluster.Submit({1, 2, 3}, sampling, bad);
    EXPECT_TRUE(cluster.RunUntil([&] { return good.ended && bad.ended; }, absl::Seconds(20)));
    EXPECT_TRUE(good.end.status.ok()) << good.end.status;
    EXPECT_EQ(good.tokens.size(), 20u);
    EXPECT_FALSE(bad.end.status.ok());
    EXPECT_THAT(std::string(bad.end.status.message()), HasSubstr(policy));
  }
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Seconds(10)));
}

void CancelTwelve(const SimCluster::Options& options, uint32_t vocabulary, int32_t max_new) {
  SimCluster cluster(options);
  std::vector<std::unique_ptr<RecordingSink>> sinks;
  std::vector<router::SequenceId> ids;
  for (const Ask& ask : MixedAsks(12, 3, /*max_prompt=*/150, /*max_new=*/40, vocabulary)) {
    sinks.push_back(std::make_unique<RecordingSink>());
    auto sampling = PlainSampling(max_new);
    ids.push_back(cluster.Submit(ask.prompt, sampling, *sinks.back()));
  }
  // Some still queued, some in prefill, some decoding.
  for (router::SequenceId id : ids) {
    cluster.Run(absl::Milliseconds(3));
    cluster.service().Cancel(id);
  }
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Seconds(10)));
  for (const auto& sink : sinks) EXPECT_FALSE(sink->ended);
}

TEST(ClusterTest, CancellingReturnsEveryBlockOnBothSides) {
  CancelTwelve({.kv_blocks = 128}, 4093, 1000);
  CancelTwelve({.kv_blocks = 128, .model_dir = Variant("gpt-oss")}, 97, 300);
  CancelTwelve({.prefill = 0, .kv_blocks = 128, .prompt_rows = 4}, 4093, 1000);
  CancelTwelve({.prefill = 0, .kv_blocks = 128, .prompt_rows = 4, .model_dir = Variant("gpt-oss")},
               97, 300);
}

// A cancelled sequence leaves its step at the end of a layer and returns its blocks there, and the
// others' answers do not notice.
TEST(ClusterTest, CancelledSequencesLeaveTheStepsOfOthers) {
  const absl::Duration layer_time = absl::Milliseconds(5);
  SimCluster::Options options{.kv_blocks = 256, .layer_time = layer_time};
  const std::vector<Ask> asks =
      MixedAsks(12, 3, /*max_prompt=*/150, /*max_new=*/40, /*vocabulary=*/4093);
  SimCluster cluster(options);
  std::vector<std::unique_ptr<RecordingSink>> sinks;
  std::vector<router::SequenceId> ids;
  for (const Ask& ask : asks) {
    sinks.push_back(std::make_unique<RecordingSink>());
    ids.push_back(cluster.Submit(ask.prompt, ask.sampling, *sinks.back()));
  }
  // Every other one, at odd moments: first of prefill steps, then of decode steps.
  for (size_t i = 0; i < ids.size(); i += 2) {
    cluster.Run(absl::Milliseconds(17));
    cluster.service().Cancel(ids[i]);
  }
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Seconds(60)));
  testing::LoneEngine lone(options);
  for (size_t i = 1; i < asks.size(); i += 2) {
    EXPECT_EQ(sinks[i]->ids(), lone.Answer(asks[i].prompt, asks[i].sampling)) << "ask " << i;
  }
  for (const char* node : {"prefill-0", "decode-0"}) {
    const std::string metrics = cluster.Metrics(node);
    const double count = MetricsSum(metrics, "lynx_node_release_duration_seconds_count");
    EXPECT_GT(count, 0) << node;
    // None takes longer than the layer that runs.
    EXPECT_LE(MetricsSum(metrics, "lynx_node_release_duration_seconds_sum"),
              count * absl::ToDoubleSeconds(layer_time))
        << node;
  }
}

// A router of the test's own, which may say what it likes.
class RawRouter final : public rpc::Channel::Handler {
 public:
  RawRouter(SimCluster& cluster, Incarnation incarnation)
      : cluster_(cluster),
        incarnation_(incarnation),
        channel_(*rpc::InProcChannel::Create(cluster.network(), {}, cluster.loop(), registry_)) {
    channel_->Start(*this);
    for (const char* name : {"prefill-0", "decode-0"}) {
      Node& node = nodes_[name];
      node.peer = *channel_->Connect(cluster.endpoint(name));
      proto::Envelope ping;
      ping.mutable_ping();
      Send(name, std::move(ping));
      EXPECT_TRUE(cluster.RunUntil([&] { return node.incarnation != 0; }));
    }
  }
  void OnMessage(rpc::PeerId peer, proto::Envelope envelope) override {
    for (auto& [name, node] : nodes_) {
      if (node.peer != peer) continue;
      node.incarnation = envelope.sender();
      if (!envelope.has_node_status()) node.heard.push_back(std::move(envelope));
    }
  }
  void Send(const std::string& name, proto::Envelope envelope) {
    envelope.set_sender(incarnation_);
    envelope.set_receiver(nodes_[name].incarnation);
    ASSERT_TRUE(channel_->Send(nodes_[name].peer, std::move(envelope)).ok());
  }
  proto::GrantInfo Reserve(uint64_t sequence, int32_t prompt, int32_t max_new) {
    SendReserve(sequence, prompt, max_new);
    return Next("decode-0").grant().grant();
  }
  // On the decode node alone, from the prompt on.
  void Generate(uint64_t sequence, int32_t prompt, int32_t max_new,
                absl::Duration deadline = absl::Seconds(5)) {
    SendReserve(sequence, prompt, max_new);
    Prefill(sequence, prompt, {}, max_new, "decode-0", deadline);
  }
  void Cancel(const std::string& node, uint64_t sequence) {
    proto::Envelope envelope;
    envelope.mutable_cancel()->set_sequence(sequence);
    Send(node, std::move(envelope));
  }
  void Prefill(uint64_t sequence, int32_t prompt, const proto::GrantInfo& grant,
               int32_t max_new = 8, const std::string& node = "prefill-0",
               absl::Duration deadline = absl::Seconds(5)) {
    proto::Envelope envelope;
    proto::Prefill& prefill = *envelope.mutable_prefill();
    prefill.set_sequence(sequence);
    for (int32_t i = 0; i < prompt; ++i) prefill.add_tokens(5);
    *prefill.mutable_sampling() = PlainSampling(max_new);
    *prefill.mutable_grant() = grant;
    prefill.set_deadline_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(deadline)));
    Send(node, std::move(envelope));
  }
  // The next word of the node; empty when there is none.
  proto::Envelope Next(const std::string& name) {
    std::vector<proto::Envelope>& heard = nodes_[name].heard;
    EXPECT_TRUE(cluster_.RunUntil([&] { return !heard.empty(); }, absl::Seconds(10)));
    if (heard.empty()) return {};
    proto::Envelope first = std::move(heard.front());
    heard.erase(heard.begin());
    return first;
  }
  // The node's last word on the sequence, after whatever else it says; empty when there is none.
  proto::Terminal End(const std::string& name, uint64_t sequence) {
    for (;;) {
      const proto::Envelope envelope = Next(name);
      if (envelope.terminal().sequence() == sequence ||
          envelope.body_case() == proto::Envelope::BODY_NOT_SET) {
        return envelope.terminal();
      }
    }
  }

 private:
  void SendReserve(uint64_t sequence, int32_t prompt, int32_t max_new) {
    proto::Envelope envelope;
    envelope.mutable_reserve()->set_sequence(sequence);
    envelope.mutable_reserve()->set_prompt_tokens(prompt);
    envelope.mutable_reserve()->set_max_new_tokens(max_new);
    envelope.mutable_reserve()->set_lease_ms(1000);
    Send("decode-0", std::move(envelope));
  }

  struct Node {
    rpc::PeerId peer = 0;
    Incarnation incarnation = 0;
    std::vector<proto::Envelope> heard;
  };

  SimCluster& cluster_;
  const Incarnation incarnation_;
  telemetry::Registry registry_;
  std::unique_ptr<rpc::InProcChannel> channel_;
  std::map<std::string, Node> nodes_;
};

void ExpectServes(SimCluster& cluster) {
  RecordingSink sink;
  cluster.Submit({1, 2, 3}, PlainSampling(40), sink);
  EXPECT_TRUE(cluster.RunUntil([&] { return sink.ended; }, absl::Seconds(20)));
  EXPECT_TRUE(sink.end.status.ok()) << sink.end.status;
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Seconds(20)));
}

TEST(ClusterTest, APromptThatItsGrantCannotTakeIsRefused) {
  SimCluster cluster({});
  RawRouter router(cluster, 4711);
  uint64_t sequence = 0;
  const auto expect_refused = [&](int32_t prompt, int32_t blocks, int32_t held) {
    proto::GrantInfo grant = router.Reserve(++sequence, 32, 8);
    ASSERT_EQ(grant.blocks(), 3);
    grant.set_blocks(blocks);
    grant.set_held_prefix_tokens(held);
    router.Prefill(sequence, prompt, grant);
    EXPECT_EQ(router.Next("prefill-0").refused().reason(), proto::Refused::REASON_INVALID)
        << prompt << " tokens, " << blocks << " blocks, " << held << " held";
  };
  expect_refused(40, 1, 0);
  expect_refused(40, -1, 0);
  expect_refused(32, 3, 32);
  expect_refused(20, 3, 32);
  ExpectServes(cluster);
}

TEST(ClusterTest, AReservationWithMoreHashesThanItsPromptHasBlocksIsRefused) {
  SimCluster cluster({});
  RawRouter router(cluster, 4711);
  uint64_t sequence = 0;
  const auto reserve = [&](int32_t prompt, int hashes) {
    proto::Envelope envelope;
    proto::Reserve& its = *envelope.mutable_reserve();
    its.set_sequence(++sequence);
    its.set_prompt_tokens(prompt);
    its.set_max_new_tokens(8);
    its.set_lease_ms(1000);
    for (int i = 0; i < hashes; ++i) its.add_prefix_hashes(static_cast<uint64_t>(i));
    router.Send("decode-0", std::move(envelope));
    return router.Next("decode-0");
  };
  for (const auto& [prompt, hashes] : {std::pair{33, 3}, {32, 2}, {16, 1}, {1, 1}, {33, 100000}}) {
    const proto::Envelope answer = reserve(prompt, hashes);
    EXPECT_EQ(answer.refused().reason(), proto::Refused::REASON_INVALID);
    EXPECT_EQ(
        answer.refused().message(),
        absl::StrCat(hashes, " hashes of whole blocks do not fit ", prompt, " prompt tokens"));
  }
  EXPECT_EQ(cluster.pool("decode-0").free_blocks(), cluster.pool("decode-0").capacity_blocks());
  EXPECT_TRUE(reserve(33, 2).grant().has_grant());
  EXPECT_TRUE(reserve(16, 0).grant().has_grant());
  ExpectServes(cluster);
}

TEST(ClusterTest, ADecodeNodeComputesThePromptsItHasGrantedRoomForAndNoOthers) {
  SimCluster cluster({.kv_blocks = 8, .prompt_rows = 8});
  RawRouter router(cluster, 4711);
  const auto prefill = [&](uint64_t sequence, int32_t prompt, int32_t max_new = 2) {
    router.Prefill(sequence, prompt, {}, max_new, "decode-0");
    return router.Next("decode-0");
  };
  EXPECT_EQ(prefill(1, 32).refused().reason(), proto::Refused::REASON_NOT_READY) << "no grant";
  router.Reserve(1, 32, 8);
  EXPECT_EQ(prefill(1, 33).refused().reason(), proto::Refused::REASON_INVALID);
  EXPECT_EQ(prefill(1, 32, 1000).refused().reason(), proto::Refused::REASON_INVALID);
  EXPECT_TRUE(prefill(1, 32).first_token().has_token());
  EXPECT_EQ(router.Next("decode-0").token_batch().entries(0).position(), 1u);
  EXPECT_EQ(router.Next("decode-0").terminal().kind(), proto::Terminal::KIND_FINISHED);
  EXPECT_EQ(prefill(1, 32).refused().reason(), proto::Refused::REASON_NOT_READY) << "came twice";
  ExpectServes(cluster);
}

TEST(ClusterTest, APromptOnItsDecodeNodeThatIsCancelledOrLateEndsOnce) {
  SimCluster cluster({.prompt_rows = 4});
  RawRouter router(cluster, 4711);
  router.Generate(1, 32, 600);
  router.Generate(2, 400, 8);  // In short chunks, as 1 decodes.
  cluster.Run(absl::Milliseconds(20));
  router.Cancel("decode-0", 2);
  EXPECT_EQ(router.End("decode-0", 2).kind(), proto::Terminal::KIND_CANCELLED);
  router.Generate(3, 400, 8, absl::Milliseconds(30));
  const proto::Terminal late = router.End("decode-0", 3);
  EXPECT_EQ(late.kind(), proto::Terminal::KIND_FAILED);
  EXPECT_EQ(late.status_code(), static_cast<uint32_t>(absl::StatusCode::kDeadlineExceeded));
  router.Cancel("decode-0", 1);
  EXPECT_EQ(router.End("decode-0", 1).kind(), proto::Terminal::KIND_CANCELLED);
  ExpectServes(cluster);
}

TEST(ClusterTest, ASequenceThatMayOutgrowThePoolIsNotAdopted) {
  SimCluster cluster({.kv_blocks = 8});
  RawRouter router(cluster, 4711);
  router.Prefill(1, 32, router.Reserve(1, 32, 8), /*max_new=*/1000);
  EXPECT_EQ(router.Next("decode-0").terminal().kind(), proto::Terminal::KIND_FAILED);
  ExpectServes(cluster);
}

}  // namespace
}  // namespace lynx
