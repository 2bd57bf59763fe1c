#include "tests/support/cuda_emulation/emulated_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "kernels/cuda/device_kernels.h"
#include "tests/support/cuda_emulation/emulator.h"

namespace lynx::testing {
namespace {

using cuda_emulation::ReportFault;
using kernels::DeviceEvent;
using kernels::DeviceGraph;
using kernels::DeviceStream;

constexpr char kWhere[] = "device";
constexpr size_t kAlignment = 256;
constexpr std::byte kFresh{0xff};
constexpr std::byte kBehind{0xa5};

size_t Page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Device memory, each piece with a guard behind it, which only kernels and copies may touch.
class Memory {
 public:
  explicit Memory(size_t total) : total_(total) {}

  std::byte* Allocate(size_t bytes) {
    if (bytes > total_ - used_) return nullptr;
    Piece piece{.bytes = bytes, .mapped = RoundUp(bytes, Page())};
    void* const at = mmap(nullptr, piece.mapped + Page(), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    LYNX_CHECK(at != MAP_FAILED);
    piece.pages = static_cast<std::byte*>(at);
    std::byte* const data = piece.pages + piece.mapped - RoundUp(bytes, kAlignment);
    LYNX_CHECK(mprotect(piece.pages, piece.mapped, PROT_READ | PROT_WRITE) == 0);
    std::fill_n(data, bytes, kFresh);
    std::fill(data + bytes, piece.pages + piece.mapped, kBehind);
    used_ += bytes;
    pieces_[data] = piece;
    if (open_ == 0) Protect(piece, PROT_NONE);
    return data;
  }

  void Free(std::byte* data) {
    const auto piece = pieces_.find(data);
    if (piece == pieces_.end()) {
      ReportFault(kWhere, "memory is freed that is not, or no more, allocated");
      return;
    }
    Protect(piece->second, PROT_READ);
    const std::byte* const end = piece->second.pages + piece->second.mapped;
    const std::byte* const behind = data + piece->second.bytes;
    if (std::any_of(behind, end, [](std::byte b) { return b != kBehind; })) {
      ReportFault(kWhere, absl::StrCat("bytes behind an allocation of ", piece->second.bytes,
                                       " were written"));
    }
    // The addresses are never used again.
    Protect(piece->second, PROT_NONE);
    madvise(piece->second.pages, piece->second.mapped, MADV_DONTNEED);
    used_ -= piece->second.bytes;
    pieces_.erase(piece);
  }

  bool Holds(const std::byte* data, size_t bytes) const {
    auto next = pieces_.upper_bound(const_cast<std::byte*>(data));
    if (next == pieces_.begin()) return false;
    const auto& [at, piece] = *--next;
    return static_cast<size_t>(data - at) <= piece.bytes &&
           bytes <= piece.bytes - static_cast<size_t>(data - at);
  }

  // While anything of the device runs.
  void Open() {
    if (open_++ == 0) ProtectAll(PROT_READ | PROT_WRITE);
  }
  void Close() {
    if (--open_ == 0) ProtectAll(PROT_NONE);
  }

  size_t total() const { return total_; }
  size_t used() const { return used_; }

 private:
  struct Piece {
    size_t bytes = 0;
    size_t mapped = 0;
    std::byte* pages = nullptr;
  };
  static void Protect(const Piece& piece, int protection) {
    LYNX_CHECK(mprotect(piece.pages, piece.mapped, protection) == 0);
  }
  void ProtectAll(int protection) {
    for (const auto& [data, piece] : pieces_) Protect(piece, protection);
  }

  const size_t total_;
  size_t used_ = 0;
  int open_ = 0;
  std::map<std::byte*, Piece> pieces_;
};

// What streams, events and the device share.
struct Shared {
  explicit Shared(size_t total) : memory(total) {}

  // Whether copies may use it; says so if not.
  bool CheckDevice(const std::byte* data, size_t bytes) {
    if (memory.Holds(data, bytes)) return true;
    ReportFault(kWhere, absl::StrCat("a copy of ", bytes,
                                     " bytes touches what is no memory of the device"));
    return false;
  }
  bool CheckHost(const std::byte* data, size_t bytes) {
    auto next = pinned.upper_bound(const_cast<std::byte*>(data));
    if (next != pinned.begin()) {
      --next;
      const auto offset = static_cast<size_t>(data - next->first);
      if (offset <= next->second && bytes <= next->second - offset) return true;
    }
    ReportFault(kWhere, absl::StrCat("a copy of ", bytes, " bytes touches host memory that is not ",
                                     "pinned"));
    return false;
  }

  std::recursive_mutex mutex;  // A stream runs what it waits for of another one.
  Memory memory;
  std::map<std::byte*, size_t> pinned;
};

thread_local const Shared* used_device = nullptr;

absl::Status TakeStatus() {
  if (cuda_emulation::TakeError() == 0) return absl::OkStatus();
  const std::vector<std::string> faults = cuda_emulation::Faults();
  return absl::InternalError(
      absl::StrCat("emulated device: ", faults.empty() ? "?" : faults.front()));
}

class EmulatedStream;

// What a stream has queued, which events outlive.
class Queue {
 public:
  explicit Queue(Shared& shared) : shared_(shared) {}

