#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/kv/block_pool.h"
#include "common/model/model_runner.h"
#include "tests/support/golden_fixture.h"

// Runs what a fixture has and compares. Measure of a difference: largest |ours - theirs| over the
// vocabulary, relative to the largest |theirs| at that position.
namespace lynx::testing {

inline constexpr int kKvBlocks = 64;  // Of each group of layers.
inline constexpr int kMostGroups = 5;

// Tables of all groups of layers, which share no block.
std::vector<kv::BlockId> Blocks(model::ModelRunner& runner, int32_t first, int32_t count);

struct Comparison {
  std::vector<double> differences;  // Of every position, ascending.
  double worst_kl = 0;              // KL(theirs, ours) of the positions with all logits, in nats.
  int64_t same_best = 0;            // Positions whose best token agrees.

  double worst() const { return differences.back(); }
  double median() const { return differences[differences.size() / 2]; }
};

// Runs each prompt in one step and compares all logits.
Comparison CompareLogits(model::ModelRunner& runner, std::span<const GoldenPrompt> prompts);

// Continues each prompt greedily as long as our token equals the fixture's; where it does not, the
// fixture's two best must be closer than `bound`. Returns how many continuations parted so. At most
// `most_tokens` of each.
int64_t CompareGreedy(model::ModelRunner& runner, std::span<const GoldenPrompt> prompts,
                      double bound, size_t most_tokens = SIZE_MAX);

}  // namespace lynx::testing
