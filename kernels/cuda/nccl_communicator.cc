#include "kernels/cuda/nccl_communicator.h"

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/collective/missing_ranks.h"
#include "kernels/cuda/cuda_status.h"

namespace lynx::cuda {
namespace {

using std::chrono::microseconds;

// Between two looks at what NCCL and the GPU do: short beside a collective's time.
constexpr microseconds kPoll{5};

absl::Status NcclStatus(ncclResult_t result, ncclComm_t comm, const char* doing) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  const char* const more = comm == nullptr ? "" : ncclGetLastError(comm);
  return absl::UnavailableError(absl::StrCat("NCCL, ", doing, ": ", ncclGetErrorString(result),
                                             *more == '\0' ? "" : "; ", more));
}

constexpr char kRankKey[] = "collective/nccl_rank_";
constexpr char kIdKey[] = "collective/nccl_id";

absl::Status TooLate(int size, collective::Rendezvous& rendezvous) {
  const std::string missing = collective::MissingRanks(rendezvous, kRankKey, size);
  return absl::DeadlineExceededError(
      absl::StrCat("ranks that did not come in time: ",
                   missing.empty() ? "none, but NCCL did not connect" : missing));
}

}  // namespace

absl::Status NcclCommunicator::DeviceBuffer::Reserve(size_t bytes) {
  if (bytes <= bytes_) return absl::OkStatus();
  cudaFree(data_);
  data_ = nullptr;
  bytes_ = 0;
  LYNX_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&data_, bytes),
                                  absl::StrCat("allocating ", bytes, " bytes to exchange")));
  bytes_ = bytes;
  return absl::OkStatus();
}

NcclCommunicator::NcclCommunicator(const RankOptions& options)
    : ExchangeCommunicator(options.rank, options.size), options_(options) {}

NcclCommunicator::~NcclCommunicator() {
  {
    MutexLock lock(mu_);
    EndNccl();
  }
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Connect(
    const RankOptions& options, collective::Rendezvous& rendezvous) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of a group of ", options.size));
  }
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(options));
  LYNX_RETURN_IF_ERROR(made->Start(rendezvous));
  return made;
}

absl::Status NcclCommunicator::Start(collective::Rendezvous& rendezvous) {
  const absl::Time deadline = SteadyClock::Instance().Now() + options_.connect_timeout;
  LYNX_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(options_.device), absl::StrCat("taking GPU ", options_.device)));
  LYNX_RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"));
  LYNX_RETURN_IF_ERROR(rendezvous.Put(absl::StrCat(kRankKey, rank()), ""));
  ncclUniqueId id;
  if (rank() == 0) {
    LYNX_RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id), nullptr, "making an id"));
    LYNX_RETURN_IF_ERROR(rendezvous.Put(kIdKey, std::string(id.internal, sizeof id.internal)));
  } else {
    const absl::StatusOr<std::string> text =
        rendezvous.Get(kIdKey, deadline - SteadyClock::Instance().Now());
    if (absl::IsDeadlineExceeded(text.status())) return TooLate(size(), rendezvous);
    LYNX_RETURN_IF_ERROR(text.status());
    if (text->size() != sizeof id.internal) {
      return absl::UnavailableError("rank 0 has another version of NCCL: its id has another size");
    }
    std::memcpy(id.internal, text->data(), text->size());
  }
  MutexLock lock(mu_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  LYNX_RETURN_IF_ERROR(
      NcclStatus(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config), comm_, "connecting"));
  const absl::Status status = WaitForNccl(deadline);
  return absl::IsDeadlineExceeded(status) ? TooLate(size(), rendezvous) : status;
}

absl::Status NcclCommunicator::StillWaiting(absl::Time deadline) const {
  if (interrupted_) return absl::AbortedError("interrupted");
  if (SteadyClock::Instance().Now() >= deadline) {
    return absl::DeadlineExceededError(
        "ranks that did not take part in time: NCCL does not know which");
  }
  std::this_thread::sleep_for(kPoll);
  return absl::OkStatus();
}

absl::Status NcclCommunicator::WaitForNccl(absl::Time deadline) {
  for (;;) {
    ncclResult_t state = ncclSuccess;
    LYNX_RETURN_IF_ERROR(
        NcclStatus(ncclCommGetAsyncError(comm_, &state), comm_, "asking for its state"));
    LYNX_RETURN_IF_ERROR(NcclStatus(state, comm_, "between ranks"));
    if (state == ncclSuccess) return absl::OkStatus();
    LYNX_RETURN_IF_ERROR(StillWaiting(deadline));
  }
}

