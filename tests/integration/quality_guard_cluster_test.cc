// The quality guard in a whole cluster under a simulated clock: what a policy that harms the
// answers can do, and for how long.
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/local_generator.h"
#include "common/node/sampling_wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/harmful_model_runner.h"
#include "tests/support/sim_cluster.h"

namespace lynx {
namespace {

using ::lynx::testing::HarmfulModelRunner;
using ::lynx::testing::LoadEngine;
using ::lynx::testing::PlainSampling;
using ::lynx::testing::RecordingSink;
using ::lynx::testing::SimCluster;

constexpr uint32_t kSeed = 20240302;
constexpr int kBatch = 8;
constexpr int kWindow = 32;
constexpr int kRows = 4;

// Keeps a batch of endless requests on one decode node.
class GuardedCluster {
 public:
  // `policies`: of the requests in turn; empty for the node's own.
  GuardedCluster(const std::string& node_policy, std::vector<std::string> policies,
                 double max_kl_nats)
      : policies_(std::move(policies)), rng_(kSeed), options_(Options(node_policy, max_kl_nats)) {
    cluster_ = std::make_unique<SimCluster>(options_);
    requests_.resize(kBatch);
    Refill();
    EXPECT_TRUE(cluster_->RunUntil([&] {
      Refill();
      return Value("lynx_node_running_requests{model_name=\"lynx-tiny-moe\"}") == kBatch;
    }));
  }

  // Steps the node until `done`, at most `limit` steps; how many it took.
  template <typename Done>
  int StepUntil(Done done, int limit) {
    int steps = 0;
    for (; !done() && steps < limit; ++steps) {
      Refill();
      cluster_->Run(absl::Milliseconds(1));
    }
    return steps;
  }
  void Steps(int count) {
    StepUntil([] { return false; }, count);
  }

  // Of one series of the decode node; -1: there is none.
  double Value(const std::string& series) const {
    const std::string page = cluster_->Metrics("decode-0");
    const size_t at = page.find("\n" + series + " ");
    return at == std::string::npos ? -1 : std::atof(page.c_str() + at + series.size() + 2);
  }
  bool State(const std::string& state) const {
    return Value("lynx_quality_guard_state{state=\"" + state + "\"}") == 1;
  }
  double Applied() const {
    return Value("lynx_moe_plans_total{phase=\"decode\",result=\"applied\"}");
  }
  double BackedOff() const { return Value("lynx_moe_bypass_total{reason=\"quality_backoff\"}"); }
  double Trips() const { return Value("lynx_quality_guard_trips_total{reason=\"kl\"}"); }

  // Every ended request of `policy` got the tokens it gets alone; how many there were.
  int ExpectAnswersAsAlone(const std::string& policy) {
    auto engine = LoadEngine(options_);
    int compared = 0;
    for (const Request& ended : ended_) {
      if (ended.policy != policy) continue;
      const engine::GenerateRequest request = {ended.prompt,
                                               node::SamplingFromWire(ended.sampling)};
      auto alone = engine::Generate(
          *engine, std::span(&request, 1),
          {.max_context_tokens = 2048, .max_chunk_tokens = options_.step_rows, .max_sequences = 1});
      EXPECT_TRUE(alone.ok()) << alone.status();
      std::vector<std::string> want;
      for (const engine::SampledToken& token : alone->front().output) {
        want.push_back(node::TokenToWire(token).SerializeAsString());
      }
      std::vector<std::string> got;
      for (const proto::Token& token : ended.sink->tokens) got.push_back(token.SerializeAsString());
      EXPECT_EQ(got, want) << "request " << compared;
      ++compared;
    }
    return compared;
  }

  bool harm = false;

 private:
  struct Request {
    std::string policy;
    std::vector<TokenId> prompt;
    proto::SamplingParams sampling;
    std::unique_ptr<RecordingSink> sink;
  };

  SimCluster::Options Options(const std::string& node_policy, double max_kl_nats) {
    return {
        .lynx_policy = node_policy,
        .quality = {.share = 0.5,
                    .rows = kRows,
                    .guard = {.budget = {.max_kl_nats = max_kl_nats},
                              .window = kWindow,
                              .hold = absl::Milliseconds(100),
                              .max_hold = absl::Milliseconds(100)}},
        .wrap_runner = [this](const std::string& name, std::unique_ptr<model::ModelRunner> model)
            -> std::unique_ptr<model::ModelRunner> {
          if (!name.starts_with("decode")) return model;
          return std::make_unique<HarmfulModelRunner>(std::move(model), harm);
        }};
  }

