#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/dtype.h"

// Scans over one row of logits on the CPU. Every function is a fixed sequence of IEEE operations:
// the result's bits depend on the row alone. "Best" everywhere means largest value, then lowest id.
//
// All pure and thread-safe; a row is float32 [vocab_size], vocab_size > 0.
namespace lynx::kernels {

struct LogitsSummary {
  bool valid = false;  // No NaN, no +Inf, and something above -Inf.
  float max = 0;
  TokenId argmax = 0;  // Lowest id that has the maximum. Both meaningless unless valid.
};
// One pass.
LogitsSummary SummarizeLogits(std::span<const float> row);

// e^x for x <= 0 within 2 units in the last place; 0 below -87 (where float turns subnormal).
float ExpNonPositive(float x);

// Sum of e^(row[i] - max), terms in float32, accumulated in float64. `max` is the row's.
double SumExp(std::span<const float> row, float max);

// Entries of a row over which ExpWeights gives one partial sum.
inline constexpr size_t kWeightBlock = 1024;

// weights[i] = e^((row[i] - max) / temperature), 0 where that is under `min_weight`; partial[b] is
// the sum of the b-th kWeightBlock weights. `weights` is [vocab_size], `partial`
// [ceil(vocab_size / kWeightBlock)]. temperature > 0.
void ExpWeights(std::span<const float> row, float max, float temperature, float min_weight,
                std::span<float> weights, std::span<double> partial);

struct Candidate {
  float value = 0;
  TokenId id = 0;
};
constexpr bool Better(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// The best min(k, vocab_size) entries of the row, best first, into `out` (replaced; its capacity is
// reused). No NaN in the row. One pass and a small heap while k is small, a selection otherwise.
void TopK(std::span<const float> row, size_t k, std::vector<Candidate>& out);

}  // namespace lynx::kernels
