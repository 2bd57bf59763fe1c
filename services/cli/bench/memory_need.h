#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/model/memory_need.h"
#include "common/model/model_spec.h"

namespace lynx::cli {

// Of the weights of a shape, which are made up in 16 bits.
int64_t WeightBytes(const model::ModelSpec& spec);

// ResourceExhausted, before anything is allocated, when `need` and the read buffer are more than
// `available`: says what is needed for what, and what would fit instead.
absl::Status CheckFits(const model::MemoryNeed& need, int64_t read_buffer,
                       const model::ModelSpec& spec, int64_t available);

// How much to read in a measurement of bandwidth when nobody said: 2 GiB, several times the largest
// caches there are, or half of the free memory where that is less.
int64_t DefaultReadBuffer(int64_t available);

}  // namespace lynx::cli
