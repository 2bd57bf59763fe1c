#include "services/cli/engine_flags.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lynx::cli {

absl::StatusOr<std::vector<int32_t>> ParseBatches(const std::vector<std::string>& texts) {
  std::vector<int32_t> batches;
  for (const std::string& text : texts) {
    int32_t batch = 0;
    if (!absl::SimpleAtoi(text, &batch) || batch < 1 || batch > 4096) {
      return absl::InvalidArgumentError(
          absl::StrCat("--batch: '", text, "', wanted integers in [1, 4096]"));
    }
    batches.push_back(batch);
  }
  if (batches.empty()) return absl::InvalidArgumentError("--batch: empty list");
  return batches;
}

DType DTypeOf(const std::string& choice) { return choice == "f32" ? DType::kF32 : DType::kBf16; }

}  // namespace lynx::cli
