#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/collective/exchange_communicator.h"
#include "common/collective/rendezvous.h"
#include "kernels/cuda/plugin.h"

namespace lynx::cuda {

// Ranks with a GPU each, over NCCL in its non-blocking mode: nothing waits inside NCCL, so that
// every call can end at its deadline.
//
// Of NCCL only sends and receptions are used. Its own reductions add in an order that depends on
// how many values a call has, and a row's bits must not.
//
// The calls of Communicator take memory of the host and go through buffers on the device.
// EnqueueExchange() takes device memory, on any stream, also while a CUDA graph is captured from
// it.
//
// A rank that is destroyed leaves at once: what it has sent reaches the others for certain only if
// all have passed a Barrier() since. Not run on hardware.
class NcclCommunicator final : public collective::ExchangeCommunicator {
 public:
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Connect(
      const RankOptions& options, collective::Rendezvous& rendezvous);
  ~NcclCommunicator() override;

  // As Exchange() with device memory: puts it on `stream` and returns once NCCL has taken it.
  // Nothing goes from a rank to itself.
  absl::Status EnqueueExchange(const std::byte* out, std::span<const Part> to, std::byte* in,
                               std::span<const Part> from, cudaStream_t stream);

 private:
  // Memory of the device that grows.
  class DeviceBuffer {
   public:
    ~DeviceBuffer() { cudaFree(data_); }
    absl::Status Reserve(size_t bytes);
    std::byte* data() const { return static_cast<std::byte*>(data_); }

   private:
    void* data_ = nullptr;
    size_t bytes_ = 0;
  };

  explicit NcclCommunicator(const RankOptions& options);
  absl::Status Start(collective::Rendezvous& rendezvous);
  absl::Status Exchange(std::span<const std::byte> out, std::span<const Part> to,
                        std::span<std::byte> in, std::span<const Part> from) override
      LYNX_EXCLUDES(mu_);
  absl::Status ExchangeByDevice(std::span<const std::byte> out, std::span<const Part> to,
                                std::span<std::byte> in, std::span<const Part> from)
      LYNX_REQUIRES(mu_);
  void Interrupt() override LYNX_EXCLUDES(mu_);

  // Waits until NCCL is through with what it was asked, by `deadline` or an interruption.
  absl::Status WaitForNccl(absl::Time deadline);
  // The same of what is on stream_.
  absl::Status WaitForStream(absl::Time deadline);
  absl::Status StillWaiting(absl::Time deadline) const;
  // Ends what NCCL does, here and thereby at the other ranks.
  void EndNccl() LYNX_REQUIRES(mu_);

  const RankOptions options_;
  Mutex mu_;  // Held while NCCL works.
  std::atomic<bool> interrupted_ = false;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  DeviceBuffer out_;
  DeviceBuffer in_;
};

}  // namespace lynx::cuda
