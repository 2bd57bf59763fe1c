#include "common/model/expert_table.h"

#include <cstddef>
#include <utility>

#include "common/base/check.h"

namespace lynx::model {

ExpertTable::ExpertTable(moe::ExpertSlots slots, int32_t experts, int32_t part)
    : slots_(std::move(slots)),
      part_(part),
      slot_of_(static_cast<size_t>(experts), -1),
      placement_(moe::PlacementOf(slots_, experts)) {
  for (const std::vector<int32_t>& parts : placement_.ranks_of) LYNX_CHECK(!parts.empty());
  for (size_t slot = 0; slot < held().size(); ++slot) {
    slot_of_[static_cast<size_t>(held()[slot])] = static_cast<int32_t>(slot);
  }
}

}  // namespace lynx::model
