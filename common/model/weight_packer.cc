#include "common/model/weight_packer.h"

namespace lynx::model {

using kernels::kPanelRows;
using kernels::Matrix;

Matrix WeightPacker::Place(Job job) {
  if (memory_ != nullptr) {
    job.to = memory_ + bytes_;
    job.matrix.data = job.to;
    jobs_.push_back(job);
  }
  bytes_ += kernels::PackedBytes(job.matrix.out, job.matrix.in, job.matrix.dtype);
  return job.matrix;
}

Matrix WeightPacker::Add(const std::byte* rows, DType dtype, int64_t out, int64_t in) {
  return Place({.to = nullptr,
                .matrix = {.dtype = dtype, .out = out, .in = in},
                .rows = rows,
                .up = nullptr,
                .source_rows = out});
}

Matrix WeightPacker::AddGateUp(const std::byte* gate, const std::byte* up, DType dtype,
                               int64_t intermediate, int64_t hidden) {
  return Place(
      {.to = nullptr,
       .matrix = {.dtype = dtype, .out = kernels::GateUpOutputs(intermediate), .in = hidden},
       .rows = gate,
       .up = up,
       .source_rows = intermediate});
}

void WeightPacker::PackJob(const Job& job, const PackOptions& options) {
  const Matrix& matrix = job.matrix;
  const int64_t panel_bytes = kernels::PanelBytes(matrix.in, matrix.dtype);
  const int64_t row_bytes = matrix.in * static_cast<int64_t>(SizeOf(matrix.dtype));
  options.team->ParallelFor(kernels::PanelCount(matrix.out), [&](int64_t panel) {
    std::byte* const to = job.to + panel * panel_bytes;
    if (job.up != nullptr) {
      kernels::PackGateUpPanel(job.rows, job.up, matrix.dtype, job.source_rows, matrix.in, panel,
                               to);
      return;
    }
    const void* rows[kPanelRows] = {};
    for (int64_t r = 0; r < kPanelRows; ++r) {
      const int64_t row = panel * kPanelRows + r;
      if (row < job.source_rows) rows[r] = job.rows + row * row_bytes;
    }
    kernels::PackPanel(rows, matrix.dtype, matrix.in, to);
  });
  if (!options.consumed) return;
  const auto source_bytes = static_cast<size_t>(job.source_rows * row_bytes);
  options.consumed({job.rows, source_bytes});
  if (job.up != nullptr) options.consumed({job.up, source_bytes});
}

void WeightPacker::Pack(const PackOptions& options) const {
  int64_t done = 0;
  for (const Job& job : jobs_) {
    PackJob(job, options);
    done += kernels::PackedBytes(job.matrix.out, job.matrix.in, job.matrix.dtype);
    if (options.progress) options.progress(done, bytes_);
  }
}

}  // namespace lynx::model
