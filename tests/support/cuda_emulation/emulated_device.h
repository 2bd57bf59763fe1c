#pragma once

#include <cstddef>
#include <memory>

#include "kernels/core/device.h"

namespace lynx::testing {

// A GPU of `total_bytes` whose kernels run on the emulator (emulator.h). It is as strict as a
// Device may be, and tells faults as the emulator does:
//   - what a copy to the host brings is not there until it was synchronised, and what a copy to
//     the device takes may not change until then;
//   - a copy waits in its stream until a kernel or a call needs it: who forgets to wait for another
//     stream finds old bytes;
//   - copies out of bounds or of freed memory, host memory that is not pinned, kernels of a thread
//     that did not call Use(), memory that was never freed.
// Device memory begins as NaN. The host that touches it dies (SIGSEGV), as do kernels that leave
// what was allocated, but for up to 255 bytes behind it: changes there are found when it is freed.
std::unique_ptr<kernels::Device> MakeEmulatedDevice(size_t total_bytes = size_t{1} << 30);

}  // namespace lynx::testing
