#include "kernels/moe/expert_ffn.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/core/float_convert.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/panel_items.h"
#include "kernels/moe/expert_ffn_backends.h"
#include "kernels/moe/order_free_sum.h"

namespace lynx::kernels {
namespace {

using internal::Activations;

// Bytes that an item of the passes without weights moves: some 10 us of one core.
constexpr int64_t kCopyItemBytes = 128 << 10;

int64_t Bytes(int64_t elements, DType dtype) {
  return elements * static_cast<int64_t>(SizeOf(dtype));
}

bool HasShape(const Matrix& matrix, int64_t out, int64_t in, DType dtype) {
  return matrix.out == out && matrix.in == in && matrix.dtype == dtype;
}

absl::Status ValidateOnDevice(const ExpertFfnArgs& args) {
  if (args.sums != nullptr) return absl::UnimplementedError("ExpertFfn: sums on a GPU");
  constexpr int64_t kAlignment = 16;  // Of loads.
  constexpr int64_t kMaxExperts = 1024;
  constexpr int64_t kMaxSize = int64_t{1} << 30;
  const bool aligned =
      args.x_dtype == DType::kF32 || (reinterpret_cast<uintptr_t>(args.x) % kAlignment == 0 &&
                                      Bytes(args.x_stride, args.x_dtype) % kAlignment == 0);
  if (!aligned || args.expert_count > kMaxExperts || args.hidden > kMaxSize ||
      args.intermediate > kMaxSize || args.rows > kMaxSize / args.top_k) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ExpertFfn on a GPU: x of bf16 and its rows begin at multiples of 16 bytes, with at most ",
        kMaxExperts, " experts; x_stride ", args.x_stride, ", expert_count ", args.expert_count,
        ", rows ", args.rows));
  }
  return absl::OkStatus();
}

absl::Status Validate(const ExpertFfnArgs& args, const ExpertFfnWorkspace& workspace,
                      Backend backend) {
  if (args.rows < 0 || args.hidden <= 0 || args.intermediate <= 0 || args.expert_count <= 0 ||
      args.top_k <= 0 || args.x_dtype == DType::kF16 || !(args.clamp >= 0) ||
      args.x_stride < PaddedDepth(args.hidden, args.x_dtype) || args.y_stride < args.hidden) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ExpertFfn: rows ", args.rows, ", hidden ", args.hidden, ", intermediate ",
        args.intermediate, ", expert_count ", args.expert_count, ", top_k ", args.top_k,
        ", x_stride ", args.x_stride, " of ", std::string(Name(args.x_dtype)), ", y_stride ",
        args.y_stride, ", clamp ", args.clamp));
  }
  if (!workspace.Fits(args)) {
    return absl::InvalidArgumentError(absl::StrCat("ExpertFfn: the workspace is too small for ",
                                                   args.rows, " rows of top_k ", args.top_k,
                                                   " over ", args.expert_count, " experts"));
  }
  if (backend == Backend::kCuda) return ValidateOnDevice(args);  // Contents cannot be seen.
  for (int64_t e = 0; e < args.expert_count; ++e) {
    const ExpertWeights& expert = args.experts[e];
    if (!HasShape(expert.gate_up, GateUpOutputs(args.intermediate), args.hidden,
                  args.experts[0].gate_up.dtype) ||
        !HasShape(expert.down, args.hidden, args.intermediate, args.experts[0].down.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("ExpertFfn: expert ", e, " is not [",
                                                     args.hidden, ", ", args.intermediate,
                                                     "] or not of the type of expert 0"));
    }
  }
  for (int64_t i = 0; i < args.rows * args.top_k; ++i) {
    if (args.ids[i] < kNoExpert || args.ids[i] >= args.expert_count) {
      return absl::InvalidArgumentError(absl::StrCat("ExpertFfn: expert ", args.ids[i], " of row ",
                                                     i / args.top_k, " is not in [0, ",
                                                     args.expert_count, ")"));
    }
  }
  return absl::OkStatus();
}

// Sorts the assignments by expert, stably: a counting sort.
void GroupByExpert(const ExpertFfnArgs& args, ExpertFfnWorkspace& workspace) {
  const auto experts = static_cast<size_t>(args.expert_count);
  const auto assignments = static_cast<size_t>(args.rows * args.top_k);
  std::fill_n(workspace.offsets.begin(), experts + 1, 0);
  for (size_t i = 0; i < assignments; ++i) {
    if (args.ids[i] != kNoExpert) ++workspace.offsets[static_cast<size_t>(args.ids[i])];
  }
  workspace.active.clear();
  int32_t total = 0;
  for (size_t e = 0; e < experts; ++e) {  // Counts become the ends of the groups ...
    if (workspace.offsets[e] > 0) workspace.active.push_back(static_cast<int32_t>(e));
    total += workspace.offsets[e];
    workspace.offsets[e] = total;
  }
  workspace.offsets[experts] = total;
  for (size_t i = assignments; i-- > 0;) {  // ... and, filled from the back, their beginnings.
    if (args.ids[i] == kNoExpert) continue;
    const auto e = static_cast<size_t>(args.ids[i]);
    workspace.order[static_cast<size_t>(--workspace.offsets[e])] = static_cast<int32_t>(i);
  }
}

