#pragma once

#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lynx::cli {

// CLOCK_MONOTONIC, in nanoseconds.
inline int64_t MonotonicNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// When each token of each stream was sent: [streams][tokens], 0 where it was not. Written by the
// thread that sends and read by the one that receives.
class TokenTimes {
 public:
  TokenTimes(int32_t streams, int32_t tokens)
      : tokens_(tokens), at_(static_cast<size_t>(streams) * static_cast<size_t>(tokens)) {}

  int32_t tokens() const { return tokens_; }
  std::atomic<int64_t>& at(int32_t stream, int32_t token) {
    return at_[static_cast<size_t>(stream) * static_cast<size_t>(tokens_) +
               static_cast<size_t>(token)];
  }

 private:
  const int32_t tokens_;
  std::vector<std::atomic<int64_t>> at_;
};

}  // namespace lynx::cli
