#include "services/cli/bench/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "common/base/status_macros.h"
#include "kernels/core/isa.h"

namespace lynx::cli {
namespace {

constexpr size_t kSliceBytes = size_t{4} << 20;
constexpr size_t kPrefetchVectors = 32;
using Vector = uint64_t __attribute__((vector_size(64)));

// Four chains in registers: one would wait for its additions and not for memory.
[[gnu::always_inline]] inline uint64_t SumVectors(const uint64_t* data, size_t bytes) {
  const auto* vectors = reinterpret_cast<const Vector*>(data);
  Vector a = {}, b = {}, c = {}, d = {};
  for (size_t i = 0; i + 4 <= bytes / sizeof(Vector); i += 4) {
    for (size_t j = 0; j < 4; ++j) __builtin_prefetch(vectors + i + kPrefetchVectors + j);
    a += vectors[i];
    b += vectors[i + 1];
    c += vectors[i + 2];
    d += vectors[i + 3];
  }
  const Vector total = (a + b) + (c + d);
  uint64_t sum = 0;
  for (size_t i = 0; i < 8; ++i) sum += total[i];
  return sum;
}

uint64_t SumPortable(const uint64_t* data, size_t bytes) { return SumVectors(data, bytes); }

#if defined(__x86_64__)
// One load for each line of the cache.
[[gnu::target("avx512f")]] uint64_t SumAvx512(const uint64_t* data, size_t bytes) {
  return SumVectors(data, bytes);
}
#endif

auto SumFor(kernels::Isa isa) {
#if defined(__x86_64__)
  if (isa >= kernels::Isa::kAvx512) return &SumAvx512;
#endif
  return &SumPortable;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReadBandwidth>> ReadBandwidth::Create(int64_t bytes,
                                                                     kernels::ThreadTeam& team) {
  const size_t size = (static_cast<size_t>(bytes) + kSliceBytes - 1) / kSliceBytes * kSliceBytes;
  LYNX_ASSIGN_OR_RETURN(HugeBuffer buffer, HugeBuffer::Create(size, "measuring read bandwidth"));
  // Untouched pages would all be the one page of zeros. Written by the thread that reads them, they
  // are in the memory nearest to it.
  team.ParallelFor(static_cast<int64_t>(size / kSliceBytes), [&](int64_t slice) {
    std::memset(buffer.data() + static_cast<size_t>(slice) * kSliceBytes, 1, kSliceBytes);
  });
  return std::unique_ptr<ReadBandwidth>(new ReadBandwidth(std::move(buffer), team));
}

double ReadBandwidth::Measure() {
  std::atomic<uint64_t> sink = 0;  // Keeps the reads from being optimised away.
  const auto sum = SumFor(kernels::BestIsa());
  const auto start = std::chrono::steady_clock::now();
  const auto* data = reinterpret_cast<const uint64_t*>(buffer_.data());
  team_.ParallelFor(static_cast<int64_t>(buffer_.size() / kSliceBytes), [&](int64_t slice) {
    sink += sum(data + static_cast<size_t>(slice) * (kSliceBytes / sizeof(uint64_t)), kSliceBytes);
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(buffer_.size()) / std::max(seconds.count(), 1e-9);
}

}  // namespace lynx::cli