void ScaleRow(float scale, int64_t width, DType dtype, void* row) {
  if (dtype == DType::kF32) {
    for (float& x : std::span(static_cast<float*>(row), static_cast<size_t>(width))) x *= scale;
  } else {
    for (uint16_t& x : std::span(static_cast<uint16_t*>(row), static_cast<size_t>(width))) {
      x = F32ToBf16(Bf16ToF32(x) * scale);
    }
  }
}

// Finds each active expert's rows of x, and puts them together where they are scattered or to be
// scaled.
void GatherRows(const ExpertFfnArgs& args, ExpertFfnWorkspace& workspace, const ExecContext& ctx) {
  const int64_t stride = ActivationStride(args.hidden, args.x_dtype);
  const int64_t width = PaddedDepth(args.hidden, args.x_dtype);
  const auto* x = static_cast<const std::byte*>(args.x);
  auto* gathered = reinterpret_cast<std::byte*>(workspace.gathered.data());
  auto row_of = [&](int64_t entry) {
    return workspace.order[static_cast<size_t>(entry)] / args.top_k;
  };
  workspace.expert_x.clear();
  bool scattered = false;
  for (int32_t e : workspace.active) {
    const int64_t first = workspace.offsets[static_cast<size_t>(e)];
    const int64_t end = workspace.offsets[static_cast<size_t>(e) + 1];
    bool together = !args.scale_input;
    for (int64_t i = first + 1; i < end; ++i) together &= row_of(i) == row_of(i - 1) + 1;
    scattered |= !together;
    workspace.expert_x.push_back(
        {.data = together ? x + Bytes(row_of(first) * args.x_stride, args.x_dtype)
                          : gathered + Bytes(first * stride, args.x_dtype),
         .dtype = args.x_dtype,
         .rows = end - first,
         .stride = together ? args.x_stride : stride});
  }
  if (!scattered) return;
  const int64_t entries = workspace.offsets[static_cast<size_t>(args.expert_count)];
  const int64_t per_item = std::max<int64_t>(1, kCopyItemBytes / Bytes(width, args.x_dtype));
  ForEach(ctx, (entries + per_item - 1) / per_item, [&](int64_t item) {
    for (int64_t i = item * per_item; i < std::min(entries, (item + 1) * per_item); ++i) {
      std::byte* to = gathered + Bytes(i * stride, args.x_dtype);
      std::memcpy(to, x + Bytes(row_of(i) * args.x_stride, args.x_dtype),
                  static_cast<size_t>(Bytes(width, args.x_dtype)));
      if (args.scale_input) {
        ScaleRow(args.weights[workspace.order[static_cast<size_t>(i)]], args.hidden, args.x_dtype,
                 to);
      }
    }
  });
}

// Products of every active expert with its rows: use(expert, its first entry + row, ...) as in
// RunItem.
template <typename RowsOf, typename Use>
void MultiplyExperts(const ExpertFfnArgs& args, const ExpertFfnWorkspace& workspace,
                     const ExecContext& ctx, Matrix ExpertWeights::*matrix, RowsOf rows_of,
                     Use use) {
  const int64_t per_expert = internal::Items(args.experts[0].*matrix, ctx);
  ForEach(ctx, per_expert * static_cast<int64_t>(workspace.active.size()), [&](int64_t item) {
    const auto a = static_cast<size_t>(item / per_expert);
    const auto e = static_cast<size_t>(workspace.active[a]);
    const int64_t first = workspace.offsets[e];
    internal::RunItem(ctx, rows_of(a, first), args.experts[e].*matrix, item % per_expert,
                      [&](int64_t row, int64_t rows, int64_t panel, const float* product) {
                        use(args.experts[e], first + row, rows, panel, product);
                      });
  });
}

// As CombineRanks, to args.sums.
void SumRanks(const ExpertFfnArgs& args, const float* outer, int64_t stride, int64_t begin,
              int64_t end) {
  for (int64_t i = begin * args.top_k; i < end * args.top_k; ++i) {
    if (args.ids[i] == kNoExpert) continue;
    const double weight = args.scale_input ? 1 : double{args.weights[i]};
    const float* rank = outer + i * stride;
    double* sums = args.sums + i / args.top_k * args.hidden;
    // The product of two floats is exact.
    for (int64_t h = 0; h < args.hidden; ++h) sums[h] += ToSummand(weight * double{rank[h]});
  }
}

