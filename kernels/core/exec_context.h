#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/core/device_kernels.h"  // IWYU pragma: export
#include "kernels/core/isa.h"             // IWYU pragma: export
#include "kernels/core/thread_team.h"

namespace lynx::kernels {

// Who computes. kReference is the formula in double precision, for tests; kCpu and kCuda serve.
enum class Backend : uint8_t { kReference, kCpu, kCuda };

std::string_view Name(Backend backend);

// The instruction set of that Name(), if there is one.
std::optional<Isa> IsaNamed(std::string_view name);

// What a flag for an instruction set takes: "auto", which is none of them, and every Name().
std::vector<std::string> IsaChoices();

// How an operation runs. Borrowed by the call.
struct ExecContext {
  Backend backend = Backend::kCpu;
  Isa isa = BestIsa();         // At most BestIsa().
  ThreadTeam* team = nullptr;  // Null: on the calling thread alone.
  // Unless null: matrix products add the bytes of packed weights that they read from memory.
  std::atomic<int64_t>* streamed_bytes = nullptr;
  // Of kCuda, which needs it: whose kernels, and where. Arguments then are in device memory, and an
  // operation returns as soon as it is queued.
  const DeviceKernels* device = nullptr;
  DeviceQueue queue = {};
};

// Unavailable when this machine cannot run `ctx`.
absl::Status CheckUsable(const ExecContext& ctx);

// What the operation of that name answers once `queue_work`, its entry of DeviceKernels, was
// called.
//   Unimplemented      the entry is null.
//   ResourceExhausted  the scratch memory is too small.
//   Internal           the launch was refused, or an earlier one of the device failed: give it up.
absl::Status DeviceStatus(std::string_view operation, int cuda_error);
template <typename Args>
absl::Status QueueOnDevice(std::string_view operation,
                           int (*queue_work)(const Args&, const DeviceQueue&), const Args& args,
                           const ExecContext& ctx) {
  return DeviceStatus(operation, queue_work == nullptr ? kNoKernel : queue_work(args, ctx.queue));
}

// Runs fn(i) for i in [0, items) on the team of `ctx`, or here.
template <typename Fn>
void ForEach(const ExecContext& ctx, int64_t items, const Fn& fn) {
  if (ctx.team != nullptr) {
    ctx.team->ParallelFor(items, fn);
  } else {
    for (int64_t i = 0; i < items; ++i) fn(i);
  }
}

}  // namespace lynx::kernels
