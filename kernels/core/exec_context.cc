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
  }
  return "?";
}

std::string_view Name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

Isa BestIsa() {
#if defined(__x86_64__)
  static const Isa best = [] {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                      __builtin_cpu_supports("f16c");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    return !avx2 ? Isa::kPortable : avx512 ? Isa::kAvx512 : Isa::kAvx2;
  }();
  return best;
#else
  return Isa::kPortable;
#endif
}

absl::Status CheckUsable(const ExecContext& ctx) {
  if (ctx.backend == Backend::kCpu && ctx.isa > BestIsa()) {
    return absl::UnavailableError(
        absl::StrCat("this machine has no ", std::string(Name(ctx.isa)), " instructions"));
  }
  return absl::OkStatus();
}

}  // namespace lynx::kernels
