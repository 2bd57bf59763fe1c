#include "common/model/rotary.h"

#include "kernels/rope/rope.h"
#include "kernels/rope/rope_scaling.h"
#include "kernels/rope/rope_table.h"

namespace lynx::model {

Rotary::Rotary(const ModelSpec& spec, int64_t positions, kernels::Device* device)
    : rotary_dim_(spec.rotary_dim), positions_(positions) {
  const kernels::RopeTable table = kernels::MakeRopeTable(
      positions, kernels::MakeRopeFrequencies(spec.rotary_dim, spec.rope_theta, spec.rope_scaling));
  cosines_ = CopyOf(std::span(table.cosines), device);
  sines_ = CopyOf(std::span(table.sines), device);
}

absl::Status Rotary::Rotate(std::span<const int32_t> positions, int64_t heads, int64_t head_stride,
                            int64_t stride, float* x, const kernels::ExecContext& ctx) {
  return kernels::Rope({.x = x,
                        .positions = positions.data(),
                        .cosines = cosines_.data(),
                        .sines = sines_.data(),
                        .rows = static_cast<int64_t>(positions.size()),
                        .heads = heads,
                        .rotary_dim = rotary_dim_,
                        .head_stride = head_stride,
                        .x_stride = stride,
                        .table_positions = positions_},
                       ctx);
}

}  // namespace lynx::model
