#include "tests/support/cuda_emulation/emulator.h"

namespace lynx::cuda_emulation {
bool RaceCheckWorks() { return false; }
}  // namespace lynx::cuda_emulation
