#include "services/cli/bench/transfer/overlap.h"

#include <algorithm>
#include <random>
#include <span>
#include <utility>

#include "common/base/available_memory.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"
#include "services/cli/bench/memory_need.h"

namespace lynx::cli {
namespace {

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

absl::Time Now() { return SteadyClock::Instance().Now(); }

// Sends what a layer of a chunk has filled, as a prefill node does.
class LayerSender final : public model::StepObserver {
 public:
  LayerSender(PrefillSide* side, int32_t layers) : side_(side), layers_(layers) {}

  // The chunk's blocks that are final after it.
  void SetBlocks(int32_t first, int32_t past) {
    first_ = first;
    past_ = past;
  }
  absl::Time last_layer_done() const { return last_layer_done_; }

  bool OnLayerDone(int32_t layer) override {
    if (layer + 1 == layers_) last_layer_done_ = Now();
    if (side_ != nullptr) side_->Push(layer, first_, past_);
    return true;
  }

 private:
  PrefillSide* const side_;
  const int32_t layers_;
  int32_t first_ = 0;
  int32_t past_ = 0;
  absl::Time last_layer_done_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Overlap>> Overlap::Create(const Options& options,
                                                         const model::ModelSpec& spec,
                                                         RouterTraces traces) {
  model::RunnerOptions runner = options.runner;
  const kv::KvLayout layout = model::KvLayoutOf(spec, runner.kv_dtype);
  runner.kv_blocks = static_cast<int32_t>(kv::BlocksFor(options.tokens) * layout.groups.count());
  runner.max_step_rows = std::min(options.chunk, options.tokens);
  runner.max_step_logits = 1;
  const model::MemoryNeed need = model::NeedOf(spec, WeightBytes(spec),
                                               {.kv_dtype = runner.kv_dtype,
                                                .kv_blocks = runner.kv_blocks,
                                                .rows = runner.max_step_rows,
                                                .logits_rows = runner.max_step_logits,
                                                .threads = runner.threads});
  LYNX_RETURN_IF_ERROR(CheckFits(need, /*read_buffer=*/0, spec, AvailableMemory()));
  LYNX_ASSIGN_OR_RETURN(SyntheticEngine engine,
                        StartSyntheticEngine(spec, runner, std::move(traces), options.seed));
  std::unique_ptr<Overlap> overlap(new Overlap(options, std::move(engine), runner.kv_blocks));
  LYNX_ASSIGN_OR_RETURN(overlap->blocks_,
                        kv::BlockTable::Acquire(overlap->pool_, 0, options.tokens));
  return overlap;
}

Overlap::Overlap(const Options& options, SyntheticEngine engine, int32_t kv_blocks)
    : options_(options),
      engine_(std::move(engine)),
      pool_(kv_blocks, engine_.runner->kv().layout().groups) {
  std::mt19937 rng(static_cast<uint32_t>(options.seed));
  std::uniform_int_distribution<TokenId> token(0, engine_.runner->spec().vocab_size - 1);
  prompt_.resize(static_cast<size_t>(options.tokens));
  for (TokenId& id : prompt_) id = token(rng);
}

absl::StatusOr<absl::Time> Overlap::Compute(PrefillSide* side) {
  model::ModelRunner& runner = *engine_.runner;
  LayerSender sender(side, runner.spec().layers);
  for (int32_t start = 0; start < options_.tokens; start += options_.chunk) {
    const int32_t end = std::min(start + options_.chunk, options_.tokens);
    const bool last = end == options_.tokens;
    model::SequenceRows rows;
    rows.tokens =
        std::span(prompt_).subspan(static_cast<size_t>(start), static_cast<size_t>(end - start));
    rows.start = start;
    rows.blocks = blocks_.blocks();
    rows.logits_rows = last ? 1 : 0;
    sender.SetBlocks(start / kv::kBlockTokens, last ? blocks_.end_block() : end / kv::kBlockTokens);
    engine_.replay->set_step(start / options_.chunk);
    LYNX_RETURN_IF_ERROR(runner.Step({&rows, 1}, &sender));
  }
  return sender.last_layer_done();
}

absl::StatusOr<OverlapResult> Overlap::Measure(PrefillSide& side) {
  OverlapResult result;
  const absl::Time alone = Now();
  LYNX_RETURN_IF_ERROR(Compute(nullptr).status());
  result.alone_ms = Milliseconds(Now() - alone);

  LYNX_RETURN_IF_ERROR(side.Open(options_.tokens, blocks_));
  const absl::Time computed = Now();
  for (int32_t layer = 0; layer < engine_.runner->spec().layers; ++layer) {
    side.Push(layer, 0, blocks_.end_block());
  }
  LYNX_ASSIGN_OR_RETURN(const absl::Time transferred, side.Commit());
  result.transfer_ms = Milliseconds(transferred - computed);

  LYNX_RETURN_IF_ERROR(side.Open(options_.tokens, blocks_));
  const absl::Time began = Now();
  LYNX_ASSIGN_OR_RETURN(const absl::Time last_layer, Compute(&side));
  result.compute_ms = Milliseconds(Now() - began);
  LYNX_ASSIGN_OR_RETURN(const absl::Time verified, side.Commit());
  result.exposed_ms = Milliseconds(verified - last_layer);

  result.slowdown = result.compute_ms / result.alone_ms - 1;
  result.exposed_share = result.exposed_ms / result.transfer_ms;
  return result;
}

}  // namespace lynx::cli
