#include "common/model/weight_packer.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace lynx::model {

using kernels::kPanelRows;
using kernels::Matrix;

Matrix WeightPacker::Place(Job job) {
  if (memory_ != nullptr) {
    job.to = memory_ + bytes_;
    job.matrix.data = job.to;
  }
  const Matrix matrix = job.matrix;
  bytes_ += kernels::PackedBytes(matrix.out, matrix.in, matrix.dtype);
  if (memory_ != nullptr) jobs_.push_back(std::move(job));
  return matrix;
}

Matrix WeightPacker::Add(RowSource rows) {
  const Matrix matrix{.dtype = rows.dtype, .out = rows.rows, .in = rows.width};
  return Place({.to = nullptr, .matrix = matrix, .rows = std::move(rows), .up = {}});
}

Matrix WeightPacker::AddGateUp(RowSource gate, RowSource up) {
  const Matrix matrix{
      .dtype = gate.dtype, .out = kernels::GateUpOutputs(gate.rows), .in = gate.width};
  return Place({.to = nullptr, .matrix = matrix, .rows = std::move(gate), .up = std::move(up)});
}

void WeightPacker::PackJob(const Job& job, const PackOptions& options) {
  const Matrix& matrix = job.matrix;
  const int64_t panel_bytes = kernels::PanelBytes(matrix.in, matrix.dtype);
  const bool gate_up = job.up.rows > 0;
  const int64_t source_rows = gate_up ? kPanelRows / 2 : kPanelRows;  // Of one, in a panel.
  const auto row_bytes =
      static_cast<size_t>(std::max({matrix.in, job.rows.scratch_width, job.up.scratch_width})) *
      SizeOf(matrix.dtype);
  options.team->ParallelFor(kernels::PanelCount(matrix.out), [&](int64_t panel) {
    const size_t scratch_row = (row_bytes + 63) / 64 * 64;
    const auto scratch = std::make_unique_for_overwrite<std::byte[]>(scratch_row * kPanelRows);
    const void* rows[kPanelRows] = {};
    auto read = [&](const RowSource& source, int64_t first) {
      for (int64_t r = 0; r < source_rows; ++r) {
        const int64_t row = panel * source_rows + r;
        if (row >= source.rows) return;
        rows[first + r] =
            source.read(row, scratch.get() + static_cast<size_t>(first + r) * scratch_row);
      }
    };
    std::byte* const to = job.to + panel * panel_bytes;
    read(job.rows, 0);
    if (gate_up) {
      read(job.up, source_rows);
      kernels::PackGateUpPanel(rows, rows + source_rows, matrix.dtype, matrix.in, to);
    } else {
      kernels::PackPanel(rows, matrix.dtype, matrix.in, to);
    }
  });
  if (!options.consumed) return;
  for (const RowSource* source : {&job.rows, &job.up}) {
    for (std::span<const std::byte> memory : source->memory) options.consumed(memory);
  }
}

std::vector<std::span<const std::byte>> WeightPacker::Sources() const {
  std::vector<std::span<const std::byte>> all;
  for (const Job& job : jobs_) {
    for (const RowSource* source : {&job.rows, &job.up}) {
      all.insert(all.end(), source->memory.begin(), source->memory.end());
    }
  }
  return all;
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
