#include "services/router/placement/expert_affinity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "services/router/placement/lowest.h"
#include "services/router/placement/predicted_time.h"

namespace lynx::router {
namespace {

// How many prompts the mean of all looks back.
constexpr int64_t kCommonPrompts = 256;
// Nodes remembered that are no candidates now: they may come back.
constexpr size_t kMostAbsent = 256;

void MoveTo(PromptSketch& mean, const PromptSketch& sketch, double share) {
  const auto weight = static_cast<float>(share);
  for (size_t i = 0; i < mean.size(); ++i) mean[i] += (sketch[i] - mean[i]) * weight;
}

// By how much each costs more than the least, which is 0. Without a measured step all that is known
// is the load; a node that has not said what its steps cost is taken to be fast.
std::vector<double> Excess(std::span<const DecodeCandidate> nodes,
                           const PlacementRequest& request) {
  const bool measured = std::all_of(nodes.begin(), nodes.end(),
                                    [](const DecodeCandidate& c) { return c.step_time.known(); });
  std::vector<double> costs;
  double least = std::numeric_limits<double>::infinity();
  for (const DecodeCandidate& c : nodes) {
    if (measured) {
      costs.push_back(absl::ToDoubleSeconds(AnswerTime(c, request)));
    } else {
      costs.push_back(c.step_time.known() ? std::numeric_limits<double>::infinity()
                                          : static_cast<double>(c.load + 1));
    }
    least = std::min(least, costs.back());
  }
  for (double& cost : costs) cost = least > 0 ? cost / least - 1 : 0;
  return costs;
}

}  // namespace

PromptSketch SketchOf(std::span<const TokenId> prompt) {
  PromptSketch sketch = {};
  for (const TokenId token : prompt) {
    // Fibonacci hashing: the product's upper bits.
    const uint64_t hash = static_cast<uint64_t>(token) * 0x9E3779B97F4A7C15u;
    sketch[hash >> 54] += 1;
  }
  double norm = 0;
  for (float& count : sketch) {
    norm += static_cast<double>(count);
    count = std::sqrt(count);  // The tenth of a kind says less than the first.
  }
  if (norm > 0) {
    const auto scale = static_cast<float>(1 / std::sqrt(norm));
    for (float& count : sketch) count *= scale;
  }
  return sketch;
}

std::optional<NodeId> ExpertAffinity::PickDecode(std::span<const DecodeCandidate> candidates,
                                                 const PlacementRequest& request) {
  const std::vector<DecodeCandidate> nodes = WithRoom(candidates, request);
  if (nodes.empty()) return std::nullopt;
  const PromptSketch sketch = SketchOf(request.prompt);
  ++prompts_;
  MoveTo(common_, sketch, 1 / static_cast<double>(std::min(prompts_, kCommonPrompts)));

  const std::vector<double> excess = Excess(nodes, request);
  struct Choice {
    NodeId node;
    const DecodeCandidate* candidate;
    double score;
  };
  std::vector<Choice> choices;
  int64_t most_free = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (excess[i] > kMostExcess) continue;
    choices.push_back({nodes[i].node, &nodes[i], Likeness(sketch, nodes[i].node) - excess[i]});
    most_free = std::max(most_free, nodes[i].free_blocks);
  }
  std::erase_if(
      choices, [&](const Choice& choice) { return choice.candidate->free_blocks < most_free / 2; });
  const Choice* best =
      Lowest(std::span<const Choice>(choices), last_decode_, [](const Choice& choice) {
        const DecodeCandidate& c = *choice.candidate;
        return std::make_tuple(-choice.score, c.load, -c.free_blocks);
      });
  Placed(sketch, *best->candidate);
  if (means_.size() > candidates.size() + kMostAbsent) {
    std::erase_if(means_, [&](const auto& mean) {
      return std::none_of(candidates.begin(), candidates.end(),
                          [&](const DecodeCandidate& c) { return c.node == mean.first; });
    });
  }
  return last_decode_ = best->node;
}

NodeId ExpertAffinity::PickPrefill(std::span<const PrefillCandidate> candidates,
                                   const PlacementRequest& request) {
  return last_prefill_ = EarliestFirstToken(candidates, last_prefill_, request);
}

double ExpertAffinity::Likeness(const PromptSketch& sketch, NodeId node) const {
  const auto it = means_.find(node);
  if (it == means_.end()) return 0;
  const PromptSketch& mean = it->second;
  double product = 0;
  double sketch_norm = 0;
  double mean_norm = 0;
  for (size_t i = 0; i < sketch.size(); ++i) {
    const double a = static_cast<double>(sketch[i] - common_[i]);
    const double b = static_cast<double>(mean[i] - common_[i]);
    product += a * b;
    sketch_norm += a * a;
    mean_norm += b * b;
  }
  const double norm = std::sqrt(sketch_norm * mean_norm);
  return norm > 0 ? product / norm : 0;
}

void ExpertAffinity::Placed(const PromptSketch& sketch, const DecodeCandidate& node) {
  const auto [it, first] = means_.try_emplace(node.node, sketch);
  if (first) return;
  MoveTo(it->second, sketch, 1 / static_cast<double>(std::max<int64_t>(node.load, 0) + 1));
}

}  // namespace lynx::router
