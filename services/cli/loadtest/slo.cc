#include "services/cli/loadtest/slo.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lynx::loadtest {

absl::StatusOr<Slo> ParseSlo(std::string_view text) {
  Slo slo;
  for (absl::string_view part : absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    std::optional<absl::Duration>* const limit = pair.first == "ttft"   ? &slo.ttft
                                                 : pair.first == "tpot" ? &slo.tpot
                                                 : pair.first == "e2e"  ? &slo.e2e
                                                                        : nullptr;
    absl::Duration value;
    if (limit == nullptr || limit->has_value() || !absl::ParseDuration(pair.second, &value) ||
        value <= absl::ZeroDuration() || value == absl::InfiniteDuration()) {
      return absl::InvalidArgumentError(
          absl::StrCat("limits like ttft=2s,tpot=100ms,e2e=30s, each once and over 0; '",
                       std::string(part), "' is none"));
    }
    *limit = value;
  }
  return slo;
}

std::string ToString(const Slo& slo) {
  std::string text;
  const auto add = [&](const char* name, const std::optional<absl::Duration>& limit) {
    if (!limit.has_value()) return;
    absl::StrAppend(&text, text.empty() ? "" : ",", name, "=", absl::FormatDuration(*limit));
  };
  add("ttft", slo.ttft);
  add("tpot", slo.tpot);
  add("e2e", slo.e2e);
  return text;
}

bool Meets(const RequestRecord& record, const Slo& slo) {
  if (!record.ok()) return false;
  const auto keeps = [](double value_s, const std::optional<absl::Duration>& limit) {
    return !limit.has_value() || value_s <= absl::ToDoubleSeconds(*limit);
  };
  if (slo.ttft.has_value() && !(record.has_tokens() && keeps(record.ttft_from_due_s(), slo.ttft))) {
    return false;
  }
  return (!record.has_tpot() || keeps(record.tpot_s(), slo.tpot)) &&
         keeps(record.e2e_from_due_s(), slo.e2e);
}

}  // namespace lynx::loadtest
