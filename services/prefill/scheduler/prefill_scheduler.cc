#include "services/prefill/scheduler/prefill_scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lynx::prefill {

PrefillScheduler::PrefillScheduler(const Options& options) : options_(options) {
  LYNX_CHECK(options.step_rows > 0 && options.step_logits > 0 && options.max_jobs > 0 &&
             options.max_queued_tokens > 0);
}

absl::Status PrefillScheduler::Add(SequenceId id, int32_t prompt_tokens, bool all_logits) {
  if (prompt_tokens <= 0) return absl::InvalidArgumentError("a prompt needs at least one token");
  for (const Job& job : jobs_) {
    if (job.id == id) return absl::AlreadyExistsError("the sequence is already queued");
  }
  if (jobs() >= options_.max_jobs) {
    return absl::ResourceExhaustedError(absl::StrCat(jobs(), " prompts are queued, the limit"));
  }
  if (queued_tokens_ + prompt_tokens > options_.max_queued_tokens && !jobs_.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        queued_tokens_, " prompt tokens are queued, the limit is ", options_.max_queued_tokens));
  }
  jobs_.push_back({.id = id, .prompt_tokens = prompt_tokens, .all_logits = all_logits});
  queued_tokens_ += prompt_tokens;
  return absl::OkStatus();
}

void PrefillScheduler::Remove(SequenceId id) {
  auto it = std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& job) { return job.id == id; });
  if (it == jobs_.end()) return;
  queued_tokens_ -= it->prompt_tokens - it->computed;
  jobs_.erase(it);
}

std::vector<PrefillScheduler::Chunk> PrefillScheduler::Next(
    const std::function<std::optional<int32_t>(SequenceId)>& start) {
  std::vector<Chunk> chunks;
  int32_t budget = options_.step_rows;
  int32_t logits = options_.step_logits;
  for (Job& job : jobs_) {
    if (budget == 0 || logits == 0) break;
    if (!job.started) {
      const std::optional<int32_t> computed = start(job.id);
      if (!computed.has_value()) break;
      LYNX_CHECK(*computed >= 0 && *computed < job.prompt_tokens);
      job.started = true;
      job.computed = *computed;
      queued_tokens_ -= *computed;
    }
    const int32_t rows =
        std::min({budget, job.prompt_tokens - job.computed, job.all_logits ? logits : budget});
    chunks.push_back({job.id, job.computed, rows, job.computed + rows == job.prompt_tokens});
    job.computed += rows;
    queued_tokens_ -= rows;
    budget -= rows;
    logits -= job.all_logits ? rows : (chunks.back().last ? 1 : 0);
  }
  std::erase_if(jobs_, [](const Job& job) { return job.computed == job.prompt_tokens; });
  return chunks;
}

int32_t PrefillScheduler::waiting() const {
  return static_cast<int32_t>(
      std::count_if(jobs_.begin(), jobs_.end(), [](const Job& job) { return !job.started; }));
}

}  // namespace lynx::prefill
