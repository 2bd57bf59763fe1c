#include "kernels/moe/expert_weights.h"

#include <cstddef>

namespace lynx::kernels {

int64_t GateUpOutputs(int64_t intermediate) {
  return (intermediate + kGateOutputsPerPanel - 1) / kGateOutputsPerPanel * kPanelRows;
}

void PackGateUpPanel(const void* gate, const void* up, DType dtype, int64_t intermediate,
                     int64_t hidden, int64_t panel, void* to) {
  const void* rows[kPanelRows] = {};
  for (int64_t i = 0; i < kGateOutputsPerPanel; ++i) {
    const int64_t row = panel * kGateOutputsPerPanel + i;
    if (row >= intermediate) break;
    const int64_t offset = row * hidden * static_cast<int64_t>(SizeOf(dtype));
    rows[i] = static_cast<const std::byte*>(gate) + offset;
    rows[kGateOutputsPerPanel + i] = static_cast<const std::byte*>(up) + offset;
  }
  PackPanel(rows, dtype, hidden, to);
}

}  // namespace lynx::kernels
