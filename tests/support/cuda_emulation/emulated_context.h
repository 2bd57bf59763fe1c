#pragma once

#include <vector>

#include "kernels/core/exec_context.h"
#include "tests/support/kernel_test.h"

namespace lynx::testing {

// Runs the kernels for GPUs on the CPU (emulator.h). Its scratch memory is one for all.
kernels::ExecContext EmulatedCuda();

// AllContexts(), and EmulatedCuda() where fibers may run: not under ThreadSanitizer.
std::vector<kernels::ExecContext> AllContextsAndCuda();

}  // namespace lynx::testing
