#include "common/model/device_model_runner.h"

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/activation_buffer.h"
#include "common/model/attention_block.h"
#include "common/model/compatibility.h"
#include "common/model/device_feed_forward_block.h"
#include "common/model/device_kv.h"
#include "common/model/device_policy.h"
#include "common/model/device_weights.h"
#include "common/model/latent_attention_block.h"
#include "common/model/linear.h"
#include "common/model/step_check.h"
#include "kernels/core/scratch_layout.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/embed.h"
#include "kernels/gemm/gemm.h"

namespace lynx::model {
namespace {

// Raised with every change that may change a bit of any result.
constexpr int kNumericsRevision = 1;

// Attention takes as many rows at a time as fit: enough to fill a GPU.
constexpr size_t kLeastScratch = size_t{64} << 20;

// Of a device's memory: for tables of blocks, padding, and what CUDA takes for itself.
constexpr int64_t kReservedPart = 32;

size_t ScratchBytes(const ModelSpec& spec, const RunnerOptions& options) {
  return std::max(kLeastScratch, DeviceFeedForwardBlock::ScratchBytes(spec, options.max_step_rows,
                                                                      options.compute_dtype));
}

// What a step takes from the host, in one piece of pinned memory and, with the same offsets, of the
// device. Tables of blocks follow.
struct StepInputs {
  struct Group {
    kernels::AttentionRow* attention = nullptr;  // [max_rows]; blocks are on the device.
    kernels::KvSlot* slots = nullptr;            // [max_rows]
  };
  StepInputs(std::byte* base, size_t max_rows, int32_t group_count)
      : groups(static_cast<size_t>(group_count)) {
    kernels::ScratchLayout layout(base);
    layout.Take(parameters, 1);
    layout.Take(tokens, max_rows);
    layout.Take(positions, max_rows);
    layout.Take(valid, max_rows);
    layout.Take(policies, max_rows);
    layout.Take(wanted, max_rows);
    for (Group& group : groups) {
      layout.Take(group.attention, max_rows);
      layout.Take(group.slots, max_rows);
    }
    tables = base == nullptr ? nullptr : reinterpret_cast<int32_t*>(base + layout.bytes());
    bytes = layout.bytes();
  }

  kernels::PlanParameters* parameters = nullptr;
  int32_t* tokens = nullptr;
  int32_t* positions = nullptr;
  uint8_t* valid = nullptr;
  int8_t* policies = nullptr;
  int32_t* wanted = nullptr;  // Rows whose logits are.
  std::vector<Group> groups;
  int32_t* tables = nullptr;
  size_t bytes = 0;  // Without tables.
};

moe::PlanStats StatsOf(const kernels::PlanSummary& summary) {
  static_assert(static_cast<int>(kernels::PlanBypass::kBadLogits) ==
                static_cast<int>(moe::Bypass::kBadLogits));
  return {.experts_exact = summary.experts_exact,
          .experts = summary.experts,
          .rows = summary.rows,
          .assignments = summary.assignments,
          .remapped = summary.remapped,
          .bad_rows = summary.bad_rows,
          .bypass = static_cast<moe::Bypass>(summary.bypass),
          .kept_mass_mean = summary.kept_mass_mean,
          .kept_mass_min = summary.kept_mass_min};
}

class DeviceModelRunner final : public ModelRunner {
 public:
  DeviceModelRunner(const RunnerOptions& options, ModelSpec spec, ModelWeights weights,
                    kernels::DeviceBuffer weight_memory, std::unique_ptr<kv::KvArena> kv,
                    std::string_view identity)
      : device_(*options.device),
        spec_(std::move(spec)),
        weight_memory_(std::move(weight_memory)),
        weights_(std::move(weights)),
        kv_(std::move(kv)),
        max_rows_(options.max_step_rows),
        max_logits_(options.max_step_logits),
        max_positions_(std::min<int64_t>(spec_.max_positions,
                                         kv_->layout().groups.MostTokens(options.kv_blocks))),
        remap_mixed_steps_(options.remap_mixed_steps),
        feed_forward_(spec_, weights_, max_rows_, options.compute_dtype, device_),
        scratch_bytes_(ScratchBytes(spec_, options)),
        scratch_(&device_, scratch_bytes_),
        hidden_(&device_, Size(max_rows_, spec_.hidden_size)),
        final_(&device_, Size(max_logits_, spec_.hidden_size)),
        normed_(max_logits_, spec_.hidden_size, options.compute_dtype, &device_),
        device_logits_(&device_, Size(max_logits_, spec_.vocab_size)) {
    if (spec_.has_latents()) {
      latent_attention_.emplace(spec_, max_rows_, max_positions_, options.compute_dtype,
                                /*threads=*/0, &device_);
    } else {
      attention_.emplace(spec_, max_rows_, max_positions_, options.compute_dtype, /*threads=*/0,
                         &device_);
    }
    known_policies_.reserve(kernels::kMaxPlanPolicies);
    stats_.plans.reserve(static_cast<size_t>(spec_.layers));
    stats_.plan_seconds.reserve(static_cast<size_t>(spec_.layers));
    const kernels::DeviceInfo& info = device_.info();
    numeric_class_ =
        absl::StrCat("cuda-sm", info.major, info.minor, "/numerics-", kNumericsRevision,
                     "/compute-", std::string(Name(options.compute_dtype)), "/kv-",
                     std::string(Name(options.kv_dtype)), "/tp1/dp1/ep1");
    compatibility_hash_ =
        CompatibilityHash(spec_, identity, options.compute_dtype, options.kv_dtype);
  }

