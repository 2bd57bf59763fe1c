#include "kernels/core/device.h"

#include "common/base/status_macros.h"

namespace lynx::kernels {

absl::StatusOr<DeviceBuffer> DeviceBuffer::Create(Device& device, size_t bytes) {
  if (bytes == 0) return DeviceBuffer();
  LYNX_ASSIGN_OR_RETURN(std::byte* const data, device.Allocate(bytes));
  return DeviceBuffer(device, /*host=*/false, data, bytes);
}

absl::StatusOr<DeviceBuffer> DeviceBuffer::CreateHost(Device& device, size_t bytes) {
  if (bytes == 0) return DeviceBuffer();
  LYNX_ASSIGN_OR_RETURN(std::byte* const data, device.AllocateHost(bytes));
  return DeviceBuffer(device, /*host=*/true, data, bytes);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  host_ ? device_->FreeHost(data_) : device_->Free(data_);
}

}  // namespace lynx::kernels
