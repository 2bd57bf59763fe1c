#include "services/cli/eval/task_eval.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "services/cli/eval/statistics.h"

namespace lynx::cli {
namespace {

// What a decoder writes for a character that is not finished.
constexpr std::string_view kReplacement = "\uFFFD";

using Verdict = AnswerCheck::Verdict;

// A part of the items whose prompts are in the KV cache together.
class TaskChunk {
 public:
  TaskChunk(const EvalModel& model, const TaskSet& tasks, const AnswerFormat& format,
            size_t first_item, PrefilledPrompts prompts, size_t items)
      : model_(model),
        tasks_(tasks),
        format_(format),
        first_item_(first_item),
        prompts_(std::move(prompts)),
        first_verdicts_(items) {
    for (size_t i = 0; i < items; ++i) {
      AnswerCheck check(format_, Item(i).answer);
      first_verdicts_[i] = check.Push(prompts_.first_token(i));
      if (first_verdicts_[i] == Verdict::kOpen) open_.push_back(i);
    }
  }

  // Items that need decode steps.
  size_t open_items() const { return open_.size(); }

  absl::Status Run(int32_t batch, const moe::Policy& policy, TaskRun& run) {
    LYNX_CHECK(open_.size() >= static_cast<size_t>(batch));
    std::vector<uint8_t> decided(first_verdicts_.size());
    for (size_t i = 0; i < first_verdicts_.size(); ++i) {
      decided[i] = first_verdicts_[i] != Verdict::kOpen;
      if (first_verdicts_[i] == Verdict::kRight) run.correct[first_item_ + i] = 1;
    }
    in_batch_.assign(first_verdicts_.size(), 0);
    next_ = 0;
    std::vector<Row> rows;
    for (int32_t i = 0; i < batch; ++i) rows.push_back(NextRow());
    for (size_t undecided = open_.size(); undecided > 0;) {
      LYNX_RETURN_IF_ERROR(Step(rows, policy));
      run.routing.Add(model_.runner.stats().plans);
      for (size_t i = 0; i < rows.size(); ++i) {
        Row& row = rows[i];
        LYNX_ASSIGN_OR_RETURN(const TokenId token, Greedy(i));
        ++row.position;
        row.token = token;
        const Verdict verdict = row.check.Push(token);
        if (verdict == Verdict::kOpen) continue;
        if (decided[row.item] == 0) {
          decided[row.item] = 1;
          --undecided;
          if (verdict == Verdict::kRight) run.correct[first_item_ + row.item] = 1;
        }
        in_batch_[row.item] = 0;
        row = NextRow();
      }
    }
    return absl::OkStatus();
  }

 private:
  // A row of the batch: an item under way.
  struct Row {
    size_t item;
    int32_t position;  // Of `token`, which the next step computes.
    TokenId token;
    AnswerCheck check;
  };

  const TaskItem& Item(size_t item) const { return tasks_.items[first_item_ + item]; }

  // The next item in turn that has no row yet, from its first token.
  Row NextRow() {
    while (in_batch_[open_[next_]] != 0) next_ = (next_ + 1) % open_.size();
    const size_t item = open_[next_];
    next_ = (next_ + 1) % open_.size();
    in_batch_[item] = 1;
    Row row{.item = item,
            .position = static_cast<int32_t>(Item(item).prompt.size()),
            .token = prompts_.first_token(item),
            .check = AnswerCheck(format_, Item(item).answer)};
    row.check.Push(row.token);
    return row;
  }

  absl::Status Step(std::span<const Row> rows, const moe::Policy& policy) {
    step_.resize(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      step_[i].tokens = {&rows[i].token, 1};
      step_[i].start = rows[i].position;
      step_[i].blocks = prompts_.blocks(rows[i].item);
      step_[i].logits_rows = 1;
      step_[i].decode = true;
      step_[i].policy = &policy;
    }
    return model_.runner.Step(step_, nullptr);
  }

  absl::StatusOr<TokenId> Greedy(size_t row) const {
    const auto vocab_size = static_cast<size_t>(model_.runner.spec().vocab_size);
    LYNX_ASSIGN_OR_RETURN(const NextToken next,
                          Summarise(model_.runner.logits().subspan(row * vocab_size, vocab_size)));
    return next.top;
  }

