#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace lynx {

// Zeroed memory of its own mapping, for what a step streams: packed weights, KV. Aligned to 2 MiB
// and asked to lie in huge pages, which spares a step thousands of page walks; where the system has
// none, ordinary pages serve. Pages come to the NUMA node of the thread that first writes them.
//
// Move-only; empty after a move. Anyone may use the bytes.
class HugeBuffer {
 public:
  static constexpr size_t kAlignment = size_t{2} << 20;

  // ResourceExhausted, in words that name `purpose`, when the memory cannot be mapped. The mapping
  // succeeds where the system overcommits and the memory is not there: then the process dies when
  // it touches too much, as for every allocation.
  static absl::StatusOr<HugeBuffer> Create(size_t bytes, std::string_view purpose);

  HugeBuffer() = default;  // Holds nothing.
  HugeBuffer(HugeBuffer&& other) noexcept { Swap(other); }
  HugeBuffer& operator=(HugeBuffer other) noexcept {
    Swap(other);
    return *this;
  }
  ~HugeBuffer();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }  // As asked.

  // How much of it lies in huge pages now, as the kernel says; 0 where it does not. Reads
  // /proc/self/smaps: milliseconds, for a log line.
  int64_t HugePageBytes() const;

 private:
  void Swap(HugeBuffer& other) noexcept;

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  void* mapping_ = nullptr;  // data_ and a guard on either side.
  size_t mapping_bytes_ = 0;
};

}  // namespace lynx
