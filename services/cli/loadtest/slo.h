#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/cli/loadtest/request_record.h"

namespace lynx::loadtest {

// What a request must keep to count as good. Unset limits do not ask for anything.
struct Slo {
  std::optional<absl::Duration> ttft;  // From when the request was due.
  std::optional<absl::Duration> tpot;
  std::optional<absl::Duration> e2e;  // From when the request was due.

  bool empty() const { return !ttft && !tpot && !e2e; }
};

// "ttft=2s,tpot=100ms,e2e=30s", any of them, each once.
//   InvalidArgument  says what is wanted, without naming the flag.
absl::StatusOr<Slo> ParseSlo(std::string_view text);

// As ParseSlo() reads it; empty for no limits.
std::string ToString(const Slo& slo);

// Whether a request is a success that kept each limit. Failed and unsent ones never do.
bool Meets(const RequestRecord& record, const Slo& slo);

}  // namespace lynx::loadtest
