#include "kernels/core/exec_context.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace lynx::kernels {

std::string_view Name(Backend backend) {
  switch (backend) {
    case Backend::kReference:
      return "reference";
    case Backend::kCpu:
      return "cpu";
    case Backend::kCuda:
      return "cuda";
  }
  return "?";
}

std::optional<Isa> IsaNamed(std::string_view name) {
  for (Isa isa : kAllIsas) {
    if (Name(isa) == name) return isa;
  }
  return std::nullopt;
}

std::vector<std::string> IsaChoices() {
  std::vector<std::string> choices = {"auto"};
  for (Isa isa : kAllIsas) choices.emplace_back(Name(isa));
  return choices;
}

absl::Status CheckUsable(const ExecContext& ctx) {
  if (ctx.backend == Backend::kCpu && ctx.isa > BestIsa()) {
    return absl::UnavailableError(
        absl::StrCat("this machine has no ", std::string(Name(ctx.isa)), " instructions"));
  }
  if (ctx.backend == Backend::kCuda && ctx.device == nullptr) {
    return absl::UnavailableError("no GPU was opened");
  }
  return absl::OkStatus();
}

absl::Status DeviceStatus(std::string_view operation, int cuda_error) {
  const std::string name(operation);
  switch (cuda_error) {
    case 0:
      return absl::OkStatus();
    case kNoKernel:
      return absl::UnimplementedError(absl::StrCat(name, ": no kernel for GPUs"));
    case kScratchTooSmall:
      return absl::ResourceExhaustedError(absl::StrCat(name, ": too little scratch memory"));
    default:
      return absl::InternalError(absl::StrCat(name, ": cudaError ", cuda_error));
  }
}

}  // namespace lynx::kernels
