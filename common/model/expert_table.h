#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/moe/expert_placement.h"
#include "common/moe/slot_change.h"

namespace lynx::model {

// Which routed experts of a layer are where: the slots of every part of `ep` (ParallelLayout), each
// of which holds one expert. All ranks of a part hold the same, each its columns. A value.
class ExpertTable {
 public:
  ExpertTable() = default;  // Of a layer without experts.
  // slots: [ep][slots of the part], the expert of each, distinct within a part; every one of
  // `experts` is in one of them. `part`: the one that this rank belongs to.
  ExpertTable(moe::ExpertSlots slots, int32_t experts, int32_t part);

  const moe::ExpertSlots& slots() const { return slots_; }
  int32_t part() const { return part_; }
  // The expert of each slot here, and the slot of an expert; -1: it is not held here.
  std::span<const int32_t> held() const { return slots_[static_cast<size_t>(part_)]; }
  int32_t slot_of(int32_t expert) const { return slot_of_[static_cast<size_t>(expert)]; }
  // Its ranks are parts.
  const moe::ExpertPlacement& placement() const { return placement_; }

 private:
  moe::ExpertSlots slots_;
  int32_t part_ = 0;
  std::vector<int32_t> slot_of_;  // [experts]
  moe::ExpertPlacement placement_;
};

}  // namespace lynx::model
