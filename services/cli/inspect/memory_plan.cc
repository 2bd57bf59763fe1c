#include "services/cli/inspect/memory_plan.h"

#include <algorithm>
#include <functional>

#include "common/kv/kv_layout.h"
#include "common/model/memory_need.h"

namespace lynx::cli {

namespace {

// The largest number in [0, most] that fits, where every smaller one does, too; 0 always does.
int64_t Largest(int64_t most, const std::function<bool(int64_t)>& fits) {
  int64_t good = 0;
  int64_t bad = most + 1;
  while (good + 1 < bad) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace

MemoryPlan PlanMemory(const ModelInspection& inspection, const MemoryQuestion& question) {
  const model::ModelSpec& spec = *inspection.spec;
  const kv::KvLayout layout = model::KvLayoutOf(spec, question.kv_dtype);
  // Of a sequence that decodes.
  const auto blocks_of = [&](int64_t tokens) { return layout.groups.MostBlocks(tokens, 1); };
  const auto step_of = [&](int64_t batch, int64_t sequence_blocks) {
    const model::MemoryNeed need = model::NeedOf(spec, inspection.weight_bytes,
                                                 {.kv_dtype = question.kv_dtype,
                                                  .kv_blocks = batch * sequence_blocks,
                                                  .rows = batch,
                                                  .logits_rows = batch});
    return static_cast<double>(need.steps);
  };
  MemoryPlan plan;
  plan.weights = inspection.weight_bytes;
  plan.block = layout.BlockBytes();
  plan.sequence_blocks = blocks_of(question.context);
  const auto kv_of = [&](int64_t batch, int64_t blocks) {
    return static_cast<double>(batch * blocks) * static_cast<double>(plan.block);
  };
  plan.kv = kv_of(question.batch, plan.sequence_blocks);
  plan.step = step_of(question.batch, plan.sequence_blocks);
  plan.total = static_cast<double>(plan.weights) + plan.kv + plan.step;
  const auto memory = static_cast<double>(question.memory_bytes);
  plan.fits = plan.total <= memory;

  const double left = memory - static_cast<double>(plan.weights);
  const auto fit = [&](int64_t batch, int64_t blocks) {
    return kv_of(batch, blocks) + step_of(batch, blocks) <= left;
  };
  const int64_t context_blocks = Largest(kv::BlocksFor(spec.max_positions), [&](int64_t n) {
    return fit(question.batch, blocks_of(n * kv::kBlockTokens));
  });
  plan.most_context = std::min<int64_t>(context_blocks * kv::kBlockTokens, spec.max_positions);
  plan.most_batch =
      Largest(kMaxPlannedBatch, [&](int64_t batch) { return fit(batch, plan.sequence_blocks); });
  return plan;
}

}  // namespace lynx::cli
