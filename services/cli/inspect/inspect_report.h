#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "services/cli/inspect/memory_plan.h"
#include "services/cli/inspect/model_inspection.h"
#include "services/cli/inspect/rank_plan.h"

namespace lynx::cli {

struct PlannedMemory {
  MemoryQuestion question;
  MemoryPlan plan;
};

// How the gate weighs experts, in words.
std::string GateText(const model::ModelSpec& spec);

// For people; ends with a newline. `memory` only where the inspection has a spec.
std::string InspectionText(const ModelInspection& inspection,
                           const std::optional<PlannedMemory>& memory,
                           const std::optional<RankPlan>& ranks);
// The same figures, in elements and bytes.
nlohmann::ordered_json InspectionJson(const ModelInspection& inspection,
                                      const std::optional<PlannedMemory>& memory,
                                      const std::optional<RankPlan>& ranks);

}  // namespace lynx::cli
