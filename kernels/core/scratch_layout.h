#pragma once

#include <cstddef>

namespace lynx::kernels {

// Lays arrays out one behind the other in a launch's scratch memory, each at a multiple of 256
// bytes. Without memory it only counts what they take. Used on the host.
class ScratchLayout {
 public:
  explicit ScratchLayout(std::byte* base) : base_(base) {}

  template <typename T>
  void Take(T*& array, size_t count) {
    array = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (count * sizeof(T) + 255) / 256 * 256;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* const base_;
  size_t bytes_ = 0;
};

}  // namespace lynx::kernels