  // The rest of what may fail.
  absl::Status Start() {
    LYNX_ASSIGN_OR_RETURN(stream_, device_.MakeStream());
    for (int32_t layer = 0; layer < spec_.layers; ++layer) {
      LYNX_ASSIGN_OR_RETURN(std::unique_ptr<kernels::DeviceEvent> event, device_.MakeEvent());
      layer_done_.push_back(std::move(event));
    }
    LYNX_ASSIGN_OR_RETURN(
        logits_, kernels::DeviceBuffer::CreateHost(device_, device_logits_.size() * sizeof(float)));
    LYNX_ASSIGN_OR_RETURN(summaries_,
                          kernels::DeviceBuffer::CreateHost(
                              device_, Size(spec_.layers, sizeof(kernels::PlanSummary))));
    return ReserveTables(static_cast<size_t>(kv_->blocks()));
  }

  absl::Status Step(std::span<const SequenceRows> batch, StepObserver* observer) override;

  std::span<const float> logits() const override {
    return {reinterpret_cast<const float*>(logits_.data()),
            logits_rows_ * static_cast<size_t>(spec_.vocab_size)};
  }
  const StepStats& stats() const override { return stats_; }
  const ModelSpec& spec() const override { return spec_; }
  kv::KvArena& kv() override { return *kv_; }
  const std::string& numeric_class() const override { return numeric_class_; }
  const std::string& compatibility_hash() const override { return compatibility_hash_; }

 private:
  static size_t Size(int64_t a, int64_t b) { return static_cast<size_t>(a * b); }
  const kv::KvGroups& groups() const { return kv_->layout().groups; }

  // Makes room for so many entries of block tables.
  absl::Status ReserveTables(size_t entries);
  absl::Status PlaceRows(std::span<const SequenceRows> batch);
  void PlaceSequence(const SequenceRows& sequence);
  absl::StatusOr<int8_t> PolicyOf(const SequenceRows& sequence);
  absl::Status RunLayer(int32_t layer);
  absl::Status RunLayers(StepObserver* observer);
  // False: the step is abandoned.
  absl::StatusOr<bool> TellOf(int32_t layer, StepObserver* observer);
  absl::Status ComputeLogits();
  void Count();

  kernels::Device& device_;
  const ModelSpec spec_;
  const kernels::DeviceBuffer weight_memory_;
  const ModelWeights weights_;
  const std::unique_ptr<kv::KvArena> kv_;
  const int64_t max_rows_;
  const int64_t max_logits_;
  const int64_t max_positions_;
  const bool remap_mixed_steps_;
  RankSum sum_{nullptr, /*of_replica=*/false, 0, 0, /*order_free=*/false};
  std::optional<AttentionBlock> attention_;  // One of the two.
  std::optional<LatentAttentionBlock> latent_attention_;
  DeviceFeedForwardBlock feed_forward_;
  const size_t scratch_bytes_;
  StepMemory scratch_;
  StepArray<float> hidden_;          // [max_rows, hidden]: the residual stream.
  StepArray<float> final_;           // [max_logits, hidden]
  ActivationBuffer normed_;          // [max_logits, hidden]: what the head takes.
  StepArray<float> device_logits_;   // [max_logits, vocab]
  kernels::DeviceBuffer logits_;     // The same, pinned.
  kernels::DeviceBuffer summaries_;  // [layers], pinned
  std::unique_ptr<kernels::DeviceStream> stream_;
  std::vector<std::unique_ptr<kernels::DeviceEvent>> layer_done_;
  std::string numeric_class_;
  std::string compatibility_hash_;