  struct Work {
    std::function<void()> run;
    std::function<void()> settle;  // When it was synchronised; may be empty.
  };
  void Add(Work work) { waiting_.push_back(std::move(work)); }
  uint64_t end() const { return ran_ + waiting_.size(); }

  // Until `end` pieces of work in all have run.
  void Run(uint64_t end) {
    while (ran_ < end && !waiting_.empty()) {
      Work work = std::move(waiting_.front());
      waiting_.pop_front();
      ++ran_;
      shared_.memory.Open();
      work.run();
      shared_.memory.Close();
      if (work.settle) unsettled_.push_back({ran_, std::move(work.settle)});
    }
  }
  void Synchronise(uint64_t end) {
    Run(end);
    while (!unsettled_.empty() && unsettled_.front().first <= end) {
      unsettled_.front().second();
      unsettled_.pop_front();
    }
  }

 private:
  Shared& shared_;
  uint64_t ran_ = 0;
  std::deque<Work> waiting_;
  std::deque<std::pair<uint64_t, std::function<void()>>> unsettled_;
};

class EmulatedEvent final : public DeviceEvent {
 public:
  explicit EmulatedEvent(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  absl::Status Synchronise() override {
    const std::lock_guard lock(shared_->mutex);
    if (queue != nullptr) queue->Synchronise(end);
    return TakeStatus();
  }

  std::shared_ptr<Queue> queue;  // Of its last record, up to `end`.
  uint64_t end = 0;

 private:
  const std::shared_ptr<Shared> shared_;
};

class EmulatedGraph final : public DeviceGraph {
 public:
  std::vector<std::function<absl::Status(EmulatedStream&)>> steps;
};

class EmulatedStream final : public DeviceStream, public cuda_emulation::Stream {
 public:
  explicit EmulatedStream(std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)), queue_(std::make_shared<Queue>(*shared_)) {}
  ~EmulatedStream() override {
    const std::lock_guard lock(shared_->mutex);
    queue_->Synchronise(queue_->end());
  }

  void* handle() override { return static_cast<cuda_emulation::Stream*>(this); }

  void Launch(const char* kernel, std::function<void()> run) override {
    const std::lock_guard lock(shared_->mutex);
    if (used_device != shared_.get()) {
      ReportFault(kernel, "is launched by a thread that uses another device, or none");
      return;
    }
    if (capture_ != nullptr) {
      capture_->steps.push_back([run](EmulatedStream& stream) {
        stream.RunNow(run);
        return TakeStatus();
      });
      return;
    }
    RunNow(std::move(run));
  }

  absl::Status CopyToDevice(std::byte* device, const std::byte* host, size_t bytes) override {
    return Do([=](EmulatedStream& stream) {
      if (!stream.shared_->CheckDevice(device, bytes) || !stream.shared_->CheckHost(host, bytes)) {
        return TakeStatus();
      }
      stream.queue_->Add({.run = [=] { std::memcpy(device, host, bytes); },
                          .settle =
                              [=, queued = std::vector<std::byte>(host, host + bytes)] {
                                if (std::equal(queued.begin(), queued.end(), host)) return;
                                ReportFault(kWhere,
                                            "host memory changed before its copy was synchronised");
                              }});
      return absl::OkStatus();
    });
  }
  absl::Status CopyToHost(std::byte* host, const std::byte* device, size_t bytes) override {
    return Do([=](EmulatedStream& stream) {
      if (!stream.shared_->CheckDevice(device, bytes) || !stream.shared_->CheckHost(host, bytes)) {
        return TakeStatus();
      }
      std::fill_n(host, bytes, kFresh);
      auto brought = std::make_shared<std::vector<std::byte>>(bytes);
      stream.queue_->Add({.run = [=] { std::memcpy(brought->data(), device, bytes); },
                          .settle = [=] { std::memcpy(host, brought->data(), bytes); }});
      return absl::OkStatus();
    });
  }
  absl::Status CopyOnDevice(std::byte* to, const std::byte* from, size_t bytes) override {
    return Do([=](EmulatedStream& stream) {
      if (!stream.shared_->CheckDevice(to, bytes) || !stream.shared_->CheckDevice(from, bytes)) {
        return TakeStatus();
      }
      stream.queue_->Add({.run = [=] { std::memcpy(to, from, bytes); }, .settle = {}});
      return absl::OkStatus();
    });
  }
  absl::Status Clear(std::byte* device, size_t bytes) override {
    return Do([=](EmulatedStream& stream) {
      if (!stream.shared_->CheckDevice(device, bytes)) return TakeStatus();
      stream.queue_->Add({.run = [=] { std::fill_n(device, bytes, std::byte{0}); }, .settle = {}});
      return absl::OkStatus();
    });
  }

