#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/mutex.h"

namespace lynx::moe {

// What steps needed of each layer's experts, from the plans that are made anyway: how likely a step
// needs an expert, older steps counting ever less, and the active sets of the last steps, to try a
// placement on.
//
// Any thread; a step waits at most for a layer to be copied.
class ExpertHistory {
 public:
  static constexpr size_t kRecent = 64;

  ExpertHistory(int32_t layers, int32_t experts);

  // A step has needed these of the layer. Allocates nothing.
  void Record(int32_t layer, std::span<const int32_t> active);

  struct Layer {
    double steps = 0;           // What the shares come from, aged.
    std::vector<double> share;  // [experts] Of those steps, how many needed the expert.
    std::vector<std::vector<int32_t>> recent;  // Active sets, up to kRecent, in no order.
  };
  Layer Get(int32_t layer) const;

  // From now on what was counted until now counts `keep` times as much; in [0, 1].
  void Age(double keep);

 private:
  struct Counts {
    mutable Mutex mu;
    double steps LYNX_GUARDED_BY(mu) = 0;
    std::vector<double> needed LYNX_GUARDED_BY(mu);         // [experts]
    std::vector<int32_t> recent LYNX_GUARDED_BY(mu);        // [kRecent, experts]
    std::vector<int32_t> recent_sizes LYNX_GUARDED_BY(mu);  // [kRecent]
    size_t next LYNX_GUARDED_BY(mu) = 0;
  };

  std::vector<Counts> layers_;
};

}  // namespace lynx::moe
