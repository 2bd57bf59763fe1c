#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/core/thread_team.h"

namespace lynx::cli {

// Measures how fast this machine reads memory right now: a streaming sum over a buffer that no
// cache holds. Bandwidth moves by a factor of two within minutes on shared hosts, so a share of it
// means something only when both were measured in turn.
//
// One thread; the sum runs on a team of `threads`.
class ReadBandwidth {
 public:
  // ResourceExhausted when the buffer cannot be mapped. `bytes` > 0, `threads` > 0.
  static absl::StatusOr<std::unique_ptr<ReadBandwidth>> Create(int64_t bytes, int32_t threads);
  ~ReadBandwidth();
  ReadBandwidth(const ReadBandwidth&) = delete;
  ReadBandwidth& operator=(const ReadBandwidth&) = delete;

  // One pass over the buffer, in bytes per second.
  double Measure();

 private:
  ReadBandwidth(uint64_t* data, size_t bytes, int32_t threads)
      : data_(data), bytes_(bytes), team_(threads) {}

  uint64_t* const data_;
  const size_t bytes_;
  kernels::ThreadTeam team_;
};

}  // namespace lynx::cli
