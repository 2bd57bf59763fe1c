#include "common/engine/engine.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace lynx::engine {

// Passes progress on, lets cancelled sequences leave, and abandons the step when nobody wants it
// any more.
class Engine::Observer final : public model::StepObserver {
 public:
  Observer(Engine& engine, StepListener* listener, bool may_leave)
      : engine_(engine), listener_(listener), may_leave_(may_leave) {}

  bool OnLayerDone(int32_t layer) override {
    if (listener_ != nullptr) listener_->OnLayerDone(layer, engine_.items_);
    return !AllCancelled();
  }
  std::span<const size_t> Leaving() override {
    leaving_.clear();
    if (!may_leave_) return leaving_;
    std::vector<WorkItem>& items = engine_.items_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].sequence->cancelled()) leaving_.push_back(i);
    }
    // All of them: the next layer's end is the step's.
    if (leaving_.size() == items.size()) leaving_.clear();
    for (size_t n = leaving_.size(); n-- > 0;) {
      const size_t i = leaving_[n];
      Sequence& sequence = *items[i].sequence;
      engine_.SetCancelled(i);
      const auto at = static_cast<ptrdiff_t>(i);
      items.erase(items.begin() + at);
      engine_.batch_.erase(engine_.batch_.begin() + at);
      engine_.places_.erase(engine_.places_.begin() + at);
      sequence.in_step_ = false;
      listener_->OnLeft(sequence);
    }
    return leaving_;
  }
  bool AllCancelled() const {
    return std::all_of(engine_.items_.begin(), engine_.items_.end(),
                       [](const WorkItem& item) { return item.sequence->cancelled(); });
  }

 private:
  Engine& engine_;
  StepListener* const listener_;
  const bool may_leave_;
  std::vector<size_t> leaving_;
};

Engine::Engine(std::unique_ptr<model::ModelRunner> runner, const EngineOptions& options)
    : runner_(std::move(runner)), options_(options), sampler_(options.vocab_size) {
  LYNX_CHECK(options.max_step_rows > 0 && options.max_step_logits > 0 && options.replicas > 0);
  // All replicas have as much KV memory.
  while (std::ssize(pools_) < options.replicas) {
    pools_.emplace_back(runner_->kv().blocks(), runner_->kv().layout().groups);
  }
}

Engine::~Engine() = default;

int32_t Engine::LogitsRows(const WorkItem& item) {
  const Sequence& sequence = *item.sequence;
  const int32_t end = sequence.computed_tokens_ + item.tokens;
  const auto known = static_cast<int32_t>(sequence.tokens_.size());
  int32_t first = end == known ? end - 1 : end;
  if (sequence.params_.prompt_logprobs) {
    // Row r tells of token r + 1, so the prompt's last row tells of the first output token.
    const int32_t scored_end = std::min(end, static_cast<int32_t>(sequence.prompt_tokens_) - 1);
    const int32_t unscored = std::max(sequence.computed_tokens_, sequence.scored_rows_);
    if (unscored < scored_end) first = std::min(first, unscored);
  }
  return end - first;
}

int32_t Engine::LargestChunk(Sequence& sequence, int32_t rows_left, int32_t logits_left) {
  WorkItem item{&sequence, std::min(sequence.pending_tokens(), rows_left)};
  if (item.tokens <= 0) return 0;
  // Dropping rows from the end drops logits rows one for one, until none is wanted.
  const int32_t excess = LogitsRows(item) - std::max(logits_left, 0);
  return excess <= 0 ? item.tokens : std::max(item.tokens - excess, 0);
}

absl::Status Engine::BuildBatch() {
  batch_.clear();
  loads_.assign(pools_.size(), Load());
  for (size_t i = 0; i < items_.size(); ++i) {
    const WorkItem& item = items_[i];
    Sequence& sequence = *item.sequence;
    const auto fail = [&](const auto&... reason) {
      return absl::InvalidArgumentError(absl::StrCat("step item ", i, ": ", reason...));
    };
    if (sequence.in_step_) return fail("the sequence is in the step already");
    sequence.in_step_ = true;
    if (sequence.finished()) return fail("the sequence is finished");
    if (sequence.replica() >= options_.replicas) {
      return fail("the sequence is of replica ", sequence.replica(), " of ", options_.replicas);
    }
    if (item.tokens <= 0 || item.tokens > sequence.pending_tokens()) {
      return fail("asks for ", item.tokens, " tokens, pending are ", sequence.pending_tokens());
    }
    const int32_t start = sequence.computed_tokens_;
    if (sequence.blocks_.capacity_tokens() < start + item.tokens) {
      return fail("blocks hold ", sequence.blocks_.capacity_tokens(), " tokens, needed are ",
                  start + item.tokens);
    }
    if (sequence.params_.prompt_logprobs && start > sequence.scored_rows_ &&
        sequence.scored_rows_ < static_cast<int32_t>(sequence.prompt_tokens_) - 1) {
      return fail("prompt log-probabilities need every prompt row computed here, ",
                  start - sequence.scored_rows_, " were not");
    }
    model::SequenceRows entry;
    entry.tokens =
        sequence.tokens().subspan(static_cast<size_t>(start), static_cast<size_t>(item.tokens));
    entry.start = start;
    entry.blocks = sequence.blocks_.blocks();
    entry.logits_rows = LogitsRows(item);
    // One generated token is a decode row. Several are a recomputation, which goes as prompt: it
    // has the same bits, and its plan is exact.
    entry.decode = item.tokens == 1 && start >= static_cast<int32_t>(sequence.prompt_tokens_);
    if (entry.decode) entry.policy = item.policy;
    entry.replica = sequence.replica();
    Load& load = loads_[static_cast<size_t>(entry.replica)];
    load.rows += item.tokens;
    load.logits_rows += entry.logits_rows;
    batch_.push_back(entry);
  }
  if (batch_.empty()) return absl::InvalidArgumentError("step without items");
  for (const auto& [rows, logits_rows] : loads_) {
    if (rows <= options_.max_step_rows && logits_rows <= options_.max_step_logits) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("step of ", rows, " rows and ", logits_rows, " logits rows of a replica, ",
                     "bounds are ", options_.max_step_rows, " and ", options_.max_step_logits));
  }
  return absl::OkStatus();
}

