#include "services/cli/engine_flags.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lynx::cli {

absl::StatusOr<std::vector<int32_t>> ParseCounts(const std::string& flag,
                                                 const std::vector<std::string>& texts,
                                                 int32_t most, int32_t least) {
  std::vector<int32_t> counts;
  for (const std::string& text : texts) {
    int32_t count = 0;
    if (!absl::SimpleAtoi(text, &count) || count < least || count > most) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, ": '", text, "', wanted integers in [", least, ", ", most, "]"));
    }
    counts.push_back(count);
  }
  if (counts.empty()) return absl::InvalidArgumentError(absl::StrCat(flag, ": empty list"));
  return counts;
}

absl::StatusOr<std::vector<int32_t>> ParseBatches(const std::vector<std::string>& texts) {
  return ParseCounts("--batch", texts, 4096);
}

}  // namespace lynx::cli
