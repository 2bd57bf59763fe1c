#include "common/model/step_memory.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "common/base/status_macros.h"

namespace lynx::model {
namespace {

// Of a piece that goes through pinned memory.
constexpr size_t kPieceBytes = size_t{16} << 20;

absl::Status ClearAll(kernels::Device& device, std::byte* memory, size_t bytes) {
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<kernels::DeviceStream> stream, device.MakeStream());
  LYNX_RETURN_IF_ERROR(stream->Clear(memory, bytes));
  return stream->Synchronise();
}

}  // namespace

StepMemory::StepMemory(kernels::Device* device, size_t bytes) {
  if (device == nullptr) {
    lines_.resize((bytes + sizeof(Line) - 1) / sizeof(Line));
    return;
  }
  if (bytes == 0) return;
  auto memory = kernels::DeviceBuffer::Create(*device, bytes);
  if (!memory.ok() || !ClearAll(*device, memory->data(), bytes).ok()) throw std::bad_alloc();
  on_device_ = *std::move(memory);
}

absl::Status Upload(kernels::Device& device, std::span<const std::byte> from, std::byte* to) {
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<kernels::DeviceStream> stream, device.MakeStream());
  LYNX_ASSIGN_OR_RETURN(
      const kernels::DeviceBuffer pinned,
      kernels::DeviceBuffer::CreateHost(device, std::min(from.size(), kPieceBytes)));
  while (!from.empty()) {
    const size_t bytes = std::min(from.size(), kPieceBytes);
    std::memcpy(pinned.data(), from.data(), bytes);
    LYNX_RETURN_IF_ERROR(stream->CopyToDevice(to, pinned.data(), bytes));
    LYNX_RETURN_IF_ERROR(stream->Synchronise());
    from = from.subspan(bytes);
    to += bytes;
  }
  return absl::OkStatus();
}

}  // namespace lynx::model