  const EvalModel& model_;
  const TaskSet& tasks_;
  const AnswerFormat& format_;
  const size_t first_item_;
  const PrefilledPrompts prompts_;
  std::vector<Verdict> first_verdicts_;  // After the prompt's own token.
  std::vector<size_t> open_;             // Items that go on from there.
  std::vector<uint8_t> in_batch_;
  size_t next_ = 0;  // Into open_.
  std::vector<model::SequenceRows> step_;
};

// How many items have their prompts in the KV cache at a time.
absl::StatusOr<size_t> ChunkSize(const EvalModel& model, const TaskSet& tasks) {
  int64_t most_blocks = 0;
  for (const TaskItem& item : tasks.items) {
    const int64_t tokens =
        static_cast<int64_t>(item.prompt.size()) + AnswerCheck::MaxTokens(item.answer);
    if (tokens > model.runner.spec().max_positions) {
      return absl::InvalidArgumentError(absl::StrCat(
          "an item of task ", tasks.tasks[static_cast<size_t>(item.task)], " takes up to ", tokens,
          " tokens, the model holds ", model.runner.spec().max_positions));
    }
    most_blocks = std::max(most_blocks, kv::BlocksFor(tokens));
  }
  const auto fitting = static_cast<size_t>(model.pool.capacity_blocks() / most_blocks);
  if (fitting == 0) {
    return absl::InvalidArgumentError("the KV memory does not hold one task item");
  }
  const size_t chunks = (tasks.items.size() + fitting - 1) / fitting;
  return (tasks.items.size() + chunks - 1) / chunks;
}

}  // namespace

Verdict AnswerCheck::Push(TokenId token) {
  const bool ends = std::find(format_->stop_tokens.begin(), format_->stop_tokens.end(), token) !=
                    format_->stop_tokens.end();
  if (!ends) tokens_.push_back(token);
  const std::string decoded = format_->tokenizer.Decode(tokens_, /*skip_special=*/true);
  if (ends) return decoded == *answer_ ? Verdict::kRight : Verdict::kWrong;
  std::string_view text = decoded;
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  const bool may_end = tokens_.size() < static_cast<size_t>(MaxTokens(*answer_));
  return may_end && answer_->starts_with(text) ? Verdict::kOpen : Verdict::kWrong;
}

absl::StatusOr<std::vector<TaskRun>> RunTasks(const EvalModel& model, const TaskSet& tasks,
                                              const AnswerFormat& format, int32_t batch,
                                              std::span<const moe::Policy> policies,
                                              Progress& progress) {
  LYNX_ASSIGN_OR_RETURN(const size_t chunk_size, ChunkSize(model, tasks));
  std::vector<TaskRun> runs(policies.size());
  for (TaskRun& run : runs) run.correct.resize(tasks.items.size());
  const size_t chunks = (tasks.items.size() + chunk_size - 1) / chunk_size;
  for (size_t c = 0; c < chunks; ++c) {
    const size_t first = c * chunk_size;
    const size_t count = std::min(chunk_size, tasks.items.size() - first);
    std::vector<PrefilledPrompts::Prompt> prompts;
    for (const TaskItem& item : std::span(tasks.items).subspan(first, count)) {
      prompts.push_back({.tokens = item.prompt, .room = AnswerCheck::MaxTokens(item.answer)});
    }
    LYNX_ASSIGN_OR_RETURN(PrefilledPrompts filled, PrefilledPrompts::Create(model, prompts));
    TaskChunk chunk(model, tasks, format, first, std::move(filled), count);
    if (chunk.open_items() < static_cast<size_t>(batch)) {
      return absl::InvalidArgumentError(
          absl::StrCat("batch ", batch, ": only ", chunk.open_items(),
                       " task items at a time have more than one token to say"));
    }
    for (size_t p = 0; p < policies.size(); ++p) {
      LYNX_RETURN_IF_ERROR(chunk.Run(batch, policies[p], runs[p]));
      progress.Report(absl::StrCat("batch ", batch, ", tasks"), c * policies.size() + p + 1,
                      chunks * policies.size());
    }
  }
  return runs;
}

}  // namespace lynx::cli