  kernels::DeviceBuffer staging_;  // StepInputs and tables, pinned;
  kernels::DeviceBuffer inputs_;   // the same on the device.
  std::optional<StepInputs> staged_;
  std::optional<StepInputs> on_device_;
  size_t table_capacity_ = 0;  // Entries.

  // Of the current step.
  int32_t rows_ = 0;
  size_t table_entries_ = 0;
  std::vector<moe::Policy> known_policies_;
  int64_t wanted_ = 0;  // Rows whose logits are.
  size_t logits_rows_ = 0;
  StepStats stats_;
};

absl::Status DeviceModelRunner::ReserveTables(size_t entries) {
  if (entries <= table_capacity_) return absl::OkStatus();
  const auto rows = static_cast<size_t>(max_rows_);
  const size_t capacity = std::max(entries, 2 * table_capacity_);
  const size_t bytes =
      StepInputs(nullptr, rows, groups().count()).bytes + capacity * sizeof(int32_t);
  LYNX_ASSIGN_OR_RETURN(kernels::DeviceBuffer staging,
                        kernels::DeviceBuffer::CreateHost(device_, bytes));
  LYNX_ASSIGN_OR_RETURN(kernels::DeviceBuffer inputs,
                        kernels::DeviceBuffer::Create(device_, bytes));
  staging_ = std::move(staging);
  inputs_ = std::move(inputs);
  staged_.emplace(staging_.data(), rows, groups().count());
  on_device_.emplace(inputs_.data(), rows, groups().count());
  table_capacity_ = capacity;
  return absl::OkStatus();
}

absl::StatusOr<int8_t> DeviceModelRunner::PolicyOf(const SequenceRows& sequence) {
  if (!sequence.decode || sequence.policy == nullptr) return kernels::kNoPolicy;
  if (!sequence.policy->lossy()) return kernels::kExactPolicy;
  moe::Policy policy = *sequence.policy;
  policy.ep_balance = -1;  // There is one rank.
  const auto known = std::ranges::find(known_policies_, policy);
  const auto index = static_cast<size_t>(known - known_policies_.begin());
  if (known == known_policies_.end()) {
    if (known_policies_.size() == kernels::kMaxPlanPolicies) {
      return kernels::kExactPolicy;  // Better than asked for, and rare.
    }
    LYNX_ASSIGN_OR_RETURN(staged_->parameters->policies[index], DevicePolicy(policy));
    known_policies_.push_back(policy);
  }
  return static_cast<int8_t>(index);
}

absl::Status DeviceModelRunner::PlaceRows(std::span<const SequenceRows> batch) {
  rows_ = 0;
  table_entries_ = 0;
  known_policies_.clear();
  wanted_ = 0;
  logits_rows_ = 0;
  stats_.weight_bytes_read = stats_.weight_bytes_streamed = stats_.kv_bytes_read = 0;
  stats_.expert_bytes_read = stats_.expert_bytes_saved = 0;
  stats_.decode_rows = stats_.prefill_rows = 0;
  stats_.plans.clear();
  stats_.plan_seconds.clear();
  size_t entries = 0;
  for (const SequenceRows& sequence : batch) entries += sequence.blocks.size();
  LYNX_RETURN_IF_ERROR(ReserveTables(entries));
  *staged_->parameters = kernels::PlanParameters();
  for (const SequenceRows& sequence : batch) {
    const auto count = static_cast<int32_t>(sequence.tokens.size());
    (sequence.decode ? stats_.decode_rows : stats_.prefill_rows) += count;
    LYNX_ASSIGN_OR_RETURN(const int8_t policy, PolicyOf(sequence));
    std::fill_n(staged_->policies + rows_, count, policy);
    PlaceSequence(sequence);
  }
  stats_.phase = stats_.prefill_rows == 0  ? moe::Phase::kDecode
                 : stats_.decode_rows == 0 ? moe::Phase::kPrefill
                                           : moe::Phase::kMixed;
  staged_->parameters->count = static_cast<int32_t>(known_policies_.size());
  staged_->parameters->remap = stats_.phase == moe::Phase::kDecode ||
                               (remap_mixed_steps_ && stats_.phase == moe::Phase::kMixed);
  return stream_->CopyToDevice(inputs_.data(), staging_.data(),
                               staged_->bytes + table_entries_ * sizeof(int32_t));
}

void DeviceModelRunner::PlaceSequence(const SequenceRows& sequence) {
  const int64_t token_bytes = kv_->layout().BlockLayerBytes() / kv::kBlockTokens;
  const auto count = static_cast<int32_t>(sequence.tokens.size());
  std::ranges::copy(sequence.tokens, staged_->tokens + rows_);
  std::fill_n(staged_->valid + rows_, count, uint8_t{1});
  for (int32_t i = 0; i < count; ++i) {
    staged_->positions[rows_ + i] = sequence.start + i;
    if (i >= count - sequence.logits_rows) staged_->wanted[wanted_++] = rows_ + i;
  }
  std::ranges::copy(sequence.blocks, staged_->tables + table_entries_);
  const size_t table = sequence.blocks.size() / static_cast<size_t>(groups().count());
  for (int32_t g = 0; g < groups().count(); ++g) {
    const kv::Reach& reach = groups().reach(g);
    const size_t first_entry = static_cast<size_t>(g) * table;
    const kv::BlockId* const blocks = sequence.blocks.data() + first_entry;
    const int32_t* const blocks_there = on_device_->tables + table_entries_ + first_entry;
    StepInputs::Group& group = staged_->groups[static_cast<size_t>(g)];
    for (int32_t i = 0; i < count; ++i) {
      const int32_t position = sequence.start + i;
      group.attention[rows_ + i] = {
          .blocks = blocks_there, .position = position, .first = reach.FirstFor(position)};
      group.slots[rows_ + i] = {.block = blocks[position / kv::kBlockTokens],
                                .offset = position % kv::kBlockTokens};
    }
    stats_.kv_bytes_read += (sequence.start + count - reach.FirstFor(sequence.start)) *
                            token_bytes * kv_->layout().BlockLayers();
  }
  rows_ += count;
  table_entries_ += sequence.blocks.size();
}

absl::Status DeviceModelRunner::RunLayer(int32_t layer) {
  const kernels::ExecContext ctx = {.backend = kernels::Backend::kCuda,
                                    .device = &device_.kernels(),
                                    .queue = {.stream = stream_->handle(),
                                              .scratch = scratch_.data(),
                                              .scratch_bytes = scratch_bytes_}};
  const auto rows = static_cast<size_t>(rows_);
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const StepInputs::Group& group =
      on_device_->groups[static_cast<size_t>(groups().group_of(layer))];
  const RowPlaces places{.positions = {on_device_->positions, rows},
                         .attention = {group.attention, rows},
                         .slots = {group.slots, rows}};
  if (latent_attention_.has_value()) {
    LYNX_RETURN_IF_ERROR(latent_attention_->Run(weights.latent_attention, places, layer, *kv_,
                                                hidden_.data(), sum_, ctx));
  } else {
    LYNX_RETURN_IF_ERROR(
        attention_->Run(weights.attention, places, layer, *kv_, hidden_.data(), sum_, ctx));
  }
  LYNX_RETURN_IF_ERROR(feed_forward_.Run(layer, rows_,
                                         {.valid = on_device_->valid,
                                          .policies = on_device_->policies,
                                          .parameters = on_device_->parameters},
                                         hidden_.data(), ctx));
  return stream_->Record(*layer_done_[static_cast<size_t>(layer)]);
}

absl::StatusOr<bool> DeviceModelRunner::TellOf(int32_t layer, StepObserver* observer) {
  LYNX_RETURN_IF_ERROR(layer_done_[static_cast<size_t>(layer)]->Synchronise());
  return observer->OnLayerDone(layer);
}

absl::Status DeviceModelRunner::RunLayers(StepObserver* observer) {
  // Who looks on is told of a layer while the next one runs, so that the device never waits for
  // the host and at most one layer is computed in vain.
  for (int32_t layer = 0; layer < spec_.layers; ++layer) {
    LYNX_RETURN_IF_ERROR(RunLayer(layer));
    if (observer == nullptr || layer == 0) continue;
    LYNX_ASSIGN_OR_RETURN(const bool go_on, TellOf(layer - 1, observer));
    if (!go_on) return absl::CancelledError(absl::StrCat("abandoned after layer ", layer - 1));
  }
  return absl::OkStatus();
}

absl::Status DeviceModelRunner::ComputeLogits() {
  const kernels::ExecContext ctx = {.backend = kernels::Backend::kCuda,
                                    .device = &device_.kernels(),
                                    .queue = {.stream = stream_->handle(),
                                              .scratch = scratch_.data(),
                                              .scratch_bytes = scratch_bytes_}};
  LYNX_RETURN_IF_ERROR(kernels::GatherRows({.x = hidden_.data(),
                                            .numbers = on_device_->wanted,
                                            .y = final_.data(),
                                            .rows = wanted_,
                                            .width = spec_.hidden_size,
                                            .x_stride = spec_.hidden_size,
                                            .y_stride = spec_.hidden_size},
                                           ctx));
  LYNX_RETURN_IF_ERROR(
      Normalise(final_.data(), weights_.final_norm, spec_.rms_norm_epsilon, wanted_, normed_, ctx));
  kernels::GemmArgs head = Projection(normed_, weights_.head, {}, wanted_, device_logits_.data());
  head.scale = spec_.logits_multiplier;
  LYNX_RETURN_IF_ERROR(kernels::Gemm(head, ctx));
  return stream_->CopyToHost(logits_.data(), reinterpret_cast<std::byte*>(device_logits_.data()),
                             Size(wanted_, spec_.vocab_size) * sizeof(float));
}

void DeviceModelRunner::Count() {
  const auto* const summaries = reinterpret_cast<const kernels::PlanSummary*>(summaries_.data());
  stats_.weight_bytes_read =
      static_cast<int64_t>(SizeOf(weights_.embedding.dtype)) * spec_.hidden_size * rows_;
  if (wanted_ > 0) stats_.weight_bytes_read += BytesOf(weights_.head);
  for (int32_t layer = 0; layer < spec_.layers; ++layer) {
    const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    const FeedForwardWeights& feed_forward = weights.feed_forward;
    const moe::PlanStats plan =
        feed_forward.is_moe() ? StatsOf(summaries[layer]) : moe::PlanStats{};
    const int64_t each = feed_forward.expert_bytes();
    const int64_t active = feed_forward.is_moe() ? plan.experts : 0;
    stats_.plans.push_back(plan);
    stats_.plan_seconds.push_back(0);
    stats_.expert_bytes_read += active * each;
    stats_.expert_bytes_saved += std::max(0, plan.experts_exact - plan.experts) * each;
    stats_.weight_bytes_read += weights.attention.bytes() + weights.latent_attention.bytes() +
                                feed_forward.fixed_bytes() +
                                (feed_forward.is_moe() ? active : 1) * each;
  }
}

absl::Status DeviceModelRunner::Step(std::span<const SequenceRows> batch, StepObserver* observer) {
  std::array<int64_t, 1> rows;
  std::array<int64_t, 1> wanted;
  const StepLimits limits = {.vocab_size = spec_.vocab_size,
                             .rows = max_rows_,
                             .logits_rows = max_logits_,
                             .positions = max_positions_,
                             .kv_blocks = kv_->blocks()};
  LYNX_RETURN_IF_ERROR(CheckStep(batch, limits, groups(), rows, wanted));
  LYNX_RETURN_IF_ERROR(device_.Use());
  const absl::Status status = [&]() -> absl::Status {
    LYNX_RETURN_IF_ERROR(PlaceRows(batch));
    LYNX_RETURN_IF_ERROR(kernels::Embed({.tokens = on_device_->tokens,
                                         .w = weights_.embedding,
                                         .y = hidden_.data(),
                                         .rows = rows_,
                                         .y_stride = spec_.hidden_size,
                                         .scale = spec_.embedding_multiplier},
                                        {.backend = kernels::Backend::kCuda,
                                         .device = &device_.kernels(),
                                         .queue = {.stream = stream_->handle()}}));
    LYNX_RETURN_IF_ERROR(RunLayers(observer));
    if (wanted_ > 0) LYNX_RETURN_IF_ERROR(ComputeLogits());
    LYNX_RETURN_IF_ERROR(stream_->CopyToHost(
        summaries_.data(), reinterpret_cast<const std::byte*>(feed_forward_.summaries()),
        summaries_.size()));
    if (observer == nullptr) return absl::OkStatus();
    // The step is as good as done: what it says no more changes anything.
    return TellOf(spec_.layers - 1, observer).status();
  }();
  // Whatever came of it: what was staged is written anew by the next step.
  const absl::Status done = stream_->Synchronise();
  LYNX_RETURN_IF_ERROR(status);
  LYNX_RETURN_IF_ERROR(done);
  Count();
  logits_rows_ = static_cast<size_t>(wanted_);
  return absl::OkStatus();
}

absl::Status Unserved(std::string_view what) {
  return absl::UnimplementedError(absl::StrCat("on a GPU: ", std::string(what)));
}

}  // namespace

absl::Status CheckForDevice(const RunnerOptions& options, const ModelSpec& spec) {
  const ParallelLayout& layout = options.layout;
  if (layout.world() > 1 || options.ranks != nullptr) {
    return Unserved("nodes of several ranks are not served");
  }
  if (layout.ep_spare > 0) return Unserved("spare slots of experts are not served");
  if (options.router_override != nullptr) return Unserved("router logits cannot be replaced");
  if (spec.has_moe() &&
      (spec.experts > kernels::kMaxPlanExperts || spec.experts_per_token > kernels::kMaxPlanTopK ||
       options.max_step_rows > kernels::kMaxPlanRows)) {
    return Unserved(absl::StrCat("plans have up to ", kernels::kMaxPlanRows, " rows, ",
                                 kernels::kMaxPlanExperts, " experts and ", kernels::kMaxPlanTopK,
                                 " of them a row; here ", options.max_step_rows, ", ", spec.experts,
                                 " and ", spec.experts_per_token));
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceRoom> RoomOnDevice(const RunnerOptions& options, const ModelSpec& spec,
                                        int64_t weight_bytes) {
  LYNX_ASSIGN_OR_RETURN(const kernels::DeviceMemoryInfo memory, options.device->Memory());
  DeviceRoom room{.need = NeedOf(spec, weight_bytes,
                                 {.kv_dtype = options.kv_dtype,
                                  .kv_blocks = std::numeric_limits<int32_t>::max(),
                                  .rows = options.max_step_rows,
                                  .logits_rows = options.max_step_logits}),
                  .free = memory.free,
                  .reserve = memory.total / kReservedPart};
  room.need.kv = 0;
  room.need.steps += static_cast<int64_t>(ScratchBytes(spec, options));
  return room;
}

absl::StatusOr<std::unique_ptr<ModelRunner>> MakeDeviceModelRunner(const RunnerOptions& options,
                                                                   ModelSpec spec,
                                                                   ModelWeights weights,
                                                                   std::string_view identity) {
  kernels::Device& device = *options.device;
  LYNX_RETURN_IF_ERROR(device.Use());
  LYNX_RETURN_IF_ERROR(CheckForDevice(weights));
  LYNX_ASSIGN_OR_RETURN(kernels::DeviceBuffer memory, MoveToDevice(device, weights));
  LYNX_ASSIGN_OR_RETURN(
      std::unique_ptr<kv::KvArena> kv,
      kv::KvArena::CreateRemote(KvLayoutOf(spec, options.kv_dtype), options.kv_blocks,
                                [&](size_t bytes) { return MakeDeviceKv(device, bytes); }));
  auto runner = std::make_unique<DeviceModelRunner>(options, std::move(spec), std::move(weights),
                                                    std::move(memory), std::move(kv), identity);
  LYNX_RETURN_IF_ERROR(runner->Start());
  return runner;
}

}  // namespace lynx::model
