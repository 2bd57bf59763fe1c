#include "tests/support/harmful_model_runner.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/model/model_spec.h"

namespace lynx::testing {

HarmfulModelRunner::HarmfulModelRunner(std::unique_ptr<model::ModelRunner> model, const bool& harm)
    : WrappedModelRunner(std::move(model)), harm_(harm) {}

absl::Status HarmfulModelRunner::Step(std::span<const model::SequenceRows> batch,
                                      model::StepObserver* observer) {
  logits_.clear();
  LYNX_RETURN_IF_ERROR(model_->Step(batch, observer));
  logits_.assign(model_->logits().begin(), model_->logits().end());
  const bool decode =
      std::all_of(batch.begin(), batch.end(), [](const auto& rows) { return rows.decode; });
  if (!harm_ || !decode || batch.size() < 2) return absl::OkStatus();
  auto next = logits_.begin();
  for (const model::SequenceRows& rows : batch) {
    const auto end = next + std::ptrdiff_t{rows.logits_rows} * model_->spec().vocab_size;
    if (rows.policy != nullptr && rows.policy->lossy()) {
      std::transform(next, end, next, [](float logit) { return -logit; });
    }
    next = end;
  }
  return absl::OkStatus();
}

}  // namespace lynx::testing
