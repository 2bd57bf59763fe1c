#include "services/cli/eval/prefilled_prompts.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "services/cli/eval/statistics.h"

namespace lynx::cli {

absl::StatusOr<PrefilledPrompts> PrefilledPrompts::Create(const EvalModel& model,
                                                          std::span<const Prompt> prompts) {
  PrefilledPrompts filled;
  const int32_t groups = model.runner.kv().layout().groups.count();
  for (const Prompt& prompt : prompts) {
    const auto tokens = static_cast<int64_t>(prompt.tokens.size()) + prompt.room;
    LYNX_ASSIGN_OR_RETURN(kv::BlockLease lease, model.pool.Acquire(kv::BlocksFor(tokens) * groups));
    filled.leases_.push_back(std::move(lease));
  }
  filled.first_tokens_.resize(prompts.size());
  LYNX_RETURN_IF_ERROR(filled.Compute(model, prompts));
  return filled;
}

// As many prompts in a step as fit; a long one in chunks.
absl::Status PrefilledPrompts::Compute(const EvalModel& model, std::span<const Prompt> prompts) {
  std::vector<model::SequenceRows> step;
  std::vector<size_t> ending;  // Prompts whose last token is in the step.
  const auto vocab_size = static_cast<size_t>(model.runner.spec().vocab_size);
  size_t next = 0;
  int32_t done = 0;  // Tokens of prompts[next] that earlier steps computed.
  while (next < prompts.size()) {
    step.clear();
    ending.clear();
    int32_t rows_left = model.max_step_rows;
    while (next < prompts.size() && rows_left > 0 &&
           ending.size() < static_cast<size_t>(model.max_step_logits)) {
      const auto size = static_cast<int32_t>(prompts[next].tokens.size());
      const int32_t count = std::min(size - done, rows_left);
      const bool ends = done + count == size;
      if (count > 0) {
        model::SequenceRows rows;
        rows.tokens =
            prompts[next].tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(count));
        rows.start = done;
        rows.blocks = blocks(next);
        rows.logits_rows = ends ? 1 : 0;
        step.push_back(rows);
        if (ends) ending.push_back(next);
      }
      rows_left -= count;
      done = ends ? 0 : done + count;
      if (ends) ++next;
    }
    if (step.empty()) continue;
    LYNX_RETURN_IF_ERROR(model.runner.Step(step, nullptr));
    for (size_t i = 0; i < ending.size(); ++i) {
      LYNX_ASSIGN_OR_RETURN(const NextToken token,
                            Summarise(model.runner.logits().subspan(i * vocab_size, vocab_size)));
      first_tokens_[ending[i]] = token.top;
    }
  }
  return absl::OkStatus();
}

}  // namespace lynx::cli
