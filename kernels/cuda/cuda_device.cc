#include "kernels/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lynx::cuda {
namespace {

// Of work, after which a device is to be given up.
absl::Status Failed(cudaError_t error, std::string_view doing) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("CUDA, ", std::string(doing), ": ", cudaGetErrorString(error)));
}

// Between Begin and End of a capture, all that a stream may do is queue.
absl::Status NotInACapture(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(what), " while a graph is captured"));
}

class CudaEvent final : public kernels::DeviceEvent {
 public:
  CudaEvent(int device, cudaEvent_t event) : device_(device), event_(event) {}
  ~CudaEvent() override {
    cudaSetDevice(device_);
    cudaEventDestroy(event_);
  }

  absl::Status Synchronise() override {
    LYNX_RETURN_IF_ERROR(Failed(cudaSetDevice(device_), "taking the GPU"));
    return Failed(cudaEventSynchronize(event_), "waiting for an event");
  }
  cudaEvent_t get() const { return event_; }

 private:
  const int device_;
  const cudaEvent_t event_;
};

class CudaGraph final : public kernels::DeviceGraph {
 public:
  CudaGraph(int device, cudaGraphExec_t graph) : device_(device), graph_(graph) {}
  ~CudaGraph() override {
    cudaSetDevice(device_);
    cudaGraphExecDestroy(graph_);
  }
  cudaGraphExec_t get() const { return graph_; }

 private:
  const int device_;
  const cudaGraphExec_t graph_;
};

class CudaStream final : public kernels::DeviceStream {
 public:
  CudaStream(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  ~CudaStream() override {
    cudaSetDevice(device_);
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  void* handle() override { return stream_; }

  absl::Status CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) override {
    return Copy(device, host, bytes, cudaMemcpyHostToDevice, "copying to the GPU");
  }
  absl::Status CopyToHost(std::byte* host, const std::byte* device, size_t bytes) override {
    return Copy(host, device, bytes, cudaMemcpyDeviceToHost, "copying from the GPU");
  }
  absl::Status CopyOnDevice(std::byte* to, const std::byte* from, size_t bytes) override {
    return Copy(to, from, bytes, cudaMemcpyDeviceToDevice, "copying on the GPU");
  }
  absl::Status Clear(std::byte* device, size_t bytes) override {
    LYNX_RETURN_IF_ERROR(Use());
    return Failed(cudaMemsetAsync(device, 0, bytes, stream_), "clearing memory");
  }

  absl::Status Record(kernels::DeviceEvent& event) override {
    if (capturing_) return NotInACapture("an event is recorded");
    LYNX_RETURN_IF_ERROR(Use());
    return Failed(cudaEventRecord(static_cast<CudaEvent&>(event).get(), stream_),
                  "recording an event");
  }
  absl::Status Wait(kernels::DeviceEvent& event) override {
    if (capturing_) return NotInACapture("an event is waited for");
    LYNX_RETURN_IF_ERROR(Use());
    return Failed(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).get(), 0),
                  "waiting for an event");
  }
  absl::Status Synchronise() override {
    if (capturing_) return NotInACapture("a stream is waited for");
    LYNX_RETURN_IF_ERROR(Use());
    return Failed(cudaStreamSynchronize(stream_), "waiting for a stream");
  }

  absl::Status BeginCapture() override {
    if (capturing_) return NotInACapture("a capture begins");
    LYNX_RETURN_IF_ERROR(Use());
    LYNX_RETURN_IF_ERROR(
        Failed(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing"));
    capturing_ = true;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<kernels::DeviceGraph>> EndCapture() override {
    if (!capturing_) return absl::InvalidArgumentError("no graph is captured");
    capturing_ = false;
    LYNX_RETURN_IF_ERROR(Use());
    cudaGraph_t graph = nullptr;
    LYNX_RETURN_IF_ERROR(Failed(cudaStreamEndCapture(stream_, &graph), "ending a capture"));
    cudaGraphExec_t made = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&made, graph, 0);
    cudaGraphDestroy(graph);
    LYNX_RETURN_IF_ERROR(Failed(error, "making a graph"));
    return std::make_unique<CudaGraph>(device_, made);
  }
  absl::Status Launch(kernels::DeviceGraph& graph) override {
    if (capturing_) return NotInACapture("a graph is launched");
    LYNX_RETURN_IF_ERROR(Use());
    return Failed(cudaGraphLaunch(static_cast<CudaGraph&>(graph).get(), stream_),
                  "launching a graph");
  }

 private:
  absl::Status Use() const { return Failed(cudaSetDevice(device_), "taking the GPU"); }
  absl::Status Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                    std::string_view doing) {
    LYNX_RETURN_IF_ERROR(Use());
    return Failed(cudaMemcpyAsync(to, from, bytes, kind, stream_), doing);
  }

  const int device_;
  const cudaStream_t stream_;
  bool capturing_ = false;
};