absl::Status NcclCommunicator::WaitForStream(absl::Time deadline) {
  for (;;) {
    const cudaError_t state = cudaStreamQuery(stream_);
    if (state != cudaErrorNotReady) return CudaStatus(state, "exchanging between ranks");
    // A rank that is gone shows here.
    ncclResult_t between = ncclSuccess;
    LYNX_RETURN_IF_ERROR(
        NcclStatus(ncclCommGetAsyncError(comm_, &between), comm_, "asking for its state"));
    LYNX_RETURN_IF_ERROR(NcclStatus(between, comm_, "between ranks"));
    LYNX_RETURN_IF_ERROR(StillWaiting(deadline));
  }
}

absl::Status NcclCommunicator::EnqueueExchange(const std::byte* out, std::span<const Part> to,
                                               std::byte* in, std::span<const Part> from,
                                               cudaStream_t stream) {
  const absl::Time deadline = SteadyClock::Instance().Now() + options_.timeout;
  LYNX_RETURN_IF_ERROR(NcclStatus(ncclGroupStart(), comm_, "beginning a group"));
  ncclResult_t result = ncclSuccess;
  const auto keep = [&](ncclResult_t one) {
    if (result == ncclSuccess || result == ncclInProgress) result = one;
  };
  for (int i = 1; i < size(); ++i) {
    // Each rank begins with another one.
    const int receiver = (rank() + i) % size();
    const int sender = (rank() + size() - i) % size();
    const Part& sent = to[static_cast<size_t>(receiver)];
    const Part& received = from[static_cast<size_t>(sender)];
    if (received.bytes > 0) {
      keep(ncclRecv(in + received.offset, received.bytes, ncclInt8, sender, comm_, stream));
    }
    if (sent.bytes > 0) {
      keep(ncclSend(out + sent.offset, sent.bytes, ncclInt8, receiver, comm_, stream));
    }
  }
  keep(ncclGroupEnd());
  LYNX_RETURN_IF_ERROR(NcclStatus(result, comm_, "exchanging"));
  return WaitForNccl(deadline);
}

absl::Status NcclCommunicator::Exchange(std::span<const std::byte> out, std::span<const Part> to,
                                        std::span<std::byte> in, std::span<const Part> from) {
  MutexLock lock(mu_);
  if (comm_ == nullptr || interrupted_) return absl::AbortedError("interrupted");
  absl::Status status = ExchangeByDevice(out, to, in, from);
  // Ends it for the other ranks too.
  if (!status.ok()) EndNccl();
  return status;
}

absl::Status NcclCommunicator::ExchangeByDevice(std::span<const std::byte> out,
                                                std::span<const Part> to, std::span<std::byte> in,
                                                std::span<const Part> from) {
  const absl::Time deadline = SteadyClock::Instance().Now() + options_.timeout;
  LYNX_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(options_.device), absl::StrCat("taking GPU ", options_.device)));
  LYNX_RETURN_IF_ERROR(out_.Reserve(out.size()));
  LYNX_RETURN_IF_ERROR(in_.Reserve(in.size()));
  LYNX_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(out_.data(), out.data(), out.size(), cudaMemcpyHostToDevice, stream_),
      "copying to the GPU"));
  LYNX_RETURN_IF_ERROR(EnqueueExchange(out_.data(), to, in_.data(), from, stream_));
  LYNX_RETURN_IF_ERROR(WaitForStream(deadline));
  for (int r = 0; r < size(); ++r) {
    const Part& part = from[static_cast<size_t>(r)];
    if (r == rank() || part.bytes == 0) continue;
    LYNX_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(in.data() + part.offset, in_.data() + part.offset, part.bytes,
                                   cudaMemcpyDeviceToHost, stream_),
                   "copying from the GPU"));
  }
  return WaitForStream(deadline);
}

void NcclCommunicator::Interrupt() {
  interrupted_ = true;  // A running Exchange looks.
  MutexLock lock(mu_);
  EndNccl();
}

void NcclCommunicator::EndNccl() {
  if (comm_ == nullptr) return;
  ncclCommAbort(comm_);
  comm_ = nullptr;
}

}  // namespace lynx::cuda
