#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/huge_buffer.h"
#include "kernels/core/thread_team.h"

namespace lynx::cli {

// Measures how fast this machine reads memory right now: a streaming sum over a buffer that no
// cache holds, 64 bytes at a time where the processor can. Bandwidth moves by a factor of two
// within minutes on shared hosts, so a share of it means something only when both were measured in
// turn.
//
// One thread; the sum runs on `team`, which outlives this.
class ReadBandwidth {
 public:
  // ResourceExhausted when the buffer cannot be mapped. `bytes` > 0.
  static absl::StatusOr<std::unique_ptr<ReadBandwidth>> Create(int64_t bytes,
                                                               kernels::ThreadTeam& team);

  // One pass over the buffer, in bytes per second.
  double Measure();

 private:
  ReadBandwidth(HugeBuffer buffer, kernels::ThreadTeam& team)
      : buffer_(std::move(buffer)), team_(team) {}

  const HugeBuffer buffer_;
  kernels::ThreadTeam& team_;
};

}  // namespace lynx::cli
