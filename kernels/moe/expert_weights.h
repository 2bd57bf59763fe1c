#pragma once

#include <cstdint>

#include "kernels/gemm/packed_matrix.h"

namespace lynx::kernels {

// One SwiGLU expert, packed. Borrowed.
//
// Gate and up projection are one matrix, panel p of which holds 16 outputs of the gate, from 16 p
// on, then the same of up, filled up with zeros. So silu(gate) * up needs nothing but a panel's
// product.
struct ExpertWeights {
  Matrix gate_up = {};  // [GateUpOutputs(intermediate), hidden]
  Matrix down = {};     // [hidden, intermediate]
  // Added to the products; null: none.
  const float* gate_up_bias = nullptr;  // [GateUpOutputs(intermediate)], in the order of gate_up
  const float* down_bias = nullptr;     // [hidden]
};

inline constexpr int64_t kGateOutputsPerPanel = kPanelRows / 2;

int64_t GateUpOutputs(int64_t intermediate);
// Where gate_up has the gate's output i; that of up is kGateOutputsPerPanel behind.
constexpr int64_t GateOutput(int64_t i) {
  return i / kGateOutputsPerPanel * kPanelRows + i % kGateOutputsPerPanel;
}

// As PackPanel for a panel of gate_up, from its outputs' rows of the gate and of up.
void PackGateUpPanel(const void* const gate[kGateOutputsPerPanel],
                     const void* const up[kGateOutputsPerPanel], DType dtype, int64_t hidden,
                     void* to);

}  // namespace lynx::kernels
