#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "kernels/core/device.h"

namespace lynx::model {

// Memory that steps work in, of the host or of the device that computes them; aligned to 64 bytes,
// zeros at start. Move-only.
class StepMemory {
 public:
  StepMemory() = default;
  // device: null is the host; outlives this. Throws std::bad_alloc where there is no memory, as
  // containers do.
  StepMemory(kernels::Device* device, size_t bytes);
  StepMemory(StepMemory&&) = default;
  StepMemory& operator=(StepMemory&&) = default;

  std::byte* data() { return on_device_.data() != nullptr ? on_device_.data() : HostData(); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::byte* HostData() { return lines_.empty() ? nullptr : lines_.front().bytes; }

  std::vector<Line> lines_;
  kernels::DeviceBuffer on_device_;
};

// Values of one type in it.
template <typename T>
class StepArray {
 public:
  StepArray() = default;
  StepArray(kernels::Device* device, size_t size)
      : device_(device), size_(size), memory_(device, size * sizeof(T)) {}

  T* data() { return reinterpret_cast<T*>(memory_.data()); }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // The values, on the host.
  std::span<T> host() {
    LYNX_CHECK(device_ == nullptr);
    return {data(), size_};
  }

 private:
  kernels::Device* device_ = nullptr;
  size_t size_ = 0;
  StepMemory memory_;
};

// Copies bytes of the host to the device, through pinned memory. Blocks. Fails as Device does.
absl::Status Upload(kernels::Device& device, std::span<const std::byte> from, std::byte* to);

// A copy of the values, where `device` says. Throws std::bad_alloc.
template <typename T>
StepArray<T> CopyOf(std::span<const T> values, kernels::Device* device) {
  StepArray<T> result(device, values.size());
  if (device == nullptr) {
    std::ranges::copy(values, result.data());
  } else if (!values.empty() &&
             !Upload(*device, std::as_bytes(values), reinterpret_cast<std::byte*>(result.data()))
                  .ok()) {
    throw std::bad_alloc();
  }
  return result;
}

}  // namespace lynx::model
