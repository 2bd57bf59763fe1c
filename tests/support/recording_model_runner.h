#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "tests/support/wrapped_model_runner.h"

namespace lynx::testing {

// A row that a model computed with logits.
struct RecordedRow {
  TokenId token = 0;
  int32_t position = 0;
  bool decode = false;
  std::vector<float> logits;
};

// A model that also keeps the logits of its rows, in order.
class RecordingModelRunner final : public WrappedModelRunner {
 public:
  // `rows` outlives this.
  RecordingModelRunner(std::unique_ptr<model::ModelRunner> model, std::vector<RecordedRow>& rows)
      : WrappedModelRunner(std::move(model)), rows_(rows) {}

  absl::Status Step(std::span<const model::SequenceRows> batch,
                    model::StepObserver* observer) override {
    LYNX_RETURN_IF_ERROR(model_->Step(batch, observer));
    const auto vocab = static_cast<size_t>(model_->spec().vocab_size);
    auto next = model_->logits().begin();
    for (const model::SequenceRows& rows : batch) {
      const auto count = static_cast<int32_t>(rows.tokens.size());
      for (int32_t i = count - rows.logits_rows; i < count; ++i) {
        const auto end = next + static_cast<std::ptrdiff_t>(vocab);
        rows_.push_back({rows.tokens[static_cast<size_t>(i)], rows.start + i, rows.decode,
                         std::vector<float>(next, end)});
        next = end;
      }
    }
    return absl::OkStatus();
  }

 private:
  std::vector<RecordedRow>& rows_;
};

}  // namespace lynx::testing
