#pragma once

#include <cstdint>

#include "common/base/dtype.h"
#include "services/cli/inspect/model_inspection.h"

namespace lynx::cli {

inline constexpr int64_t kMaxPlannedBatch = 1 << 20;

// What is to be held at once.
struct MemoryQuestion {
  int64_t memory_bytes = 0;  // > 0
  int64_t context = 0;       // Tokens of each sequence, in [1, 2^24].
  int64_t batch = 1;         // Sequences, in [1, kMaxPlannedBatch].
  DType kv_dtype = DType::kBf16;
};

// The memory of one decode node, in bytes. KV memory is given out in blocks.
struct MemoryPlan {
  int64_t weights = 0;
  int64_t block = 0;            // Of one block, in the layers of one group.
  int64_t sequence_blocks = 0;  // Of one sequence, in all groups.
  double kv = 0;                // Of all; may leave the range of integers.
  double step = 0;              // Buffers of a step: activations, logits and angles of RoPE.
  double total = 0;
  bool fits = false;
  // What fits instead, all else as asked; 0: nothing does.
  int64_t most_context = 0;
  int64_t most_batch = 0;
};

// `inspection` has a spec. A context beyond the model's own is planned all the same.
MemoryPlan PlanMemory(const ModelInspection& inspection, const MemoryQuestion& question);

}  // namespace lynx::cli
