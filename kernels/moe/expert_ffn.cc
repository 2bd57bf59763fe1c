#include "kernels/moe/expert_ffn.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/moe/expert_ffn_backends.h"

namespace lynx::kernels {
namespace {

// Weights of one item: about 3 us of one core at batch 1, a share of its L2 cache at any.
constexpr int64_t kWeightsPerItem = 65536;
constexpr int64_t kElementsPerItem = 16384;  // Combining: as much, with no weights to read.

absl::Status Validate(const ExpertFfnArgs& args, const ExpertFfnWorkspace& workspace) {
  if (args.rows < 0 || args.hidden <= 0 || args.intermediate <= 0 || args.expert_count <= 0 ||
      args.top_k <= 0 || args.x_stride < args.hidden || args.y_stride < args.hidden) {
    return absl::InvalidArgumentError(
        absl::StrCat("ExpertFfn: rows ", args.rows, ", hidden ", args.hidden, ", intermediate ",
                     args.intermediate, ", expert_count ", args.expert_count, ", top_k ",
                     args.top_k, ", x_stride ", args.x_stride, ", y_stride ", args.y_stride));
  }
  if (!workspace.Fits(args)) {
    return absl::InvalidArgumentError(absl::StrCat("ExpertFfn: the workspace is too small for ",
                                                   args.rows, " rows of top_k ", args.top_k,
                                                   " over ", args.expert_count, " experts"));
  }
  for (int64_t i = 0; i < args.rows * args.top_k; ++i) {
    if (args.ids[i] < 0 || args.ids[i] >= args.expert_count) {
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
  for (size_t i = 0; i < assignments; ++i) ++workspace.offsets[static_cast<size_t>(args.ids[i])];
  workspace.active.clear();
  int32_t total = 0;
  for (size_t e = 0; e < experts; ++e) {  // Counts become the ends of the groups ...
    if (workspace.offsets[e] > 0) workspace.active.push_back(static_cast<int32_t>(e));
    total += workspace.offsets[e];
    workspace.offsets[e] = total;
  }
  workspace.offsets[experts] = total;
  for (size_t i = assignments; i-- > 0;) {  // ... and, filled from the back, their beginnings.
    const auto e = static_cast<size_t>(args.ids[i]);
    workspace.order[static_cast<size_t>(--workspace.offsets[e])] = static_cast<int32_t>(i);
  }
}

}  // namespace

ExpertFfnWorkspace::ExpertFfnWorkspace(int64_t max_rows, int64_t max_top_k, int64_t max_experts,
                                       int64_t hidden, int64_t intermediate)
    : offsets(static_cast<size_t>(max_experts + 1)),
      order(static_cast<size_t>(max_rows * max_top_k)),
      inner(static_cast<size_t>(max_rows * max_top_k * intermediate)),
      outer(static_cast<size_t>(max_rows * max_top_k * hidden)),
      max_assignments_(max_rows * max_top_k),
      max_experts_(max_experts),
      hidden_(hidden),
      intermediate_(intermediate) {
  active.reserve(static_cast<size_t>(max_experts));
}

bool ExpertFfnWorkspace::Fits(const ExpertFfnArgs& args) const {
  return args.rows * args.top_k <= max_assignments_ && args.expert_count <= max_experts_ &&
         args.hidden <= hidden_ && args.intermediate <= intermediate_;
}

absl::Status ExpertFfn(const ExpertFfnArgs& args, ExpertFfnWorkspace& workspace,
                       const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(Validate(args, workspace));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  if (args.rows == 0) return absl::OkStatus();
  switch (ctx.backend) {
    case Backend::kReference:
      internal::ExpertFfnReference(args);
      break;
    case Backend::kCpu: {
      GroupByExpert(args, workspace);
      const auto inner = internal::ExpertFfnInnerFor(ctx.isa);
      const auto outer = internal::ExpertFfnOuterFor(ctx.isa);
      const auto combine = internal::ExpertFfnCombineFor(ctx.isa);
      auto per_expert = [&](auto body, int64_t columns, int64_t weights_per_column) {
        const int64_t chunk = std::max<int64_t>(16, kWeightsPerItem / weights_per_column / 16 * 16);
        const int64_t chunks = (columns + chunk - 1) / chunk;
        ForEach(ctx, chunks * static_cast<int64_t>(workspace.active.size()), [&](int64_t i) {
          const auto e = static_cast<size_t>(workspace.active[static_cast<size_t>(i / chunks)]);
          const int64_t begin = i % chunks * chunk;
          body(args,
               internal::ExpertEntries{.expert = static_cast<int64_t>(e),
                                       .first = workspace.offsets[e],
                                       .count = workspace.offsets[e + 1] - workspace.offsets[e],
                                       .order = workspace.order.data(),
                                       .inner = workspace.inner.data(),
                                       .outer = workspace.outer.data()},
               begin, std::min(columns, begin + chunk));
        });
      };
      per_expert(inner, args.intermediate, 2 * args.hidden);
      per_expert(outer, args.hidden, args.intermediate);
      const int64_t rows = std::max<int64_t>(1, kElementsPerItem / (args.top_k * args.hidden));
      ForEach(ctx, (args.rows + rows - 1) / rows, [&](int64_t i) {
        combine(args, workspace.outer.data(), i * rows, std::min(args.rows, (i + 1) * rows));
      });
      break;
    }
  }
  return absl::OkStatus();
}

}  // namespace lynx::kernels