void RunOnCpu(const ExpertFfnArgs& args, ExpertFfnWorkspace& workspace, const ExecContext& ctx) {
  GroupByExpert(args, workspace);
  GatherRows(args, workspace, ctx);

  const auto activate = internal::ActivateGateFor(ctx.isa);
  const int64_t inner_stride = ActivationStride(args.intermediate, args.x_dtype);
  auto* inner = reinterpret_cast<std::byte*>(workspace.inner.data());
  MultiplyExperts(
      args, workspace, ctx, &ExpertWeights::gate_up,
      [&](size_t active, int64_t) { return workspace.expert_x[active]; },
      [&](const ExpertWeights& expert, int64_t entry, int64_t rows, int64_t panel,
          const float* product) {
        const int64_t column = panel * kGateOutputsPerPanel;
        const float* bias = expert.gate_up_bias;
        std::byte* to = inner + Bytes(entry * inner_stride + column, args.x_dtype);
        activate(args, product, bias == nullptr ? nullptr : bias + panel * kPanelRows, rows,
                 std::min(kGateOutputsPerPanel, args.intermediate - column), inner_stride, to);
        // The rest of the last kPanelDepth elements, where no panel of weights ends.
        const int64_t written = column + kGateOutputsPerPanel;
        if (written < args.intermediate || written % kPanelDepth == 0) return;
        for (int64_t r = 0; r < rows; ++r) {
          std::memset(to + Bytes(r * inner_stride + kGateOutputsPerPanel, args.x_dtype), 0,
                      static_cast<size_t>(Bytes(kPanelDepth / 2, args.x_dtype)));
        }
      });

  const int64_t outer_stride = ActivationStride(args.hidden, DType::kF32);
  auto* outer = reinterpret_cast<float*>(workspace.outer.data());
  MultiplyExperts(
      args, workspace, ctx, &ExpertWeights::down,
      [&](size_t active, int64_t first) {
        return Activations{.data = inner + Bytes(first * inner_stride, args.x_dtype),
                           .dtype = args.x_dtype,
                           .rows = workspace.expert_x[active].rows,
                           .stride = inner_stride};
      },
      [&](const ExpertWeights& expert, int64_t entry, int64_t rows, int64_t panel,
          const float* product) {
        const int64_t column = panel * kPanelRows;
        const int64_t columns = std::min(kPanelRows, args.hidden - column);
        const float* bias = expert.down_bias;
        for (int64_t r = 0; r < rows; ++r, product += kPanelRows) {
          float* to =
              outer + column + workspace.order[static_cast<size_t>(entry + r)] * outer_stride;
          if (bias == nullptr) {
            std::copy_n(product, columns, to);
          } else {
            for (int64_t c = 0; c < columns; ++c) to[c] = product[c] + bias[column + c];
          }
        }
      });

  const auto combine = args.sums == nullptr ? internal::CombineRanksFor(ctx.isa) : SumRanks;
  const int64_t per_item =
      std::max<int64_t>(1, kCopyItemBytes / Bytes(args.top_k * args.hidden, DType::kF32));
  ForEach(ctx, (args.rows + per_item - 1) / per_item, [&](int64_t item) {
    combine(args, outer, outer_stride, item * per_item, std::min(args.rows, (item + 1) * per_item));
  });
}

}  // namespace

ExpertFfnWorkspace::ExpertFfnWorkspace(int64_t max_rows, int64_t max_top_k, int64_t max_experts,
                                       int64_t hidden, int64_t intermediate, DType x_dtype,
                                       bool on_device)
    : max_assignments_(max_rows * max_top_k),
      max_experts_(max_experts),
      hidden_(hidden),
      intermediate_(intermediate),
      x_dtype_(x_dtype) {
  if (on_device) return;
  offsets.resize(static_cast<size_t>(max_experts + 1));
  order.resize(static_cast<size_t>(max_assignments_));
  auto lines = [&](int64_t width, DType dtype) {
    const int64_t row = Bytes(ActivationStride(width, dtype), dtype);
    return static_cast<size_t>((max_assignments_ * row + 63) / 64);
  };
  gathered.resize(lines(hidden, x_dtype));
  inner.resize(lines(intermediate, x_dtype));
  outer.resize(lines(hidden, DType::kF32));
  active.reserve(static_cast<size_t>(max_experts));
  expert_x.reserve(static_cast<size_t>(max_experts));
}

bool ExpertFfnWorkspace::Fits(const ExpertFfnArgs& args) const {
  return args.rows * args.top_k <= max_assignments_ && args.expert_count <= max_experts_ &&
         args.hidden <= hidden_ && args.intermediate <= intermediate_ &&
         SizeOf(args.x_dtype) <= SizeOf(x_dtype_);
}

absl::Status ExpertFfn(const ExpertFfnArgs& args, ExpertFfnWorkspace& workspace,
                       const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(Validate(args, workspace, ctx.backend));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  if (args.rows == 0) return absl::OkStatus();
  switch (ctx.backend) {
    case Backend::kReference:
      internal::ExpertFfnReference(args);
      break;
    case Backend::kCpu:
      RunOnCpu(args, workspace, ctx);
      break;
    case Backend::kCuda:
      return QueueOnDevice("ExpertFfn", ctx.device->expert_ffn, args, ctx);
  }
  return absl::OkStatus();
}

}  // namespace lynx::kernels
