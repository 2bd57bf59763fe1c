#include "services/cli/bench/arithmetic_rate.h"

#include <algorithm>
#include <chrono>

#include "common/base/status_macros.h"
#include "kernels/core/exec_context.h"
#include "kernels/gemm/gemm.h"

namespace lynx::cli {
namespace {

constexpr int64_t kIn = 2048;
constexpr int64_t kOutOfThread = 128;  // Half a MiB of weights.
constexpr int kPasses = 12;
constexpr size_t kAlignment = 64;
constexpr uint8_t kSmall = 0x3c;  // Bytes of bf16 and float32 numbers around 0.01.

std::span<uint8_t> Aligned(std::vector<uint8_t>& memory, int64_t bytes) {
  memory.assign(static_cast<size_t>(bytes) + kAlignment, kSmall);
  const size_t skip = (kAlignment - reinterpret_cast<uintptr_t>(memory.data()) % kAlignment);
  return std::span(memory).subspan(skip, static_cast<size_t>(bytes));
}

}  // namespace

ArithmeticRate::ArithmeticRate(DType dtype, kernels::ThreadTeam& team, kernels::Isa isa)
    : dtype_(dtype), team_(team), isa_(isa), out_(kOutOfThread * team.threads()) {
  weights_ = Aligned(memory_, kernels::PackedBytes(out_, kIn, DType::kBf16));
}

absl::StatusOr<double> ArithmeticRate::Measure(int64_t rows) {
  const int64_t stride = kernels::ActivationStride(kIn, dtype_);
  std::vector<uint8_t> memory;
  const auto x = Aligned(memory, rows * stride * static_cast<int64_t>(SizeOf(dtype_)));
  std::vector<float> y(static_cast<size_t>(rows * out_));
  const kernels::ExecContext ctx{.isa = isa_, .team = &team_};
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    LYNX_RETURN_IF_ERROR(kernels::Gemm(
        kernels::GemmArgs{
            .x = x.data(),
            .w = {.data = weights_.data(), .dtype = DType::kBf16, .out = out_, .in = kIn},
            .y = y.data(),
            .rows = rows,
            .x_stride = stride,
            .y_stride = out_,
            .x_dtype = dtype_},
        ctx));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const double operations = 2.0 * static_cast<double>(rows) * static_cast<double>(out_ * kIn);
    best = std::max(best, operations / std::max(seconds.count(), 1e-9));
  }
  return best;
}

}  // namespace lynx::cli
