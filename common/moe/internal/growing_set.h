#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/moe/internal/workspace.h"
#include "common/moe/routing_plan.h"

namespace lynx::moe::internal {

inline constexpr uint64_t kMassUnit = uint64_t{1} << 24;

// A set of experts that grows, and what every voter keeps of its exact mass by its best experts in
// the set. The mass is the gate's own: softmax, or the unbiased sigmoid. Sums of integers: the
// order in which experts come does not matter.
class GrowingSet {
 public:
  // Empty, and so is `selected`, which is the set from now on. Fills `mass` and `column_mass`.
  GrowingSet(const RouterInput& input, Workspace& workspace);

  void Clear();

  size_t size() const { return size_; }
  // Sum over voters, in kMassUnit.
  uint64_t kept() const { return kept_; }
  bool AllKeep(double share) const;

  // By how much kept() would grow with `expert`.
  int64_t Gain(int32_t expert) const;

  // `expert` has not been added.
  void Add(int32_t expert);

  // Marks in `used` [experts] what voters go through: each one's best of the set.
  void MarkUsed(std::span<uint8_t> used) const;

 private:
  int32_t* KeptOf(size_t voter) const {
    return workspace_.kept_ids.data() + voter * workspace_.top_k;
  }
  // What the voter would keep with `expert` in the set.
  uint64_t SumWith(size_t voter, int32_t expert) const;
  uint64_t Ratio(size_t voter, uint64_t sum) const {
    const uint64_t exact = workspace_.exact_sum[voter];
    return sum >= exact ? kMassUnit : sum * kMassUnit / exact;
  }
  void WeighBySigmoid(const RouterInput& input);

  Workspace& workspace_;
  size_t size_ = 0;
  uint64_t kept_ = 0;
};

}  // namespace lynx::moe::internal