class CudaDevice final : public kernels::Device {
 public:
  CudaDevice(kernels::DeviceInfo info, const kernels::DeviceKernels& kernels)
      : info_(std::move(info)), kernels_(kernels) {}

  const kernels::DeviceInfo& info() const override { return info_; }
  const kernels::DeviceKernels& kernels() const override { return kernels_; }

  absl::StatusOr<kernels::DeviceMemoryInfo> Memory() override {
    LYNX_RETURN_IF_ERROR(Use());
    size_t free = 0;
    size_t total = 0;
    LYNX_RETURN_IF_ERROR(Failed(cudaMemGetInfo(&free, &total), "asking for its memory"));
    return kernels::DeviceMemoryInfo{.free = static_cast<int64_t>(free),
                                     .total = static_cast<int64_t>(total)};
  }

  absl::Status Use() override {
    return Failed(cudaSetDevice(info_.index), absl::StrCat("taking GPU ", info_.index));
  }

  absl::StatusOr<std::byte*> Allocate(size_t bytes) override {
    LYNX_RETURN_IF_ERROR(Use());
    void* memory = nullptr;
    LYNX_RETURN_IF_ERROR(Allocated(cudaMalloc(&memory, bytes), bytes, "of the GPU"));
    return static_cast<std::byte*>(memory);
  }
  void Free(std::byte* memory) override {
    cudaSetDevice(info_.index);
    cudaFree(memory);
  }
  absl::StatusOr<std::byte*> AllocateHost(size_t bytes) override {
    LYNX_RETURN_IF_ERROR(Use());
    void* memory = nullptr;
    LYNX_RETURN_IF_ERROR(
        Allocated(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), bytes, "pinned"));
    return static_cast<std::byte*>(memory);
  }
  void FreeHost(std::byte* memory) override {
    cudaSetDevice(info_.index);
    cudaFreeHost(memory);
  }

  absl::StatusOr<std::unique_ptr<kernels::DeviceStream>> MakeStream() override {
    LYNX_RETURN_IF_ERROR(Use());
    cudaStream_t stream = nullptr;
    LYNX_RETURN_IF_ERROR(
        Failed(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream"));
    return std::make_unique<CudaStream>(info_.index, stream);
  }
  absl::StatusOr<std::unique_ptr<kernels::DeviceEvent>> MakeEvent() override {
    LYNX_RETURN_IF_ERROR(Use());
    cudaEvent_t event = nullptr;
    LYNX_RETURN_IF_ERROR(
        Failed(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event"));
    return std::make_unique<CudaEvent>(info_.index, event);
  }

 private:
  static absl::Status Allocated(cudaError_t error, size_t bytes, std::string_view kind) {
    if (error != cudaErrorMemoryAllocation) return Failed(error, "allocating memory");
    cudaGetLastError();  // It is no error of what comes after.
    return absl::ResourceExhaustedError(
        absl::StrCat("no ", bytes, " bytes of memory ", std::string(kind)));
  }

  const kernels::DeviceInfo info_;
  const kernels::DeviceKernels& kernels_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<kernels::Device>> OpenCudaDevice(
    int index, const kernels::DeviceKernels& kernels) {
  int count = 0;
  LYNX_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "counting GPUs"));
  if (index < 0 || index >= count) {
    return absl::UnavailableError(
        absl::StrCat("there is no GPU ", index, ": this process has ", count));
  }
  cudaDeviceProp properties;
  LYNX_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, index), "asking what the GPU is"));
  auto made = std::make_unique<CudaDevice>(kernels::DeviceInfo{.name = properties.name,
                                                               .index = index,
                                                               .major = properties.major,
                                                               .minor = properties.minor},
                                           kernels);
  // Its context is made now, so that what is wrong with it shows here.
  LYNX_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(index), absl::StrCat("taking GPU ", index)));
  LYNX_RETURN_IF_ERROR(CudaStatus(cudaFree(nullptr), absl::StrCat("starting GPU ", index)));
  return made;
}

}  // namespace lynx::cuda
