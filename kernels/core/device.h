#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/device_kernels.h"

namespace lynx::kernels {

struct DeviceInfo {
  std::string name;  // As its maker calls it.
  int index = 0;     // Of this process' GPUs.
  int major = 0;     // Compute capability.
  int minor = 0;
};

struct DeviceMemoryInfo {
  int64_t free = 0;  // Bytes that Allocate() may have now, whoever else uses the GPU.
  int64_t total = 0;
};

// A point in the work of a stream. Owned by who made it; recorded again and again.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Blocks until the work before its last record is done; at once if it was never recorded.
  //   Internal  that work failed: give the device up.
  virtual absl::Status Synchronise() = 0;
};

// Work that was captured and can be queued as one. Owned by who has it; outlived by the device.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

// Work that runs in the order in which it was queued. Every call but Synchronise() returns at once;
// no two at a time. What they name must stay until the work is done. Destroying it waits for that.
//
// Host memory is of Device::AllocateHost(). A copy reads or writes it at any time until the stream,
// or an event recorded behind the copy, was synchronised: until then the host leaves it alone.
//
//   InvalidArgument  a call that does not belong here, as said.
//   Internal         the device refused it, or earlier work of it failed: give the device up.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  virtual void* handle() = 0;  // For DeviceQueue::stream.

  virtual absl::Status CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) = 0;
  virtual absl::Status CopyToHost(std::byte* host, const std::byte* device, size_t bytes) = 0;
  // From one place of the device to another, which do not overlap.
  virtual absl::Status CopyOnDevice(std::byte* to, const std::byte* from, size_t bytes) = 0;
  virtual absl::Status Clear(std::byte* device, size_t bytes) = 0;  // Zeros.

  virtual absl::Status Record(DeviceEvent& event) = 0;
  // What is queued from here on waits for what was before the event's last record.
  virtual absl::Status Wait(DeviceEvent& event) = 0;
  virtual absl::Status Synchronise() = 0;

  // From BeginCapture() to EndCapture() work is recorded in place of run: kernels and copies with
  // their arguments as they are, which Launch() repeats; what lies in memory may change. Neither
  // Record(), Wait() nor Synchronise() in between (InvalidArgument).
  virtual absl::Status BeginCapture() = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() = 0;
  virtual absl::Status Launch(DeviceGraph& graph) = 0;
};

// One GPU of this process, without a word of CUDA: the real one is of liblynx_cuda.so
// (kernels/cuda/plugin.h), an emulated one of tests/support/cuda_emulation.
//
// Any thread may call; it outlives what it made. Kernels are launched by threads that called Use().
class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  virtual const DeviceKernels& kernels() const = 0;
  virtual absl::StatusOr<DeviceMemoryInfo> Memory() = 0;

  // Makes it the one that the calling thread's kernels run on.
  virtual absl::Status Use() = 0;

  // Memory of the device, or of the host that copies may use while the program goes on; aligned to
  // 256 bytes, of any content. bytes > 0. Freeing null does nothing; work that uses what is freed
  // must be done.
  //   ResourceExhausted  there is not so much; says how much was asked for.
  virtual absl::StatusOr<std::byte*> Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* memory) = 0;
  virtual absl::StatusOr<std::byte*> AllocateHost(size_t bytes) = 0;
  virtual void FreeHost(std::byte* memory) = 0;

  virtual absl::StatusOr<std::unique_ptr<DeviceStream>> MakeStream() = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> MakeEvent() = 0;
};

// Owns memory of a device, or pinned memory of the host for it. Move-only; empty after a move.
// Outlived by the device.
class DeviceBuffer {
 public:
  // Fail as Allocate() and AllocateHost() do; of 0 bytes it is empty.
  static absl::StatusOr<DeviceBuffer> Create(Device& device, size_t bytes);
  static absl::StatusOr<DeviceBuffer> CreateHost(Device& device, size_t bytes);

  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { Swap(other); }
  DeviceBuffer& operator=(DeviceBuffer other) noexcept {
    Swap(other);
    return *this;
  }
  ~DeviceBuffer();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  DeviceBuffer(Device& device, bool host, std::byte* data, size_t size)
      : device_(&device), host_(host), data_(data), size_(size) {}
  void Swap(DeviceBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(host_, other.host_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  Device* device_ = nullptr;
  bool host_ = false;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lynx::kernels
