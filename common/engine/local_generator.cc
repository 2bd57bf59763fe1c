#include "common/engine/local_generator.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace lynx::engine {
namespace {

// A sequence and where its answer goes.
struct Running {
  Sequence* sequence;
  size_t index;
};

// What a step has left of a replica.
struct Budget {
  int32_t rows;
  int32_t logits;
};

class Generation {
 public:
  Generation(Engine& engine, const GenerateOptions& options, GenerateCounts& counts)
      : engine_(engine), options_(options), counts_(counts) {}

  absl::StatusOr<std::vector<GenerateResult>> Run(std::span<const GenerateRequest> requests) {
    LYNX_RETURN_IF_ERROR(CreateSequences(requests));
    while (next_ < sequences_.size() || !running_.empty()) {
      while (next_ < sequences_.size() &&
             running_.size() < static_cast<size_t>(options_.max_sequences)) {
        Start(next_++);
      }
      LYNX_RETURN_IF_ERROR(PlanStep());
      ++counts_.steps;
      LYNX_RETURN_IF_ERROR(engine_.Step(items_));
      Collect();
    }
    return std::move(results_);
  }

 private:
  absl::Status CreateSequences(std::span<const GenerateRequest> requests) {
    const Sequence::Limits limits{.vocab_size = engine_.options().vocab_size,
                                  .max_context_tokens = options_.max_context_tokens};
    for (const GenerateRequest& request : requests) {
      auto sequence = Sequence::Create(request.prompt, request.params, limits);
      if (!sequence.ok()) {
        return absl::Status(sequence.status().code(),
                            absl::StrCat("request ", sequences_.size(), ": ",
                                         std::string(sequence.status().message())));
      }
      sequences_.push_back(*std::move(sequence));
    }
    results_.resize(sequences_.size());
    return absl::OkStatus();
  }

  // On the replica with the fewest.
  void Start(size_t index) {
    std::vector<int32_t> running(static_cast<size_t>(engine_.options().replicas));
    for (const Running& other : running_) ++running[static_cast<size_t>(other.sequence->replica())];
    Sequence& sequence = *sequences_[index];
    sequence.PlaceOn(static_cast<int32_t>(std::ranges::min_element(running) - running.begin()));
    running_.push_back({&sequence, index});
  }

  // Fills items_ from running_, oldest first, within the step's budgets; preempts from the young
  // end when the blocks of a replica run out. At least one item, or an error.
  absl::Status PlanStep() {
    items_.clear();
    item_running_.clear();
    const Budget whole = {engine_.options().max_step_rows, engine_.options().max_step_logits};
    std::vector<Budget> budgets(static_cast<size_t>(engine_.options().replicas), whole);
    for (size_t i = 0; i < running_.size(); ++i) {
      Sequence& sequence = *running_[i].sequence;
      Budget& budget = budgets[static_cast<size_t>(sequence.replica())];
      const int32_t chunk = Engine::LargestChunk(
          sequence, std::min(budget.rows, options_.max_chunk_tokens), budget.logits);
      if (chunk == 0) continue;
      kv::BlockPool& pool = engine_.pool(sequence.replica());
      const int64_t tokens = int64_t{sequence.computed_tokens()} + chunk;
      absl::Status status = sequence.EnsureBlocks(pool, tokens);
      while (absl::IsResourceExhausted(status) && PreemptYoungest(i)) {
        status = sequence.EnsureBlocks(pool, tokens);
      }
      if (absl::IsResourceExhausted(status) && budget.rows < whole.rows) {
        budget.rows = 0;  // Nor any younger one.
        continue;
      }
      LYNX_RETURN_IF_ERROR(status);
      items_.push_back({&sequence, chunk});
      item_running_.push_back(i);
      budget.rows -= chunk;
      budget.logits -= Engine::LogitsRows(items_.back());
    }
    LYNX_CHECK(!items_.empty());
    return absl::OkStatus();
  }

  // Only sequences younger than `keep`, so that the oldest of each replica always advances.
  bool PreemptYoungest(size_t keep) {
    for (size_t i = running_.size(); i-- > keep + 1;) {
      if (running_[i].sequence->blocks().empty()) continue;
      if (running_[i].sequence->replica() != running_[keep].sequence->replica()) continue;
      running_[i].sequence->Preempt();
      ++counts_.preemptions;
      return true;
    }
    return false;
  }

  void Collect() {
    const std::span<const ItemResult> outcome = engine_.results();
    for (size_t i = 0; i < outcome.size(); ++i) {
      Running& running = running_[item_running_[i]];
      GenerateResult& result = results_[running.index];
      result.prompt_logprobs.insert(result.prompt_logprobs.end(),
                                    outcome[i].prompt_logprobs.begin(),
                                    outcome[i].prompt_logprobs.end());
      result.status = outcome[i].status;
      if (outcome[i].has_token) result.output.push_back(outcome[i].token);
      result.finish_reason = running.sequence->finish_reason();
      if (!result.status.ok() || running.sequence->finished()) {
        sequences_[running.index].reset();
        running.sequence = nullptr;
      }
    }
    std::erase_if(running_, [](const Running& running) { return running.sequence == nullptr; });
  }

  Engine& engine_;
  const GenerateOptions options_;
  GenerateCounts& counts_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<GenerateResult> results_;
  size_t next_ = 0;               // First sequence not yet started.
  std::vector<Running> running_;  // Oldest first.
  std::vector<WorkItem> items_;
  std::vector<size_t> item_running_;  // Position in running_ of each item.
};

}  // namespace

absl::StatusOr<std::vector<GenerateResult>> Generate(Engine& engine,
                                                     std::span<const GenerateRequest> requests,
                                                     const GenerateOptions& options,
                                                     GenerateCounts* counts) {
  LYNX_CHECK(options.max_context_tokens > 1 && options.max_chunk_tokens > 0 &&
             options.max_sequences > 0);
  GenerateCounts unused;
  return Generation(engine, options, counts != nullptr ? *counts : unused).Run(requests);
}

}  // namespace lynx::engine
