#include "common/model/device_kv.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status_macros.h"

namespace lynx::model {
namespace {

// Of each half of the pinned memory: one is copied while the device fills or empties the other.
constexpr size_t kChunkBytes = size_t{1} << 20;

class DeviceKv final : public kv::RemoteMemory {
 public:
  DeviceKv(kernels::DeviceBuffer memory, kernels::DeviceBuffer staging,
           std::unique_ptr<kernels::DeviceStream> stream,
           std::array<std::unique_ptr<kernels::DeviceEvent>, 2> done)
      : memory_(std::move(memory)),
        staging_(std::move(staging)),
        stream_(std::move(stream)),
        done_(std::move(done)) {}

  std::byte* data() override { return memory_.data(); }

  absl::Status Read(std::span<const Piece> from, std::byte* to) override {
    MutexLock lock(mu_);
    const absl::Status status = ReadChunks(from, to);
    return status.ok() ? status : Settle(status);
  }
  absl::Status Write(const std::byte* from, std::span<const Piece> to) override {
    MutexLock lock(mu_);
    return Settle(WriteChunks(from, to));
  }

 private:
  // Takes pieces from the front, a chunk at a time.
  class Chunks {
   public:
    explicit Chunks(std::span<const Piece> pieces) : pieces_(pieces) {}
    // Calls `copy` with parts of pieces and where in the chunk they are; how long the chunk is, 0
    // at the end.
    template <typename Copy>
    absl::StatusOr<size_t> Next(const Copy& copy) {
      size_t bytes = 0;
      while (!pieces_.empty() && bytes < kChunkBytes) {
        const Piece& piece = pieces_.front();
        const size_t part = std::min(piece.bytes - taken_, kChunkBytes - bytes);
        LYNX_RETURN_IF_ERROR(copy(piece.at + taken_, bytes, part));
        bytes += part;
        taken_ += part;
        if (taken_ < piece.bytes) break;
        taken_ = 0;
        pieces_ = pieces_.subspan(1);
      }
      return bytes;
    }

   private:
    std::span<const Piece> pieces_;
    size_t taken_ = 0;  // Of the first.
  };

  std::byte* Half(size_t chunk) { return staging_.data() + chunk % 2 * kChunkBytes; }

  absl::Status ReadChunks(std::span<const Piece> from, std::byte* to) {
    Chunks chunks(from);
    const auto queue = [&](size_t chunk) -> absl::StatusOr<size_t> {
      LYNX_ASSIGN_OR_RETURN(const size_t bytes,
                            chunks.Next([&](const std::byte* at, size_t offset, size_t part) {
                              return stream_->CopyToHost(Half(chunk) + offset, at, part);
                            }));
      LYNX_RETURN_IF_ERROR(stream_->Record(*done_[chunk % 2]));
      return bytes;
    };
    LYNX_ASSIGN_OR_RETURN(size_t bytes, queue(0));
    for (size_t chunk = 0; bytes > 0; ++chunk) {
      LYNX_ASSIGN_OR_RETURN(const size_t next, queue(chunk + 1));
      LYNX_RETURN_IF_ERROR(done_[chunk % 2]->Synchronise());
      std::memcpy(to, Half(chunk), bytes);
      to += bytes;
      bytes = next;
    }
    return absl::OkStatus();
  }

  absl::Status WriteChunks(const std::byte* from, std::span<const Piece> to) {
    Chunks chunks(to);
    for (size_t chunk = 0;; ++chunk) {
      LYNX_RETURN_IF_ERROR(done_[chunk % 2]->Synchronise());
      LYNX_ASSIGN_OR_RETURN(const size_t bytes,
                            chunks.Next([&](std::byte* at, size_t offset, size_t part) {
                              std::memcpy(Half(chunk) + offset, from + offset, part);
                              return stream_->CopyToDevice(at, Half(chunk) + offset, part);
                            }));
      if (bytes == 0) return absl::OkStatus();
      from += bytes;
      LYNX_RETURN_IF_ERROR(stream_->Record(*done_[chunk % 2]));
    }
  }

  // Whatever came of it, nothing uses the pinned memory any more.
  absl::Status Settle(const absl::Status& status) {
    const absl::Status done = stream_->Synchronise();
    return status.ok() ? done : status;
  }

  const kernels::DeviceBuffer memory_;
  Mutex mu_;
  const kernels::DeviceBuffer staging_;
  const std::unique_ptr<kernels::DeviceStream> stream_;
  const std::array<std::unique_ptr<kernels::DeviceEvent>, 2> done_;  // The last copies of a half.
};

}  // namespace

absl::StatusOr<std::unique_ptr<kv::RemoteMemory>> MakeDeviceKv(kernels::Device& device,
                                                               size_t bytes) {
  LYNX_ASSIGN_OR_RETURN(kernels::DeviceBuffer memory, kernels::DeviceBuffer::Create(device, bytes));
  LYNX_ASSIGN_OR_RETURN(kernels::DeviceBuffer staging,
                        kernels::DeviceBuffer::CreateHost(device, 2 * kChunkBytes));
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<kernels::DeviceStream> stream, device.MakeStream());
  std::array<std::unique_ptr<kernels::DeviceEvent>, 2> done;
  for (auto& event : done) {
    LYNX_ASSIGN_OR_RETURN(event, device.MakeEvent());
  }
  LYNX_RETURN_IF_ERROR(stream->Clear(memory.data(), bytes));
  LYNX_RETURN_IF_ERROR(stream->Synchronise());
  return std::make_unique<DeviceKv>(std::move(memory), std::move(staging), std::move(stream),
                                    std::move(done));
}

}  // namespace lynx::model
