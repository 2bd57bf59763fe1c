#include "common/model/rotary.h"

#include "kernels/rope/rope.h"
#include "kernels/rope/rope_scaling.h"

namespace lynx::model {

Rotary::Rotary(const ModelSpec& spec, int64_t positions)
    : rotary_dim_(spec.rotary_dim),
      positions_(positions),
      table_(kernels::MakeRopeTable(
          positions,
          kernels::MakeRopeFrequencies(spec.rotary_dim, spec.rope_theta, spec.rope_scaling))) {}

absl::Status Rotary::Rotate(std::span<const int32_t> positions, int64_t heads, int64_t head_stride,
                            int64_t stride, float* x, const kernels::ExecContext& ctx) const {
  return kernels::Rope({.x = x,
                        .positions = positions.data(),
                        .cosines = table_.cosines.data(),
                        .sines = table_.sines.data(),
                        .rows = static_cast<int64_t>(positions.size()),
                        .heads = heads,
                        .rotary_dim = rotary_dim_,
                        .head_stride = head_stride,
                        .x_stride = stride,
                        .table_positions = positions_},
                       ctx);
}

}  // namespace lynx::model
