#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace lynx::loadtest {

// One request of the plan.
struct PlannedRequest {
  int64_t index = 0;         // From 0, in order.
  absl::Duration due;        // After the start; a closed loop does not look at it.
  int32_t input_tokens = 0;  // 0: whatever the given prompt has.
  int32_t output_tokens = 0;
};

// What is sent when: a pure function of its options and its seed. Not thread-safe.
class Workload {
 public:
  virtual ~Workload() = default;
  // The next request; `due` never decreases. nullopt: there are no more.
  virtual std::optional<PlannedRequest> Next() = 0;
  // The JSON body of the request that Next() gave last.
  virtual std::string Body() = 0;
};

}  // namespace lynx::loadtest
