#include "services/cli/bench/synthetic_weights.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/dtype.h"
#include "common/model/model_weights.h"
#include "kernels/core/float_convert.h"

namespace lynx::cli {
namespace {

constexpr uint16_t kOne = 0x3f80;             // bf16
constexpr float kHalfWidth = 0.0346f;         // Of a uniform distribution of deviation 0.02.
constexpr int64_t kOffsetStep = 64 * 104729;  // A prime number of cache lines.

size_t BytesOf(const std::vector<int64_t>& shape) {
  size_t bytes = sizeof(uint16_t);
  for (int64_t size : shape) bytes *= static_cast<size_t>(size);
  return bytes;
}

absl::Status SystemError(const char* what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("synthetic weights: ", what, ": ", strerror(errno)));
}

// A file in memory of kPeriodBytes random weights; the caller closes it.
absl::StatusOr<int> RandomFile(uint64_t seed) {
  const int file = memfd_create("lynx-synthetic-weights", MFD_CLOEXEC);
  if (file < 0) return SystemError("memfd_create");
  constexpr auto kBytes = static_cast<size_t>(SyntheticWeights::kPeriodBytes);
  void* data = MAP_FAILED;
  if (ftruncate(file, SyntheticWeights::kPeriodBytes) == 0) {
    data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (data == MAP_FAILED) {
    const absl::Status status = SystemError("a file in memory");
    close(file);
    return status;
  }
  std::mt19937_64 rng(seed);
  auto* weights = static_cast<uint16_t*>(data);
  for (size_t i = 0; i < kBytes / sizeof(uint16_t); i += 4) {
    for (uint64_t bits = rng(), j = 0; j < 4; ++j, bits >>= 16) {
      const float unit = static_cast<float>(bits & 0xffff) / 32768.0f - 1.0f;
      weights[i + j] = kernels::F32ToBf16(unit * kHalfWidth);
    }
  }
  munmap(data, kBytes);
  return file;
}

}  // namespace

absl::StatusOr<SyntheticWeights> SyntheticWeights::Create(const model::ModelSpec& spec,
                                                          uint64_t seed) {
  const std::map<std::string, std::vector<int64_t>> wanted = model::TensorShapes(spec);
  size_t largest = 0;
  size_t largest_vector = 0;
  for (const auto& [name, shape] : wanted) {
    size_t& most = shape.size() == 1 ? largest_vector : largest;
    most = std::max(most, BytesOf(shape));
  }
  const absl::StatusOr<int> file = RandomFile(seed);
  if (!file.ok()) return file.status();

  constexpr auto kPeriod = static_cast<size_t>(kPeriodBytes);
  SyntheticWeights weights;
  const size_t bytes = (largest / kPeriod + 2) * kPeriod;  // From any offset within the first.
  void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  absl::Status status;
  if (base == MAP_FAILED) {
    status = SystemError("a range of addresses");
  } else {
    weights.base_ = static_cast<std::byte*>(base);
    weights.mapped_bytes_ = bytes;
    for (size_t at = 0; at < bytes && status.ok(); at += kPeriod) {
      if (mmap(weights.base_ + at, kPeriod, PROT_READ, MAP_SHARED | MAP_FIXED, *file, 0) ==
          MAP_FAILED) {
        status = SystemError("mapping once more");
      }
    }
  }
  close(*file);
  if (!status.ok()) return status;

  weights.ones_.assign(largest_vector / sizeof(uint16_t), kOne);
  int64_t offset = 0;
  for (const auto& [name, shape] : wanted) {
    const size_t size = BytesOf(shape);
    const bool norm = shape.size() == 1;
    const std::byte* data =
        norm ? reinterpret_cast<const std::byte*>(weights.ones_.data()) : weights.base_ + offset;
    weights.tensors_[name] = {.dtype = DType::kBf16, .shape = shape, .data = {data, size}};
    if (!norm) offset = (offset + kOffsetStep) % kPeriodBytes;
  }
  return weights;
}

SyntheticWeights::~SyntheticWeights() {
  if (base_ != nullptr) munmap(base_, mapped_bytes_);
}

SyntheticWeights::SyntheticWeights(SyntheticWeights&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      ones_(std::move(other.ones_)),
      tensors_(std::move(other.tensors_)) {}

}  // namespace lynx::cli
