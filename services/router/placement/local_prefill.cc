#include "services/router/placement/local_prefill.h"

#include <algorithm>
#include <cstdint>

#include "services/router/placement/predicted_time.h"

namespace lynx::router {

bool CheaperLocally(const DecodeCandidate& decode, const PrefillCandidate& prefill,
                    const PlacementRequest& request) {
  const StepTime& step_time = decode.step_time;
  if (!step_time.known() || !prefill.step_time.known()) return false;
  if (decode.remaps && decode.load > 0) return false;
  if (step_time.max_rows > 0 && decode.load >= step_time.max_rows) return false;
  const int64_t missing = std::max<int64_t>(request.prompt_tokens - decode.held_tokens, 1);
  const int64_t rows = std::min<int64_t>(missing, decode.prompt_rows);
  if (step_time.Step(decode.load + rows) > request.tpot_limit) return false;
  const absl::Duration delay = step_time.per_row * missing * std::max<int64_t>(decode.load, 1);
  const absl::Duration transfer =
      request.transfer_per_token * (request.prompt_tokens - decode.held_tokens);
  return FirstTokenTime(decode, request) + delay < FirstTokenTime(prefill, request) + transfer;
}

}  // namespace lynx::router
