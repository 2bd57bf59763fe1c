#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace lynx::model {

// A small tensor of float32 that kernels read: made in memory of the host, and there it stays or
// goes to a device, after which the host cannot see it.
class Floats {
 public:
  Floats() = default;
  Floats(std::vector<float> values)  // NOLINT: as vectors are assigned
      : size_(values.size()), host_(std::move(values)) {}

  // Where kernels find it.
  const float* data() const { return device_ != nullptr ? device_ : host_.data(); }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // The values, while they are on the host.
  std::vector<float>& host() {
    LYNX_CHECK(device_ == nullptr);
    return host_;
  }
  const std::vector<float>& host() const { return const_cast<Floats*>(this)->host(); }

  // They now are at `device`, which somebody else owns.
  void MoveTo(const float* device) {
    device_ = device;
    host_ = {};
  }

 private:
  size_t size_ = 0;
  std::vector<float> host_;
  const float* device_ = nullptr;
};

}  // namespace lynx::model
