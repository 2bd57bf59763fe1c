#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/dtype.h"
#include "common/model/model_spec.h"

namespace lynx::cli {

// What a bench of one model keeps in memory, in bytes.
struct MemoryNeed {
  int64_t weights = 0;
  int64_t kv = 0;
  int64_t steps = 0;  // Buffers of activations and logits.
  int64_t read_buffer = 0;

  int64_t total() const { return weights + kv + steps + read_buffer; }
};

struct StepSizes {
  DType kv_dtype = DType::kBf16;
  int64_t kv_blocks = 0;
  int64_t rows = 0;
  int64_t logits_rows = 0;
};

// Of 16-bit weights. The read buffer is left to the caller.
MemoryNeed NeedOf(const model::ModelSpec& spec, const StepSizes& sizes);

// ResourceExhausted, before anything is allocated, when `need` is more than `available`: says what
// is needed for what, and what would fit instead.
absl::Status CheckFits(const MemoryNeed& need, const model::ModelSpec& spec, int64_t available);

// How much to read in a measurement of bandwidth when nobody said: 2 GiB, several times the largest
// caches there are, or half of the free memory where that is less.
int64_t DefaultReadBuffer(int64_t available);

// MemAvailable of the text of /proc/meminfo, in bytes; 0 where it does not say.
int64_t AvailableOf(std::string_view meminfo);
// What a memory cgroup leaves, of the texts of its limit ("max" or bytes), of its usage in bytes
// and of its memory.stat: what it can drop is not counted as used. The largest number for no limit.
int64_t LeftInCgroup(std::string_view limit, std::string_view usage, std::string_view stat);
// To this process, now: of this machine and of the cgroups it runs in. The largest number where the
// system does not say.
int64_t AvailableMemory();

}  // namespace lynx::cli
