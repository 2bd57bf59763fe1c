#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/moe/policy.h"
#include "common/text/tokenizer.h"
#include "services/cli/eval/eval_data.h"
#include "services/cli/eval/prefilled_prompts.h"
#include "services/cli/eval/progress.h"
#include "services/cli/eval/routing_tally.h"

namespace lynx::cli {

// How the model's text ends and reads.
struct AnswerFormat {
  const text::Tokenizer& tokenizer;
  std::span<const TokenId> stop_tokens;  // Any of them ends an answer.
};

// Follows one greedy answer until it is known to be right or wrong. What it is made of outlives it.
class AnswerCheck {
 public:
  enum class Verdict : uint8_t { kOpen, kRight, kWrong };

  AnswerCheck(const AnswerFormat& format, const std::string& answer)
      : format_(&format), answer_(&answer) {}

  // The next token of the model's answer; once the verdict is in, nothing more may follow. Right:
  // the whole answer, then a stop token. Comes to a verdict within MaxTokens().
  Verdict Push(TokenId token);

  static int32_t MaxTokens(const std::string& answer) {
    return static_cast<int32_t>(answer.size()) + 1;
  }

 private:
  const AnswerFormat* format_;
  const std::string* answer_;
  std::vector<TokenId> tokens_;
};

struct TaskRun {
  RoutingTally routing;
  std::vector<uint8_t> correct;  // As TaskSet::items.
};

// Asks every item and lets the model answer greedily. As in a cluster the prompt is computed
// exactly and gives the first token; the policy acts on the rest. An item ends with its first wrong
// character or with its end; another takes its row at once, so that every step has exactly `batch`
// rows. When the last items end, earlier ones keep them company, whose outcome counts once.
//
//   InvalidArgument    fewer than `batch` items with more than one token to say, or a prompt that
//                      the model or the KV pool cannot hold.
absl::StatusOr<std::vector<TaskRun>> RunTasks(const EvalModel& model, const TaskSet& tasks,
                                              const AnswerFormat& format, int32_t batch,
                                              std::span<const moe::Policy> policies,
                                              Progress& progress);

}  // namespace lynx::cli