  absl::Status Record(DeviceEvent& event) override {
    const std::lock_guard lock(shared_->mutex);
    if (capture_ != nullptr) return NotInACapture();
    auto& recorded = static_cast<EmulatedEvent&>(event);
    recorded.queue = queue_;
    recorded.end = queue_->end();
    return absl::OkStatus();
  }
  absl::Status Wait(DeviceEvent& event) override {
    const std::lock_guard lock(shared_->mutex);
    if (capture_ != nullptr) return NotInACapture();
    const auto& recorded = static_cast<EmulatedEvent&>(event);
    if (recorded.queue == nullptr) return absl::OkStatus();
    queue_->Add(
        {.run = [queue = recorded.queue, end = recorded.end] { queue->Run(end); }, .settle = {}});
    return absl::OkStatus();
  }
  absl::Status Synchronise() override {
    const std::lock_guard lock(shared_->mutex);
    if (capture_ != nullptr) return NotInACapture();
    queue_->Synchronise(queue_->end());
    return TakeStatus();
  }

  absl::Status BeginCapture() override {
    const std::lock_guard lock(shared_->mutex);
    if (capture_ != nullptr) return NotInACapture();
    capture_ = std::make_unique<EmulatedGraph>();
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() override {
    const std::lock_guard lock(shared_->mutex);
    if (capture_ == nullptr) return absl::InvalidArgumentError("no graph is captured");
    return std::move(capture_);
  }
  absl::Status Launch(DeviceGraph& graph) override {
    const std::lock_guard lock(shared_->mutex);
    if (capture_ != nullptr) return NotInACapture();
    for (const auto& step : static_cast<EmulatedGraph&>(graph).steps) {
      if (absl::Status status = step(*this); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status NotInACapture() {
    return absl::InvalidArgumentError("not while a graph is captured");
  }
  void RunNow(std::function<void()> run) {
    queue_->Add({.run = std::move(run), .settle = {}});
    queue_->Run(queue_->end());
  }
  absl::Status Do(std::function<absl::Status(EmulatedStream&)> step) {
    const std::lock_guard lock(shared_->mutex);
    if (capture_ == nullptr) return step(*this);
    capture_->steps.push_back(std::move(step));
    return absl::OkStatus();
  }

  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Queue> queue_;
  std::unique_ptr<EmulatedGraph> capture_;  // Null: none is captured.
};

class EmulatedDevice final : public kernels::Device {
 public:
  explicit EmulatedDevice(size_t total) : shared_(std::make_shared<Shared>(total)) {}
  ~EmulatedDevice() override {
    if (shared_->memory.used() > 0 || !shared_->pinned.empty()) {
      ReportFault(kWhere,
                  absl::StrCat(shared_->memory.used(), " bytes of the device and ",
                               shared_->pinned.size(), " pieces of pinned memory were not freed"));
    }
    if (used_device == shared_.get()) used_device = nullptr;
  }

  const kernels::DeviceInfo& info() const override { return info_; }
  const kernels::DeviceKernels& kernels() const override { return cuda::Kernels(); }

  absl::StatusOr<kernels::DeviceMemoryInfo> Memory() override {
    const std::lock_guard lock(shared_->mutex);
    const class Memory& memory = shared_->memory;
    return kernels::DeviceMemoryInfo{.free = static_cast<int64_t>(memory.total() - memory.used()),
                                     .total = static_cast<int64_t>(memory.total())};
  }
  absl::Status Use() override {
    used_device = shared_.get();
    return absl::OkStatus();
  }

  absl::StatusOr<std::byte*> Allocate(size_t bytes) override {
    const std::lock_guard lock(shared_->mutex);
    std::byte* const memory = shared_->memory.Allocate(bytes);
    if (memory != nullptr) return memory;
    return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes of memory of the GPU"));
  }
  void Free(std::byte* memory) override {
    const std::lock_guard lock(shared_->mutex);
    if (memory != nullptr) shared_->memory.Free(memory);
  }
  absl::StatusOr<std::byte*> AllocateHost(size_t bytes) override {
    const std::lock_guard lock(shared_->mutex);
    void* const memory = std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment));
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes of memory pinned"));
    }
    std::memset(memory, static_cast<int>(kFresh), bytes);
    shared_->pinned[static_cast<std::byte*>(memory)] = bytes;
    return static_cast<std::byte*>(memory);
  }
  void FreeHost(std::byte* memory) override {
    const std::lock_guard lock(shared_->mutex);
    if (memory == nullptr) return;
    if (shared_->pinned.erase(memory) == 0) {
      ReportFault(kWhere, "pinned memory is freed that is not, or no more, allocated");
      return;
    }
    std::free(memory);
  }

  absl::StatusOr<std::unique_ptr<DeviceStream>> MakeStream() override {
    return std::make_unique<EmulatedStream>(shared_);
  }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> MakeEvent() override {
    return std::make_unique<EmulatedEvent>(shared_);
  }

 private:
  const kernels::DeviceInfo info_ = {.name = "emulated", .index = 0, .major = 8, .minor = 0};
  const std::shared_ptr<Shared> shared_;
};

}  // namespace

std::unique_ptr<kernels::Device> MakeEmulatedDevice(size_t total_bytes) {
  return std::make_unique<EmulatedDevice>(total_bytes);
}

}  // namespace lynx::testing
