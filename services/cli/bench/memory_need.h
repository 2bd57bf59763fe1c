#pragma once

#include <cstdint>
#include <optional>
#include <string>

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

// The least that anyone may ask for.
inline constexpr int64_t kMinReadBuffer = int64_t{64} << 20;
// InvalidArgument when `asked`, of --read-buffer, is less than that and not 0.
absl::Status CheckReadBuffer(int64_t asked);

// What to say of a buffer of which caches of `cache_bytes` would hold much; nothing if they do not.
std::optional<std::string> CacheNote(int64_t read_buffer, int64_t cache_bytes);
// Of the last level; 0 where the system does not say.
int64_t LastLevelCacheBytes();

}  // namespace lynx::cli
