#include "services/cli/read_bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace lynx::cli {
namespace {

constexpr size_t kSliceBytes = size_t{4} << 20;
constexpr size_t kPrefetchVectors = 128;
using Vector = uint64_t __attribute__((vector_size(16)));

// Four chains in registers: one, or an array that the compiler leaves on the stack, would wait for
// its additions and not for memory. With the prefetch this reads as fast as 64-byte loads do.
uint64_t Sum(const uint64_t* data, size_t bytes) {
  const auto* vectors = reinterpret_cast<const Vector*>(data);
  Vector a = {}, b = {}, c = {}, d = {};
  for (size_t i = 0; i + 4 <= bytes / sizeof(Vector); i += 4) {
    __builtin_prefetch(vectors + i + kPrefetchVectors);
    a += vectors[i];
    b += vectors[i + 1];
    c += vectors[i + 2];
    d += vectors[i + 3];
  }
  const Vector total = (a + b) + (c + d);
  return total[0] + total[1];
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReadBandwidth>> ReadBandwidth::Create(int64_t bytes,
                                                                     int32_t threads) {
  const size_t size = (static_cast<size_t>(bytes) + kSliceBytes - 1) / kSliceBytes * kSliceBytes;
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", size, " bytes to read: ", strerror(errno)));
  }
  madvise(data, size, MADV_HUGEPAGE);  // A hint; ordinary pages work too.
  std::memset(data, 1, size);          // Untouched pages would all be the one page of zeros.
  return std::unique_ptr<ReadBandwidth>(
      new ReadBandwidth(static_cast<uint64_t*>(data), size, threads));
}

ReadBandwidth::~ReadBandwidth() { munmap(data_, bytes_); }

double ReadBandwidth::Measure() {
  std::atomic<uint64_t> sink = 0;  // Keeps the reads from being optimised away.
  const auto start = std::chrono::steady_clock::now();
  team_.ParallelFor(static_cast<int64_t>(bytes_ / kSliceBytes), [&](int64_t slice) {
    sink += Sum(data_ + static_cast<size_t>(slice) * (kSliceBytes / sizeof(uint64_t)), kSliceBytes);
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(bytes_) / std::max(seconds.count(), 1e-9);
}

}  // namespace lynx::cli
