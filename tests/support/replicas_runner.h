#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/model/model_runner.h"

namespace lynx::testing {

// Attention replicas in one process, each a model by itself, with KV of its own: what several of
// one rank each are as long as no policy lets rows depend on each other.
class ReplicasRunner final : public model::ModelRunner {
 public:
  explicit ReplicasRunner(std::vector<std::unique_ptr<model::ModelRunner>> replicas)
      : replicas_(std::move(replicas)) {}

  absl::Status Step(std::span<const model::SequenceRows> batch,
                    model::StepObserver* observer) override {
    std::vector<std::vector<float>> logits(batch.size());
    for (size_t i = 0; i < replicas_.size(); ++i) {
      std::vector<model::SequenceRows> own;
      std::vector<size_t> places;
      for (size_t entry = 0; entry < batch.size(); ++entry) {
        if (static_cast<size_t>(batch[entry].replica) != i) continue;
        own.push_back(batch[entry]);
        own.back().replica = 0;
        places.push_back(entry);
      }
      if (own.empty()) continue;
      LYNX_RETURN_IF_ERROR(replicas_[i]->Step(own, nullptr));
      stats_ = replicas_[i]->stats();
      std::span<const float> rows = replicas_[i]->logits();
      for (size_t n = 0; n < own.size(); ++n) {
        const size_t size =
            static_cast<size_t>(own[n].logits_rows) * static_cast<size_t>(spec().vocab_size);
        logits[places[n]].assign(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(size));
        rows = rows.subspan(size);
      }
    }
    for (int32_t layer = 0; observer != nullptr && layer < spec().layers; ++layer) {
      if (!observer->OnLayerDone(layer)) return absl::CancelledError("abandoned");
    }
    logits_.clear();
    for (const auto& rows : logits) logits_.insert(logits_.end(), rows.begin(), rows.end());
    return absl::OkStatus();
  }
  std::span<const float> logits() const override { return logits_; }
  const model::StepStats& stats() const override { return stats_; }
  const model::ModelSpec& spec() const override { return replicas_[0]->spec(); }
  kv::KvArena& kv() override { return replicas_[0]->kv(); }
  const std::string& numeric_class() const override { return replicas_[0]->numeric_class(); }
  const std::string& compatibility_hash() const override {
    return replicas_[0]->compatibility_hash();
  }

  model::ModelRunner& replica(size_t index) { return *replicas_[index]; }

 private:
  const std::vector<std::unique_ptr<model::ModelRunner>> replicas_;
  std::vector<float> logits_;
  model::StepStats stats_;
};

}  // namespace lynx::testing
