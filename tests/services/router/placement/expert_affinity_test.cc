#include "services/router/placement/expert_affinity.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::router {
namespace {

using Prompt = std::vector<TokenId>;

constexpr StepTime kStep = {.base = absl::Milliseconds(138), .per_row = absl::Milliseconds(24)};

// `length` tokens of a vocabulary of 200 that topics do not share, behind `shared` that all have.
Prompt PromptOf(int topic, std::mt19937_64& random, int length = 64, int shared = 0) {
  Prompt prompt;
  for (int i = 0; i < shared; ++i) prompt.push_back(100000 + i);
  for (int i = 0; i < length; ++i) {
    prompt.push_back(topic * 1000 + static_cast<TokenId>(random() % 200));
  }
  return prompt;
}

PlacementRequest For(const Prompt& prompt) {
  return {.prompt_tokens = static_cast<int64_t>(prompt.size()), .prompt = prompt, .blocks_now = 1};
}

// Nodes of equal speed whose sequences leave in the order in which they came.
class Nodes {
 public:
  explicit Nodes(size_t count, StepTime step_time = kStep) : live_(count), step_time_(step_time) {}

  std::vector<DecodeCandidate> Candidates() const {
    std::vector<DecodeCandidate> candidates;
    for (size_t i = 0; i < live_.size(); ++i) {
      candidates.push_back(
          {.node = i + 1, .free_blocks = 1000, .load = live_[i], .step_time = step_time_});
    }
    return candidates;
  }
  NodeId Place(ExpertAffinity& policy, const Prompt& prompt, size_t most) {
    if (order_.size() == most) {
      --live_[order_.front() - 1];
      order_.erase(order_.begin());
    }
    const NodeId node = *policy.PickDecode(Candidates(), For(prompt));
    ++live_[node - 1];
    order_.push_back(node);
    return node;
  }
  const std::vector<int64_t>& live() const { return live_; }

 private:
  std::vector<int64_t> live_;
  std::vector<NodeId> order_;
  StepTime step_time_;
};

TEST(PromptSketchTest, HasLengthOneAndIgnoresOrder) {
  const PromptSketch sketch = SketchOf(Prompt{1, 2, 2, 70000});
  const PromptSketch same = SketchOf(Prompt{2, 70000, 1, 2});
  double norm = 0;
  for (const float value : sketch) norm += static_cast<double>(value * value);
  EXPECT_NEAR(norm, 1, 1e-6);
  EXPECT_EQ(sketch, same);
  EXPECT_NE(sketch, SketchOf(Prompt{1, 2, 2, 70001}));
  EXPECT_EQ(SketchOf({}), PromptSketch());
}

TEST(ExpertAffinityTest, LikePromptsMeetOnANode) {
  for (const int shared : {0, 300}) {
    SCOPED_TRACE(::testing::Message() << shared << " tokens that every prompt begins with");
    ExpertAffinity policy;
    Nodes nodes(2);
    std::mt19937_64 random(1);
    std::map<int, std::map<NodeId, int>> where;
    for (int i = 0; i < 600; ++i) {
      const int topic = static_cast<int>(random() % 2);
      const NodeId node = nodes.Place(policy, PromptOf(topic, random, 64, shared), 32);
      if (i >= 100) ++where[topic][node];
    }
    // Which topic went where is chance; loads must stay level, so not all can.
    for (int topic = 0; topic < 2; ++topic) {
      const int most = std::max(where[topic][1], where[topic][2]);
      EXPECT_GT(most, 3 * (where[topic][1] + where[topic][2]) / 4) << "topic " << topic;
    }
    EXPECT_NE(where[0][1] > where[0][2], where[1][1] > where[1][2]);
  }
}

TEST(ExpertAffinityTest, NoLikenessOutweighsTheBoundOnCost) {
  const uint64_t seed = 7;
  std::mt19937_64 random(seed);
  ExpertAffinity policy;
  Nodes nodes(4);
  for (int i = 0; i < 2000; ++i) {
    const std::vector<DecodeCandidate> before = nodes.Candidates();
    // Half of all prompts are of one topic.
    const int topic = random() % 2 == 0 ? 0 : static_cast<int>(random() % 6);
    const NodeId node = nodes.Place(policy, PromptOf(topic, random), 64);
    const auto cost = [](int64_t load) { return absl::ToDoubleSeconds(kStep.Step(load + 1)); };
    int64_t least = before.front().load;
    for (const DecodeCandidate& c : before) least = std::min(least, c.load);
    // A departure may have come between, which lowers the least by one.
    ASSERT_LE(cost(nodes.live()[node - 1] - 1),
              cost(least) * (1 + ExpertAffinity::kMostExcess) + 1e-9)
        << "seed " << seed << ", placement " << i;
  }
}

TEST(ExpertAffinityTest, OfNodesAsCheapThoseShortOfBlocksAreLeftAlone) {
  ExpertAffinity policy;
  std::mt19937_64 random(3);
  std::vector<DecodeCandidate> nodes = {
      {.node = 1, .free_blocks = 100, .load = 20, .step_time = kStep},
      {.node = 2, .free_blocks = 100, .load = 20, .step_time = kStep}};
  const NodeId first = *policy.PickDecode(nodes, For(PromptOf(0, random)));
  const NodeId other = *policy.PickDecode(nodes, For(PromptOf(1, random)));
  ASSERT_NE(first, other);
  EXPECT_EQ(policy.PickDecode(nodes, For(PromptOf(0, random))), first);
  nodes[first - 1].free_blocks = 49;
  EXPECT_EQ(policy.PickDecode(nodes, For(PromptOf(0, random))), other);
}

TEST(ExpertAffinityTest, NoRoomMeansWaiting) {
  ExpertAffinity policy;
  const std::vector<DecodeCandidate> nodes = {{.node = 1, .free_blocks = 4, .step_time = kStep}};
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 5}), std::nullopt);
  EXPECT_EQ(policy.PickDecode({}, {.blocks_now = 1}), std::nullopt);
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 4}), 1u);  // Without a prompt, too.
}

