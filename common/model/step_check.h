#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/kv/kv_groups.h"
#include "common/model/model_runner.h"

namespace lynx::model {

// What a step may be.
struct StepLimits {
  int32_t vocab_size = 0;
  int32_t replicas = 1;
  int64_t rows = 0;         // Of each replica,
  int64_t logits_rows = 0;  // and so many of them with logits.
  int64_t positions = 0;
  int32_t kv_blocks = 0;
};

// Whether a batch keeps them, as ModelRunner::Step() says. Counts, [replicas] each, its rows and
// those whose logits are wanted.
//   InvalidArgument  names the entry, the value and the bound.
absl::Status CheckStep(std::span<const SequenceRows> batch, const StepLimits& limits,
                       const kv::KvGroups& groups, std::span<int64_t> rows,
                       std::span<int64_t> wanted);

}  // namespace lynx::model
