#include "kernels/moe/expert_weights.h"

#include <algorithm>

namespace lynx::kernels {

int64_t GateUpOutputs(int64_t intermediate) {
  return (intermediate + kGateOutputsPerPanel - 1) / kGateOutputsPerPanel * kPanelRows;
}

void PackGateUpPanel(const void* const gate[kGateOutputsPerPanel],
                     const void* const up[kGateOutputsPerPanel], DType dtype, int64_t hidden,
                     void* to) {
  const void* rows[kPanelRows];
  std::copy_n(gate, kGateOutputsPerPanel, rows);
  std::copy_n(up, kGateOutputsPerPanel, rows + kGateOutputsPerPanel);
  PackPanel(rows, dtype, hidden, to);
}

}  // namespace lynx::kernels
