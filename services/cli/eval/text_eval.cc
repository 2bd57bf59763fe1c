#include "services/cli/eval/text_eval.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "services/cli/eval/statistics.h"

namespace lynx::cli {
namespace {

constexpr size_t kMaxReferenceBytes = size_t{8} << 30;

// Windows decoded together, and what an exact decode of them says.
class TextBatch {
 public:
  TextBatch(const EvalModel& model, const TextSet& texts, const TextEvalOptions& options)
      : model_(model),
        texts_(texts),
        options_(options),
        vocab_size_(static_cast<size_t>(model.runner.spec().vocab_size)),
        rows_(static_cast<size_t>(options.batch)) {
    const size_t tokens = rows_.size() * static_cast<size_t>(options.positions);
    reference_logits_.resize(tokens * vocab_size_);
    probabilities_.resize(tokens * vocab_size_);
    reference_.resize(tokens);
  }

  // Makes `windows` the batch.
  absl::Status Start(std::span<const size_t> windows) {
    windows_.assign(windows.begin(), windows.end());
    std::vector<PrefilledPrompts::Prompt> prompts;
    for (size_t window : windows_) {
      prompts.push_back(
          {.tokens = std::span(Tokens(window)).first(static_cast<size_t>(options_.context)),
           .room = options_.positions});
    }
    prompts_.reset();  // Its blocks serve the next.
    LYNX_ASSIGN_OR_RETURN(prompts_, PrefilledPrompts::Create(model_, prompts));
    for (int32_t step = 0; step < options_.positions; ++step) {
      LYNX_RETURN_IF_ERROR(Step(step, nullptr));
      const std::span<const float> logits = model_.runner.logits();
      std::copy(logits.begin(), logits.end(), ReferenceLogits(step, 0).data());
      for (size_t row = 0; row < windows_.size(); ++row) {
        LYNX_ASSIGN_OR_RETURN(Reference(step, row), Summarise(ReferenceLogits(step, row)));
        FillProbabilities(ReferenceLogits(step, row), Reference(step, row),
                          Probabilities(step, row));
      }
    }
    return absl::OkStatus();
  }