  void Refill() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i].sink != nullptr && !requests_[i].sink->ended) continue;
      if (requests_[i].sink != nullptr) {
        EXPECT_TRUE(requests_[i].sink->end.status.ok()) << requests_[i].sink->end.status;
        ended_.push_back(std::move(requests_[i]));
      }
      Request& next = requests_[i];
      next.policy = policies_[i % policies_.size()];
      next.prompt.assign(1 + rng_() % 20, 0);
      for (TokenId& token : next.prompt) token = static_cast<TokenId>(rng_() % 4000);
      next.sampling = PlainSampling(static_cast<int32_t>(60 + rng_() % 60));
      next.sampling.set_top_logprobs(2);  // Equal log-probabilities are equal bits.
      next.sampling.set_policy(next.policy);
      next.sink = std::make_unique<RecordingSink>();
      cluster_->Submit(next.prompt, next.sampling, *next.sink);
    }
  }

  const std::vector<std::string> policies_;
  std::mt19937 rng_;
  const SimCluster::Options options_;
  std::vector<Request> requests_;
  std::vector<Request> ended_;
  std::unique_ptr<SimCluster> cluster_;  // Talks to the sinks until it ends.
};

TEST(QualityGuardClusterTest, HarmMakesTheNodeExactWithinTheWindowAndItsEndLossyAgain) {
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  GuardedCluster cluster("oea:k0=4", {""}, /*max_kl_nats=*/0.5);
  cluster.Steps(100);
  ASSERT_TRUE(cluster.State("active"));
  ASSERT_EQ(cluster.Trips(), 0) << "the policy itself is within its budget";
  ASSERT_GT(cluster.Applied(), 0);
  ASSERT_GT(cluster.Value("lynx_quality_samples_total{result=\"ok\"}"), 0);

  cluster.harm = true;
  // A window is 32 tokens: four of every second step. The step that is under way comes on top.
  EXPECT_LE(cluster.StepUntil([&] { return cluster.State("backoff"); }, 1000),
            kWindow / kRows * 2 + 2);
  ASSERT_TRUE(cluster.State("backoff"));
  EXPECT_EQ(cluster.Trips(), 1);
  EXPECT_FALSE(cluster.State("active"));
  cluster.Steps(2);
  const double applied = cluster.Applied();
  const double backed_off = cluster.BackedOff();
  // As long as there is harm, whatever the hold time.
  cluster.Steps(200);
  EXPECT_TRUE(cluster.State("backoff"));
  EXPECT_EQ(cluster.Applied(), applied) << "a plan was remapped in back-off";
  EXPECT_GT(cluster.BackedOff(), backed_off);
  EXPECT_GT(cluster.Value("lynx_quality_samples_total{result=\"breach\"}"), 0);

  cluster.harm = false;
  EXPECT_LE(cluster.StepUntil([&] { return cluster.State("active"); }, 1000),
            kWindow / kRows * 2 + 2);
  ASSERT_TRUE(cluster.State("active"));
  cluster.Steps(20);
  EXPECT_GT(cluster.Applied(), applied);
  EXPECT_EQ(cluster.Trips(), 1);
}

TEST(QualityGuardClusterTest, ExactRequestsKeepTheirBitsWhateverTheGuardDoes) {
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  GuardedCluster cluster("oea:k0=4", {"exact", "", "prune:k0=2"}, /*max_kl_nats=*/2);
  for (int round = 0; round < 2; ++round) {
    cluster.Steps(60);
    ASSERT_TRUE(cluster.State("active"));
    cluster.harm = true;
    cluster.StepUntil([&] { return cluster.State("backoff"); }, 200);
    ASSERT_TRUE(cluster.State("backoff"));
    cluster.Steps(60);
    cluster.harm = false;
    cluster.StepUntil([&] { return cluster.State("active"); }, 500);
  }
  EXPECT_EQ(cluster.Trips(), 2);
  EXPECT_GT(cluster.ExpectAnswersAsAlone("exact"), 5);
}

// Not only the node's own policy, and no injected harm: one expert of eight is bad for this model.
TEST(QualityGuardClusterTest, PoliciesThatRequestsNameAreGuardedToo) {
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  GuardedCluster cluster("exact", {"prune:k0=1"}, /*max_kl_nats=*/0.05);
  cluster.StepUntil([&] { return cluster.State("backoff"); }, 200);
  ASSERT_TRUE(cluster.State("backoff"));
  cluster.Steps(2);
  const double applied = cluster.Applied();
  cluster.Steps(200);
  EXPECT_TRUE(cluster.State("backoff"));
  EXPECT_EQ(cluster.Applied(), applied);
}

}  // namespace
}  // namespace lynx
