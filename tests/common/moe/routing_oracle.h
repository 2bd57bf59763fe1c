#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "tests/common/moe/routing_cases.h"

// Policies once more, straight from their definitions: sorting, sets and double precision, with
// nothing in common with the planner. Plain softmax gates only.
namespace lynx::moe::testing {

// The row's `count` best of `allowed` (all without it): by logit, then by id; never one at -Inf.
std::vector<int32_t> BestOf(const std::vector<float>& logits, size_t count,
                            const std::set<int32_t>* allowed = nullptr);

// Softmax over the whole row.
std::vector<double> SoftmaxOf(const std::vector<float>& logits);

std::set<int32_t> ExactUnion(const Batch& batch);

// The active set of each policy over the valid rows. Where experts are so close that rounding
// decides between them, nothing.
std::optional<std::set<int32_t>> OracleSet(const Batch& batch, const Policy& policy);

// The experts of row `row` when `active` is: its own if too few are usable.
std::vector<int32_t> OracleAssignment(const Batch& batch, int32_t row,
                                      const std::set<int32_t>& active);

// Mass of the row's best within `active` over that of its own top-k.
double KeptRatio(const Batch& batch, int32_t row, const std::set<int32_t>& active);

}  // namespace lynx::moe::testing