TEST(ExpertAffinityTest, BeforeStepsAreMeasuredLoadIsTheCost) {
  ExpertAffinity policy;
  Nodes nodes(3, /*step_time=*/{});
  std::mt19937_64 random(5);
  for (int i = 0; i < 300; ++i) nodes.Place(policy, PromptOf(0, random), 60);
  for (const int64_t live : nodes.live()) {
    EXPECT_GE(live, 15);
    EXPECT_LE(live, 25);
  }
  // One that has not said is taken to be fast, whatever its load.
  std::vector<DecodeCandidate> mixed = nodes.Candidates();
  mixed[0].step_time = kStep;
  mixed[2].step_time = kStep;
  EXPECT_EQ(policy.PickDecode(mixed, For(PromptOf(0, random))), 2u);
}

TEST(ExpertAffinityTest, KvOnItsWayIsPartOfTheCost) {
  ExpertAffinity policy;
  const std::vector<DecodeCandidate> nodes = {
      {.node = 1, .free_blocks = 9, .load = 2, .step_time = kStep},
      {.node = 2, .free_blocks = 9, .load = 3, .step_time = kStep, .held_tokens = 4000}};
  const Prompt prompt(4096, 1);
  PlacementRequest request = For(prompt);
  request.answer_tokens = 10;
  EXPECT_EQ(policy.PickDecode(nodes, request), 1u);
  request.transfer_per_token = absl::Milliseconds(1);
  EXPECT_EQ(policy.PickDecode(nodes, request), 2u);
}

TEST(ExpertAffinityTest, SamePromptsSameChoices) {
  const auto run = [] {
    ExpertAffinity policy;
    Nodes nodes(4);
    std::mt19937_64 random(11);
    std::vector<NodeId> choices;
    for (int i = 0; i < 500; ++i) {
      const int topic = static_cast<int>(random() % 5);
      choices.push_back(nodes.Place(policy, PromptOf(topic, random), 40));
    }
    return choices;
  };
  EXPECT_EQ(run(), run());
}

}  // namespace
}  // namespace lynx::router
