#include "services/cli/loadtest/load_driver.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lynx::loadtest {
namespace {

constexpr size_t kMaxProblems = 50;
constexpr absl::Duration kCooling = absl::Milliseconds(100);

// Generous: pieces may hold less than a token.
size_t MaxChunks(int32_t output_tokens) { return 1024 + 4 * static_cast<size_t>(output_tokens); }

}  // namespace

LoadDriver::LoadDriver(const DriverOptions& options, Workload& workload, Transport& transport,
                       RequestId first_id, absl::Time start)
    : options_(options),
      workload_(workload),
      transport_(transport),
      start_(start),
      next_id_(first_id) {
  LYNX_CHECK(options.max_open > 0);
  FetchNext();
}

void LoadDriver::FetchNext() {
  next_.reset();
  if (options_.requests == 0 || sent_ < options_.warmup + options_.requests) {
    next_ = workload_.Next();
  }
  if (next_.has_value() && !options_.closed_loop && next_->due >= options_.duration) next_.reset();
  if (!next_.has_value()) {
    sending_over_ = true;
    return;
  }
  // Made ahead, so that a long prompt does not delay its own sending.
  next_body_ = workload_.Body();
}

void LoadDriver::Tick(absl::Time now) {
  Expire(now);
  while (!cooling_.empty() && cooling_.front() <= now) cooling_.pop_front();
  while (!sending_over_) {
    const bool over = now - start_ >= options_.duration;
    if (slots_taken() >= options_.max_open) {
      full_until_ = now;
      if (!over) return;
      if (!options_.closed_loop) CountUnsent();
      sending_over_ = true;
      return;
    }
    if (options_.closed_loop && over) {
      sending_over_ = true;
      return;
    }
    // One that is due just before the end is sent, however late this call comes.
    if (!options_.closed_loop && start_ + next_->due > now) return;
    SendNext(now);
  }
}

void LoadDriver::SendNext(absl::Time now) {
  const absl::Time due = options_.closed_loop ? now : start_ + next_->due;
  RequestRecord record;
  record.due_s = Since(due);
  record.sent_s = Since(now);
  record.wanted_input = next_->input_tokens;
  record.wanted_output = next_->output_tokens;
  record.warmup = next_->index < options_.warmup;
  record.held_back = due < full_until_;
  const RequestId id = next_id_++;
  const AnswerReader::Limits limits{.max_chunks = MaxChunks(next_->output_tokens)};
  open_.emplace(
      id,
      Open{.record = record, .reader = AnswerReader(limits), .deadline = now + options_.timeout});
  ++sent_;
  transport_.Send(id, std::move(next_body_));
  FetchNext();
}

void LoadDriver::CountUnsent() {
  while (next_.has_value() && next_->due < options_.duration) {
    if (next_->index >= options_.warmup) ++log_.unsent;
    const int64_t counted = sent_ + log_.unsent;
    if (options_.requests != 0 && counted >= options_.warmup + options_.requests) break;
    next_ = workload_.Next();
  }
}

void LoadDriver::Expire(absl::Time now) {
  while (!open_.empty() && open_.begin()->second.deadline <= now) {
    const auto& [id, oldest] = *open_.begin();
    const bool begun = oldest.record.status != 0;
    const RequestId expired = id;
    transport_.Cancel(expired);
    open_.begin()->second.reader.Abandon(
        Outcome::kTimeout,
        absl::StrCat("over ", absl::FormatDuration(options_.timeout),
                     begun ? ", the answer had begun" : " without an answer"),
        now);
    if (open() == options_.max_open) full_until_ = now;
    Finish(expired, now);
  }
}

absl::Time LoadDriver::NextWake() const {
  absl::Time wake = absl::InfiniteFuture();
  if (!open_.empty()) wake = open_.begin()->second.deadline;
  if (sending_over_) return wake;
  wake = std::min(wake, start_ + options_.duration);
  if (!cooling_.empty()) wake = std::min(wake, cooling_.front());
  if (slots_taken() < options_.max_open) {
    wake = std::min(wake, options_.closed_loop ? absl::InfinitePast() : start_ + next_->due);
  }
  return wake;
}

void LoadDriver::Stop(absl::Time now) {
  sending_over_ = true;
  while (!open_.empty()) {
    const RequestId id = open_.begin()->first;
    transport_.Cancel(id);
    open_.begin()->second.reader.Abandon(Outcome::kUnfinished, "the run was broken off", now);
    Finish(id, now);
  }
}

void LoadDriver::OnHead(RequestId id, const http::HttpResponse& head, absl::Time) {
  const auto found = open_.find(id);
  if (found == open_.end()) return;
  found->second.record.status = static_cast<int16_t>(head.status);
  found->second.reader.OnHead(head);
}

bool LoadDriver::OnBody(RequestId id, std::string_view piece, absl::Time now) {
  const auto found = open_.find(id);
  if (found == open_.end()) return false;
  if (found->second.reader.OnBody(piece, now)) return true;
  if (open() == options_.max_open) full_until_ = now;
  Finish(id, now);
  return false;
}

void LoadDriver::OnEnd(RequestId id, const absl::Status& status, absl::Time now) {
  const auto found = open_.find(id);
  if (found == open_.end()) return;
  found->second.reader.OnEnd(status, now);
  if (open() == options_.max_open) full_until_ = now;
  Finish(id, now);
}

void LoadDriver::Finish(RequestId id, absl::Time now) {
  const auto node = open_.extract(id);
  Open& open = node.mapped();
  const Answer answer = open.reader.Take();
  RequestRecord& record = open.record;
  record.outcome = answer.outcome;
  record.end_s = Since(*answer.end);
  record.retry_after_s = answer.retry_after.has_value()
                             ? static_cast<float>(absl::ToDoubleSeconds(*answer.retry_after))
                             : -1;
  record.prompt_tokens = static_cast<int32_t>(answer.prompt_tokens.value_or(-1));
  record.cached_tokens = static_cast<int32_t>(answer.cached_tokens.value_or(-1));

  const bool measured = record.ok() && !record.warmup;
  const TokenTiming timing = AccountTokens(answer, measured ? &log_.gaps : nullptr);
  record.output_tokens = static_cast<int32_t>(timing.tokens);
  record.tokens_counted = timing.from_usage;
  record.tokens_shared_out = timing.shared_out;
  if (timing.first.has_value()) record.first_s = Since(*timing.first);
  if (timing.last.has_value()) record.last_s = Since(*timing.last);
  output_tokens_ += timing.tokens;
  if (!record.ok()) {
    ++failed_;
    if (options_.closed_loop && !sending_over_) cooling_.push_back(now + kCooling);
    const auto key = std::make_pair(answer.outcome, answer.problem);
    if (log_.problems.contains(key) || log_.problems.size() < kMaxProblems) ++log_.problems[key];
  }
  log_.records.push_back(record);
}

}  // namespace lynx::loadtest
