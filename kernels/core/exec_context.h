#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/core/isa.h"  // IWYU pragma: export
#include "kernels/core/thread_team.h"

namespace lynx::kernels {

// Who computes. kReference is the formula in double precision, for tests; kCpu is what serves.
enum class Backend : uint8_t { kReference, kCpu };

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
};

// Unavailable when this machine cannot run `ctx`.
absl::Status CheckUsable(const ExecContext& ctx);

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
