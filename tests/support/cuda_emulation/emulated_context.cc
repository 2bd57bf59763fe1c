#include "tests/support/cuda_emulation/emulated_context.h"

#include "kernels/cuda/device_kernels.h"

namespace lynx::testing {

kernels::ExecContext EmulatedCuda() {
  struct alignas(256) Line {
    std::byte bytes[256];
  };
  static std::vector<Line> scratch(64 << 12);  // 64 MiB
  return {.backend = kernels::Backend::kCuda,
          .isa = kernels::Isa::kPortable,
          .device = &cuda::Kernels(),
          .queue = {.scratch = scratch.front().bytes, .scratch_bytes = scratch.size() * 256}};
}

std::vector<kernels::ExecContext> AllContextsAndCuda() {
  std::vector<kernels::ExecContext> all = AllContexts();
#if !defined(__SANITIZE_THREAD__)
  all.push_back(EmulatedCuda());
#endif
  return all;
}

}  // namespace lynx::testing
