#include "kernels/moe/plan.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/moe/plan_scratch.h"

namespace lynx::kernels {
namespace {

absl::Status Validate(const PlanArgs& args) {
  if (args.rows < 0 || args.rows > kMaxPlanRows || args.experts <= 0 ||
      args.experts > kMaxPlanExperts || args.top_k <= 0 || args.top_k > args.experts ||
      args.top_k > kMaxPlanTopK) {
    return absl::InvalidArgumentError(absl::StrCat("MakeDevicePlan: rows ", args.rows, ", experts ",
                                                   args.experts, ", top_k ", args.top_k));
  }
  if (args.groups <= 0 || args.experts % args.groups != 0 || args.groups_kept <= 0 ||
      (args.groups > 1 && args.top_k > args.groups_kept * (args.experts / args.groups))) {
    return absl::InvalidArgumentError(absl::StrCat("MakeDevicePlan: ", args.groups_kept, " of ",
                                                   args.groups, " groups of ", args.experts,
                                                   " experts, top_k ", args.top_k));
  }
  return absl::OkStatus();
}

}  // namespace

size_t PlanScratchBytes(int32_t rows, int32_t experts, int32_t top_k) {
  return internal::PlanScratch(nullptr, rows, experts, top_k).bytes;
}

absl::Status MakeDevicePlan(const PlanArgs& args, const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(Validate(args));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  if (ctx.backend != Backend::kCuda) {
    return absl::UnavailableError("MakeDevicePlan: a plan of moe::Planner serves CPUs");
  }
  if (args.rows == 0) return absl::OkStatus();
  return QueueOnDevice("MakeDevicePlan", ctx.device->plan, args, ctx);
}

}  // namespace lynx::kernels
