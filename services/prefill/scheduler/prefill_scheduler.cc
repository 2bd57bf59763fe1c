#include "services/prefill/scheduler/prefill_scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "services/prefill/scheduler/turn_order.h"

namespace lynx::prefill {

PrefillScheduler::PrefillScheduler(const Options& options) : options_(options) {
  LYNX_CHECK(options.step_rows > 0 && options.step_logits > 0 && options.max_jobs > 0 &&
             options.max_queued_tokens > 0);
}

absl::Status PrefillScheduler::Add(const Prompt& prompt) {
  if (prompt.tokens <= 0) return absl::InvalidArgumentError("a prompt needs at least one token");
  for (const Job& job : jobs_) {
    if (job.prompt.id == prompt.id) {
      return absl::AlreadyExistsError("the sequence is already queued");
    }
  }
  if (jobs() >= options_.max_jobs) {
    return absl::ResourceExhaustedError(absl::StrCat(jobs(), " prompts are queued, the limit"));
  }
  if (queued_tokens_ + prompt.tokens > options_.max_queued_tokens && !jobs_.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        queued_tokens_, " prompt tokens are queued, the limit is ", options_.max_queued_tokens));
  }
  jobs_.push_back({.prompt = prompt, .arrival = next_arrival_++});
  queued_tokens_ += prompt.tokens;
  return absl::OkStatus();
}

void PrefillScheduler::Remove(SequenceId id) {
  auto it =
      std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& job) { return job.prompt.id == id; });
  if (it == jobs_.end()) return;
  queued_tokens_ -= it->left();
  jobs_.erase(it);
}

bool PrefillScheduler::Start(Job& job, const StartFunction& start, Budget& budget) {
  if (job.started) return true;
  if (budget.denials == 0) return false;
  const auto older_in_need = [&](const Job& other) {
    return other.denied && !other.started && other.arrival < job.arrival &&
           other.prompt.priority <= job.prompt.priority;
  };
  for (const Job& other : jobs_) {
    if (older_in_need(other) && other.overtaken_by + job.prompt.tokens > other.prompt.tokens) {
      return false;
    }
  }
  const std::optional<int32_t> computed = start(job.prompt.id);
  job.denied = !computed.has_value();
  if (job.denied) {
    --budget.denials;
    return false;
  }
  LYNX_CHECK(*computed >= 0 && *computed < job.prompt.tokens);
  for (Job& other : jobs_) {
    if (older_in_need(other)) other.overtaken_by += job.prompt.tokens;
  }
  job.started = true;
  job.computed = *computed;
  queued_tokens_ -= *computed;
  return true;
}

void PrefillScheduler::Give(Job& job, int32_t most_rows, Budget& budget) {
  const int32_t rows = std::min({most_rows, budget.rows, job.left() - job.chunk_rows,
                                 job.prompt.all_logits ? budget.logits : budget.rows});
  job.chunk_rows += rows;
  budget.rows -= rows;
  const bool ends = rows > 0 && job.chunk_rows == job.left();
  budget.logits -= job.prompt.all_logits ? rows : (ends ? 1 : 0);
}

std::vector<PrefillScheduler::Chunk> PrefillScheduler::Next(
    absl::Time now, const StepTime& step_time,
    const std::function<std::optional<int32_t>(SequenceId)>& start) {
  if (jobs_.empty()) return {};
  const int32_t lowest = std::min_element(jobs_.begin(), jobs_.end(), [](auto& a, auto& b) {
                           return a.prompt.priority < b.prompt.priority;
                         })->prompt.priority;
  const auto has_share = [&](const Job& job) { return job.prompt.priority == lowest; };
  // Those of higher numbers, who stand still meanwhile, do not hold virtual time back.
  double least = std::numeric_limits<double>::infinity();
  for (const Job& job : jobs_) {
    if (has_share(job)) least = std::min(least, shares_.Place(job.prompt.tenant));
  }
  shares_.Advance(least);
  std::vector<Turn> turns;
  turns.reserve(jobs_.size());
  for (const Job& job : jobs_) {
    turns.push_back({.arrival = job.arrival,
                     .priority = job.prompt.priority,
                     .place = shares_.Place(job.prompt.tenant),
                     .rows_left = job.left(),
                     .deadline = job.prompt.deadline});
  }
  Budget budget = {.rows = options_.step_rows, .logits = options_.step_logits};
  Start(*std::find_if(jobs_.begin(), jobs_.end(), has_share), start, budget);
  const auto oldest = std::find_if(jobs_.begin(), jobs_.end(),
                                   [&](const Job& job) { return job.started && has_share(job); });
  if (oldest != jobs_.end()) {
    Give(*oldest, std::max(1, options_.step_rows / kShareOfOldest), budget);
  }
  for (const size_t i : TurnOrder(turns, step_time, now)) {
    if (budget.rows == 0 || budget.logits == 0) break;
    if (Start(jobs_[i], start, budget)) Give(jobs_[i], budget.rows, budget);
  }
  std::vector<Chunk> chunks;
  for (Job& job : jobs_) {
    if (job.chunk_rows == 0) continue;
    const int32_t rows = std::exchange(job.chunk_rows, 0);
    chunks.push_back({job.prompt.id, job.computed, rows, rows == job.left()});
    job.computed += rows;
    queued_tokens_ -= rows;
    shares_.Charge(job.prompt.tenant, rows);
  }
  std::erase_if(jobs_, [](const Job& job) { return job.left() == 0; });
  return chunks;
}

int32_t PrefillScheduler::waiting() const {
  return static_cast<int32_t>(
      std::count_if(jobs_.begin(), jobs_.end(), [](const Job& job) { return !job.started; }));
}

}  // namespace lynx::prefill