absl::Status Engine::Step(std::span<const WorkItem> items, StepListener* listener, Shadow* shadow) {
  completed_items_ = 0;
  items_.assign(items.begin(), items.end());
  places_.resize(items.size());
  std::iota(places_.begin(), places_.end(), size_t{0});
  if (results_.size() < items.size()) results_.resize(items.size());
  // What left could not be compared with the shadow's.
  Observer observer(*this, listener, listener != nullptr && shadow == nullptr);
  absl::Status status = BuildBatch();
  const bool ran = status.ok();
  if (ran && shadow != nullptr) {
    // The listener would take the KV for final.
    Observer silent(*this, nullptr, /*may_leave=*/false);
    shadow->Run(*runner_, batch_, &silent);
  }
  if (ran) status = runner_->Step(batch_, &observer);
  for (const WorkItem& item : items_) item.sequence->in_step_ = false;
  if (!ran) return status;

  ++stats_.steps;
  if (absl::IsCancelled(status) && observer.AllCancelled()) {
    ++stats_.abandoned_steps;
    for (size_t i = 0; i < items_.size(); ++i) SetCancelled(i);
    completed_items_ = items.size();
    return absl::OkStatus();
  }
  LYNX_RETURN_IF_ERROR(status);

  const std::span<const float> logits = runner_->logits();
  const auto vocab_size = static_cast<size_t>(options_.vocab_size);
  size_t offset = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    const size_t size = static_cast<size_t>(batch_[i].logits_rows) * vocab_size;
    LYNX_CHECK_MSG(offset + size <= logits.size(), "the runner returned too few logits rows");
    Finish(i, logits.subspan(offset, size));
    offset += size;
  }
  completed_items_ = items.size();
  if (shadow != nullptr) shadow->Finish(*runner_, batch_);
  return absl::OkStatus();
}

void Engine::SetCancelled(size_t index) {
  ItemResult& result = results_[places_[index]];
  result.status = absl::CancelledError("cancelled during a step");
  result.has_token = false;
  result.prompt_logprobs.clear();
}

// `logits` are the rows asked for, the last of them that of the item's last token.
void Engine::Finish(size_t index, std::span<const float> logits) {
  const WorkItem& item = items_[index];
  Sequence& sequence = *item.sequence;
  ItemResult& result = results_[places_[index]];
  result.status = absl::OkStatus();
  result.has_token = false;
  // Keeps the entries' own buffers; the excess is dropped below.
  size_t scored = 0;

  stats_.rows += item.tokens;
  sequence.computed_tokens_ += item.tokens;
  const int32_t end = sequence.computed_tokens_;
  const int32_t first_row = end - batch_[index].logits_rows;
  const auto vocab_size = static_cast<size_t>(options_.vocab_size);
  const auto row = [&](int32_t position) {
    return logits.subspan(static_cast<size_t>(position - first_row) * vocab_size, vocab_size);
  };

  if (sequence.cancelled()) {
    result.status = absl::CancelledError("cancelled during a step");
  } else if (sequence.params_.prompt_logprobs) {
    const int32_t scored_end = std::min(end, static_cast<int32_t>(sequence.prompt_tokens_) - 1);
    for (int32_t r = first_row; r < scored_end && result.status.ok(); ++r) {
      if (result.prompt_logprobs.size() == scored) result.prompt_logprobs.emplace_back();
      result.status = sampler_.Score(row(r), sequence.tokens_[static_cast<size_t>(r) + 1],
                                     std::max(sequence.params_.top_logprobs, 0),
                                     result.prompt_logprobs[scored]);
      ++scored;
    }
    sequence.scored_rows_ = std::max(sequence.scored_rows_, scored_end);
  }
  result.prompt_logprobs.resize(scored);

  if (result.status.ok() && sequence.pending_tokens() == 0) {
    result.status =
        sampler_.Sample(row(end - 1), sequence.params_, sequence.sampler_state_, result.token);
    if (result.status.ok()) {
      result.has_token = true;
      sequence.Append(result.token.id);
      ++stats_.sampled_tokens;
    }
  }
  if (absl::IsInternal(result.status)) {
    ++stats_.broken_logits;
    result.status = absl::InternalError(
        absl::StrCat("position ", end - 1, ": ", std::string(result.status.message())));
  }
}

}  // namespace lynx::engine