  // Decodes the batch under `policy`. Windows marked in `scored` have their score already.
  absl::Status Run(const moe::Policy& policy, std::span<const uint8_t> scored, TextRun& run) {
    for (int32_t step = 0; step < options_.positions; ++step) {
      LYNX_RETURN_IF_ERROR(Step(step, &policy));
      run.routing.Add(model_.runner.stats().plans);
      for (size_t row = 0; row < windows_.size(); ++row) {
        if (scored[windows_[row]] == 0) {
          LYNX_RETURN_IF_ERROR(Score(step, row, run.windows[windows_[row]]));
        }
      }
      // Writes exact KV over the policy's.
      if (options_.exact_kv) LYNX_RETURN_IF_ERROR(Step(step, nullptr));
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<TokenId>& Tokens(size_t window) const { return texts_.windows[window].tokens; }
  size_t TokenIndex(int32_t step, size_t row) const {
    return static_cast<size_t>(step) * windows_.size() + row;
  }
  NextToken& Reference(int32_t step, size_t row) { return reference_[TokenIndex(step, row)]; }
  std::span<float> ReferenceLogits(int32_t step, size_t row) {
    return std::span(reference_logits_).subspan(TokenIndex(step, row) * vocab_size_, vocab_size_);
  }
  std::span<float> Probabilities(int32_t step, size_t row) {
    return std::span(probabilities_).subspan(TokenIndex(step, row) * vocab_size_, vocab_size_);
  }

  // One decode step of every window; a null policy is exact.
  absl::Status Step(int32_t step, const moe::Policy* policy) {
    const int32_t position = options_.context + step;
    for (size_t row = 0; row < windows_.size(); ++row) {
      rows_[row].tokens =
          std::span(Tokens(windows_[row])).subspan(static_cast<size_t>(position), 1);
      rows_[row].start = position;
      rows_[row].blocks = prompts_->blocks(row);
      rows_[row].logits_rows = 1;
      rows_[row].decode = true;
      rows_[row].policy = policy;
    }
    return model_.runner.Step(rows_, nullptr);
  }

  // Adds this position.
  absl::Status Score(int32_t step, size_t row, WindowScore& score) {
    const std::span<const float> logits =
        model_.runner.logits().subspan(row * vocab_size_, vocab_size_);
    LYNX_ASSIGN_OR_RETURN(const NextToken next, Summarise(logits));
    const std::span<const float> exact_logits = ReferenceLogits(step, row);
    const NextToken& exact = Reference(step, row);
    const TokenId token = Tokens(windows_[row])[static_cast<size_t>(options_.context + step) + 1];
    score.nll_exact += NegativeLogLikelihood(exact_logits, exact, token);
    score.nll += NegativeLogLikelihood(logits, next, token);
    score.kl += Divergence(Probabilities(step, row), exact_logits, exact, logits, next);
    score.agreement += next.top == exact.top ? 1 : 0;
    return absl::OkStatus();
  }

  const EvalModel& model_;
  const TextSet& texts_;
  const TextEvalOptions& options_;
  const size_t vocab_size_;
  std::vector<size_t> windows_;
  std::optional<PrefilledPrompts> prompts_;
  std::vector<model::SequenceRows> rows_;
  std::vector<float> reference_logits_;  // [positions, batch, vocab_size]
  std::vector<float> probabilities_;     // [positions, batch, vocab_size]
  std::vector<NextToken> reference_;     // [positions, batch]
};

absl::Status Check(const EvalModel& model, const TextSet& texts, const TextEvalOptions& options) {
  if (texts.windows.size() < static_cast<size_t>(options.batch)) {
    return absl::InvalidArgumentError(absl::StrCat("batch ", options.batch, ": there are only ",
                                                   texts.windows.size(), " windows of text"));
  }
  const size_t reference_bytes = 2 * sizeof(float) * static_cast<size_t>(options.batch) *
                                 static_cast<size_t>(options.positions) *
                                 static_cast<size_t>(model.runner.spec().vocab_size);
  if (reference_bytes > kMaxReferenceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("batch ", options.batch, " with ",
                                                   options.positions, " positions: exact ",
                                                   "distributions take ", reference_bytes >> 20,
                                                   " MiB, more than ", kMaxReferenceBytes >> 20));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TextRun>> RunTexts(const EvalModel& model, const TextSet& texts,
                                              const TextEvalOptions& options,
                                              std::span<const moe::Policy> policies,
                                              Progress& progress) {
  LYNX_RETURN_IF_ERROR(Check(model, texts, options));
  const size_t count = texts.windows.size();
  const auto batch_size = static_cast<size_t>(options.batch);
  std::vector<TextRun> runs(policies.size());
  for (TextRun& run : runs) run.windows.resize(count);

  TextBatch batch(model, texts, options);
  std::vector<uint8_t> scored(count, 0);
  for (size_t start = 0; start < count; start += batch_size) {
    std::vector<size_t> windows(batch_size);
    for (size_t i = 0; i < batch_size; ++i) windows[i] = (start + i) % count;
    LYNX_RETURN_IF_ERROR(batch.Start(windows));
    for (size_t p = 0; p < policies.size(); ++p) {
      LYNX_RETURN_IF_ERROR(batch.Run(policies[p], scored, runs[p]));
      progress.Report(absl::StrCat("batch ", options.batch, ", text"),
                      start / batch_size * policies.size() + p + 1,
                      (count + batch_size - 1) / batch_size * policies.size());
    }
    for (size_t window : windows) scored[window] = 1;
  }
  for (TextRun& run : runs) {
    for (WindowScore& score : run.windows) {
      for (double* sum : {&score.nll_exact, &score.nll, &score.kl, &score.agreement}) {
        *sum /= options.positions;
      }
    }
  }
  return runs;
}

}  // namespace lynx::cli
