#include <gnu/libc-version.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/model/activation_buffer.h"
#include "common/model/attention_block.h"
#include "common/model/compatibility.h"
#include "common/model/device_model_runner.h"
#include "common/model/expert_mover.h"
#include "common/model/expert_rows.h"
#include "common/model/feed_forward_block.h"
#include "common/model/latent_attention_block.h"
#include "common/model/linear.h"
#include "common/model/memory_need.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "common/model/model_weights.h"
#include "common/model/name_list.h"
#include "common/model/rank_sum.h"
#include "common/model/safetensors.h"
#include "common/model/shard_plan.h"
#include "common/model/step_check.h"
#include "common/model/weight_binder.h"
#include "kernels/core/cpu_limit.h"
#include "kernels/core/exec_context.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/embed.h"
#include "kernels/gemm/gemm.h"

namespace lynx::model {
namespace {

// Raised with every change that may change a bit of any result.
constexpr int kNumericsRevision = 3;

class CpuModelRunner : public ModelRunner {
 public:
  CpuModelRunner(const RunnerOptions& options, ModelSpec spec, const RankShard& shard,
                 std::unique_ptr<kernels::ThreadTeam> team, ModelWeights weights,
                 std::string_view identity, std::unique_ptr<kv::KvArena> kv)
      : spec_(std::move(spec)),
        layout_(options.layout),
        shard_(shard),
        own_(OwnSpec(spec_, shard_)),
        own_experts_(std::ssize(shard_.experts) - options.layout.ep_spare),
        weights_(std::move(weights)),
        kv_(std::move(kv)),
        max_rows_(options.max_step_rows),
        max_logits_(options.max_step_logits),
        max_positions_(MaxPositions(options, own_)),
        remap_mixed_steps_(options.remap_mixed_steps),
        team_(std::move(team)),
        ctx_{.backend = kernels::Backend::kCpu,
             .isa = options.isa.value_or(kernels::BestIsa()),
             .team = team_.get(),
             .streamed_bytes = &streamed_bytes_},
        ranks_(options.ranks),
        rank_(ranks_ == nullptr ? 0 : ranks_->rank()),
        replica_(layout_.ReplicaOf(rank_)),
        replica_ranks_(ReplicaRanks()),
        peers_(Peers()),
        sum_(layout_.dp == 1 ? ranks_ : replica_ranks_.get(), layout_.dp > 1, max_rows_,
             spec_.hidden_size, layout_.ep_spare > 0),
        expert_rows_(ExpertRows::Make(peers_.get(), layout_, rank_,
                                      {.max_rows = max_rows_,
                                       .hidden = spec_.hidden_size,
                                       .experts = spec_.experts,
                                       .dtype = options.compute_dtype})),
        feed_forward_(own_, layout_, max_rows_, options.compute_dtype, options.router_override,
                      *expert_rows_),
        normed_(max_logits_, spec_.hidden_size, options.compute_dtype) {
    if (spec_.has_latents()) {
      latent_attention_.emplace(own_, max_rows_, max_positions_, options.compute_dtype,
                                team_->threads());
    } else {
      attention_.emplace(own_, max_rows_, max_positions_, options.compute_dtype, team_->threads());
    }
    const auto rows = static_cast<size_t>(max_rows_);
    const auto hidden = static_cast<size_t>(spec_.hidden_size);
    tokens_.reserve(rows);
    positions_.reserve(rows);
    group_rows_.resize(static_cast<size_t>(groups().count()));
    for (GroupRows& group : group_rows_) {
      group.attention.reserve(rows);
      group.slots.reserve(rows);
    }
    const auto replicas = static_cast<size_t>(layout_.dp);
    policies_.reserve(rows * replicas);
    rows_of_replica_.resize(replicas);
    wanted_of_replica_.resize(replicas);
    wanted_.reserve(static_cast<size_t>(max_logits_));
    hidden_.resize(rows * hidden);
    final_.resize(static_cast<size_t>(max_logits_) * hidden);
    if (ranks_ != nullptr) {
      const auto world = static_cast<size_t>(layout_.world());
      head_part_.resize(static_cast<size_t>(max_logits_ * HeadWidth()));
      if (has_logits()) head_parts_.resize(head_part_.size() * world);
      head_bytes_.resize(world);
      head_parts_bytes_.resize(world);
    }
    if (has_logits()) {
      logits_.resize(static_cast<size_t>(max_logits_) * replicas *
                     static_cast<size_t>(spec_.vocab_size));
    }
    stats_.plans.reserve(static_cast<size_t>(spec_.layers));
    stats_.plan_seconds.reserve(static_cast<size_t>(spec_.layers));
    numeric_class_ = absl::StrCat(
        "cpu-", std::string(kernels::Name(ctx_.isa)), "/numerics-", kNumericsRevision, "/libc-",
        gnu_get_libc_version(), "/compute-", std::string(Name(options.compute_dtype)), "/kv-",
        std::string(Name(options.kv_dtype)), "/tp", layout_.tp, "/dp", layout_.dp, "/ep",
        layout_.ep, layout_.ep_spare > 0 ? "/experts-move" : "");
    compatibility_hash_ =
        CompatibilityHash(spec_, identity, options.compute_dtype, options.kv_dtype);
  }

  // Experts may move from now on; `files` are those of the weights. Fails as ExpertMover.
  absl::Status MoveExperts(SafetensorsFolder files) {
    LYNX_ASSIGN_OR_RETURN(mover_, ExpertMover::Create(spec_, shard_, weights_, std::move(files)));
    if (ranks_->rank() == 0) feed_forward_.SetHistory(&mover_->history());
    return absl::OkStatus();
  }
  ExpertMover* expert_mover() override { return mover_.get(); }

  absl::Status Step(std::span<const SequenceRows> batch, StepObserver* observer) override;

  std::span<const float> logits() const override {
    return std::span<const float>(logits_).first(logits_rows_ *
                                                 static_cast<size_t>(spec_.vocab_size));
  }
  const StepStats& stats() const override { return stats_; }
  const ModelSpec& spec() const override { return spec_; }
  kv::KvArena& kv() override { return *kv_; }
  const std::string& numeric_class() const override { return numeric_class_; }
  const std::string& compatibility_hash() const override { return compatibility_hash_; }

 private:
  static ModelSpec OwnSpec(const ModelSpec& spec, const RankShard& shard) {
    ModelSpec own = SpecOfShard(spec, shard);
    own.experts = spec.experts;  // Plans are for all.
    return own;
  }
  // Columns of a rank's part of the logits, the last of which some ranks leave out.
  int64_t HeadWidth() const { return (spec_.vocab_size + layout_.tp - 1) / layout_.tp; }
  // Of several replicas only rank 0, which samples.
  bool has_logits() const { return layout_.dp == 1 || rank_ == 0; }

  // The ranks of this replica, and those of this one's place in each replica; null where there is
  // no other, or one replica.
  std::unique_ptr<collective::Communicator> ReplicaRanks() const {
    if (layout_.dp == 1 || layout_.tp == 1) return nullptr;
    std::vector<int> ranks(static_cast<size_t>(layout_.tp));
    std::iota(ranks.begin(), ranks.end(), replica_ * layout_.tp);
    return ranks_->Subgroup(std::move(ranks));
  }
  std::unique_ptr<collective::Communicator> Peers() const {
    if (layout_.dp == 1) return nullptr;
    std::vector<int> ranks;
    for (int rank = rank_ % layout_.tp; rank < layout_.world(); rank += layout_.tp) {
      ranks.push_back(rank);
    }
    return ranks_->Subgroup(std::move(ranks));
  }

  // A position needs an angle only where KV could hold it.
  static int64_t MaxPositions(const RunnerOptions& options, const ModelSpec& spec) {
    const kv::KvLayout layout = KvLayoutOf(spec, options.kv_dtype);
    return std::min<int64_t>(spec.max_positions, layout.groups.MostTokens(options.kv_blocks));
  }
  // Of one group of layers.
  struct GroupRows {
    std::vector<kernels::AttentionRow> attention;
    std::vector<kernels::KvSlot> slots;
  };
  const kv::KvGroups& groups() const { return kv_->layout().groups; }

  absl::Status RunLayers(StepObserver* observer);
  void PlaceRows(std::span<const SequenceRows> batch);
  void RemoveEntries(std::span<const size_t> leaving);
  absl::Status Embed();
  absl::Status Attend(const LayerWeights& weights, const RowPlaces& places, int32_t layer);
  absl::Status ComputeLogits();
  absl::Status GatherLogits(int64_t rows);
  absl::Status CollectLogits();
  // A rank's part of `rows` rows of logits [rows, HeadWidth()] into those [rows, vocab_size].
  void CopyPart(const float* part, int32_t rank, int64_t rows, float* to) const;
  void PlaceSequence(const SequenceRows& sequence);

  const ModelSpec spec_;
  const ParallelLayout layout_;
  const RankShard shard_;
  const ModelSpec own_;        // With this rank's sizes.
  const int64_t own_experts_;  // Of a layer, without copies.
  ModelWeights weights_;       // Changed by mover_ alone.
  std::unique_ptr<ExpertMover> mover_;
  const std::unique_ptr<kv::KvArena> kv_;
  const int64_t max_rows_;
  const int64_t max_logits_;
  const int64_t max_positions_;
  const bool remap_mixed_steps_;
  const std::unique_ptr<kernels::ThreadTeam> team_;
  std::atomic<int64_t> streamed_bytes_{0};  // Of matrices, in the current step.
  const kernels::ExecContext ctx_;
  collective::Communicator* const ranks_;
  const int32_t rank_;
  const int32_t replica_;
  const std::unique_ptr<collective::Communicator> replica_ranks_;
  const std::unique_ptr<collective::Communicator> peers_;
  RankSum sum_;
  const std::unique_ptr<ExpertRows> expert_rows_;
  std::optional<AttentionBlock> attention_;  // One of the two.
  std::optional<LatentAttentionBlock> latent_attention_;
  FeedForwardBlock feed_forward_;
  ActivationBuffer normed_;  // [max_logits, hidden]: what the head takes.
  std::string numeric_class_;
  std::string compatibility_hash_;

  // Of the current step.
  std::vector<int64_t> rows_of_replica_;    // [dp]
  std::vector<int64_t> wanted_of_replica_;  // [dp] Rows whose logits are wanted.
  // Whose logits each entry wants, and how many rows; in order of the batch. With several replicas.
  struct WantedRows {
    int32_t replica = 0;
    int64_t rows = 0;
  };
  std::vector<WantedRows> wanted_entries_;
  // Of every row of all replicas, one replica's after the other's.
  std::vector<const moe::Policy*> policies_;
  moe::Phase plan_phase_ = moe::Phase::kDecode;
  size_t logits_rows_ = 0;
  // Of this replica's rows; but for the first, one entry a row.
  std::vector<int32_t> entry_rows_;  // Of each entry of the batch that has stayed.
  std::vector<int32_t> kept_rows_;   // Of RemoveEntries().
  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_;
  std::vector<GroupRows> group_rows_;
  std::vector<int32_t> wanted_;      // Rows whose logits are wanted.
  std::vector<float> hidden_;        // [max_rows, hidden]: the residual stream, float32.
  std::vector<float> final_;         // [max_logits, hidden]
  std::vector<float> head_part_;     // [max_logits, HeadWidth()] of this rank; empty for one rank
  std::vector<float> head_parts_;    // The same of all; empty where logits_ is.
  std::vector<int64_t> head_bytes_;  // [ranks] Of head_part_, to each,
  std::vector<int64_t> head_parts_bytes_;  // and of head_parts_, from each.
  std::vector<float> logits_;  // [dp * max_logits, vocab]; empty where there are no logits
  StepStats stats_;
};

void CpuModelRunner::PlaceRows(std::span<const SequenceRows> batch) {
  entry_rows_.clear();
  tokens_.clear();
  positions_.clear();
  for (GroupRows& group : group_rows_) {
    group.attention.clear();
    group.slots.clear();
  }
  policies_.clear();
  wanted_.clear();
  stats_.weight_bytes_read = 0;
  stats_.weight_bytes_streamed = 0;
  streamed_bytes_.store(0, std::memory_order_relaxed);
  stats_.kv_bytes_read = 0;
  stats_.expert_bytes_read = 0;
  stats_.expert_bytes_saved = 0;
  stats_.decode_rows = 0;
  stats_.prefill_rows = 0;
  stats_.plans.clear();
  stats_.plan_seconds.clear();
  wanted_entries_.clear();
  for (int32_t replica = 0; replica < layout_.dp; ++replica) {
    for (const SequenceRows& sequence : batch) {
      if (sequence.replica != replica) continue;
      policies_.insert(policies_.end(), sequence.tokens.size(),
                       sequence.decode ? sequence.policy : nullptr);
    }
  }
  for (const SequenceRows& sequence : batch) {
    (sequence.decode ? stats_.decode_rows : stats_.prefill_rows) +=
        static_cast<int32_t>(sequence.tokens.size());
    if (layout_.dp > 1) wanted_entries_.push_back({sequence.replica, sequence.logits_rows});
    if (sequence.replica == replica_) PlaceSequence(sequence);
  }
  stats_.phase = stats_.prefill_rows == 0  ? moe::Phase::kDecode
                 : stats_.decode_rows == 0 ? moe::Phase::kPrefill
                                           : moe::Phase::kMixed;
  // Prompt rows have no policy: in a plan for decode rows they keep their own experts, too.
  plan_phase_ =
      remap_mixed_steps_ && stats_.phase == moe::Phase::kMixed ? moe::Phase::kDecode : stats_.phase;
}

void CpuModelRunner::PlaceSequence(const SequenceRows& sequence) {
  const int64_t token_bytes = kv_->layout().BlockLayerBytes() / kv::kBlockTokens;
  const auto count = static_cast<int32_t>(sequence.tokens.size());
  entry_rows_.push_back(count);
  for (int32_t i = 0; i < count; ++i) {
    if (i >= count - sequence.logits_rows) wanted_.push_back(static_cast<int32_t>(tokens_.size()));
    tokens_.push_back(sequence.tokens[static_cast<size_t>(i)]);
    positions_.push_back(sequence.start + i);
  }
  const auto table = sequence.blocks.size() / group_rows_.size();
  for (int32_t g = 0; g < groups().count(); ++g) {
    const kv::Reach& reach = groups().reach(g);
    const kv::BlockId* const blocks = sequence.blocks.data() + static_cast<size_t>(g) * table;
    GroupRows& group = group_rows_[static_cast<size_t>(g)];
    for (int32_t position = sequence.start; position < sequence.start + count; ++position) {
      group.attention.push_back(
          {.blocks = blocks, .position = position, .first = reach.FirstFor(position)});
      group.slots.push_back(
          {.block = blocks[position / kv::kBlockTokens], .offset = position % kv::kBlockTokens});
    }
    stats_.kv_bytes_read += (sequence.start + count - reach.FirstFor(sequence.start)) *
                            token_bytes * kv_->layout().BlockLayers();
  }
}

void CpuModelRunner::RemoveEntries(std::span<const size_t> leaving) {
  // Rows that stay, by where they have been.
  kept_rows_.clear();
  size_t entries = 0;
  int32_t row = 0;
  for (size_t i = 0; i < entry_rows_.size(); ++i) {
    const int32_t end = row + entry_rows_[i];
    if (!leaving.empty() && leaving.front() == i) {
      leaving = leaving.subspan(1);
      row = end;
      continue;
    }
    entry_rows_[entries++] = entry_rows_[i];
    for (; row < end; ++row) kept_rows_.push_back(row);
  }
  LYNX_CHECK(leaving.empty() && entries > 0);
  entry_rows_.resize(entries);

  const auto keep = [this](auto& values) {
    for (size_t to = 0; to < kept_rows_.size(); ++to) {
      values[to] = values[static_cast<size_t>(kept_rows_[to])];
    }
    values.resize(kept_rows_.size());
  };
  keep(tokens_);
  keep(positions_);
  keep(policies_);
  for (GroupRows& group : group_rows_) {
    keep(group.attention);
    keep(group.slots);
  }
  const int64_t hidden = spec_.hidden_size;
  size_t wanted = 0;
  size_t kept_wanted = 0;
  for (size_t to = 0; to < kept_rows_.size(); ++to) {
    const int32_t from = kept_rows_[to];
    while (wanted < wanted_.size() && wanted_[wanted] < from) ++wanted;
    if (wanted < wanted_.size() && wanted_[wanted] == from) {
      wanted_[kept_wanted++] = static_cast<int32_t>(to);
      ++wanted;
    }
    if (static_cast<int64_t>(to) == from) continue;
    std::copy_n(hidden_.data() + from * hidden, hidden,
                hidden_.data() + static_cast<int64_t>(to) * hidden);
  }
  wanted_.resize(kept_wanted);
}

absl::Status CpuModelRunner::Embed() {
  const int64_t hidden = spec_.hidden_size;
  const kernels::Matrix& embedding = weights_.embedding;
  // Of a token that another rank has: zeros.
  LYNX_RETURN_IF_ERROR(kernels::Embed({.tokens = tokens_.data(),
                                       .w = embedding,
                                       .y = hidden_.data(),
                                       .rows = std::ssize(tokens_),
                                       .y_stride = hidden,
                                       .first = shard_.vocabulary.begin,
                                       .scale = spec_.embedding_multiplier},
                                      ctx_));
  const int64_t bytes = static_cast<int64_t>(tokens_.size() * SizeOf(embedding.dtype)) * hidden;
  stats_.weight_bytes_read += bytes;
  stats_.weight_bytes_streamed += bytes;
  return sum_.Add(std::span(hidden_).first(tokens_.size() * static_cast<size_t>(hidden)));
}

absl::Status CpuModelRunner::Attend(const LayerWeights& weights, const RowPlaces& places,
                                    int32_t layer) {
  if (latent_attention_.has_value()) {
    return latent_attention_->Run(weights.latent_attention, places, layer, *kv_, hidden_.data(),
                                  sum_, ctx_);
  }
  return attention_->Run(weights.attention, places, layer, *kv_, hidden_.data(), sum_, ctx_);
}

absl::Status CpuModelRunner::ComputeLogits() {
  const auto all_wanted =
      std::accumulate(wanted_of_replica_.begin(), wanted_of_replica_.end(), int64_t{0});
  if (wanted_.empty()) {
    return layout_.dp > 1 && all_wanted > 0 ? CollectLogits() : absl::OkStatus();
  }
  const int64_t hidden = spec_.hidden_size;
  const auto rows = static_cast<int64_t>(wanted_.size());
  LYNX_RETURN_IF_ERROR(kernels::GatherRows({.x = hidden_.data(),
                                            .numbers = wanted_.data(),
                                            .y = final_.data(),
                                            .rows = rows,
                                            .width = hidden,
                                            .x_stride = hidden,
                                            .y_stride = hidden},
                                           ctx_));
  LYNX_RETURN_IF_ERROR(
      Normalise(final_.data(), weights_.final_norm, spec_.rms_norm_epsilon, rows, normed_, ctx_));
  stats_.weight_bytes_read += BytesOf(weights_.head);
  kernels::GemmArgs head = Projection(normed_, weights_.head, {}, rows,
                                      ranks_ == nullptr ? logits_.data() : head_part_.data());
  head.scale = spec_.logits_multiplier;
  if (ranks_ != nullptr) head.y_stride = HeadWidth();
  LYNX_RETURN_IF_ERROR(kernels::Gemm(head, ctx_));
  if (layout_.dp > 1) return CollectLogits();
  if (ranks_ != nullptr) LYNX_RETURN_IF_ERROR(GatherLogits(rows));
  logits_rows_ = wanted_.size();
  return absl::OkStatus();
}

absl::Status CpuModelRunner::GatherLogits(int64_t rows) {
  const auto part = static_cast<size_t>(rows * HeadWidth());
  const auto ranks = static_cast<size_t>(ranks_->size());
  LYNX_RETURN_IF_ERROR(
      ranks_->AllGather(std::as_bytes(std::span(head_part_).first(part)),
                        std::as_writable_bytes(std::span(head_parts_).first(part * ranks))));
  for (size_t rank = 0; rank < ranks; ++rank) {
    CopyPart(head_parts_.data() + rank * part, static_cast<int32_t>(rank), rows, logits_.data());
  }
  return absl::OkStatus();
}

absl::Status CpuModelRunner::CollectLogits() {
  const auto row_bytes = HeadWidth() * static_cast<int64_t>(sizeof(float));
  head_bytes_[0] = std::ssize(wanted_) * row_bytes;
  int64_t bytes = 0;
  for (int32_t rank = 0; rank < layout_.world() && has_logits(); ++rank) {
    const auto replica = static_cast<size_t>(layout_.ReplicaOf(rank));
    bytes += head_parts_bytes_[static_cast<size_t>(rank)] = wanted_of_replica_[replica] * row_bytes;
  }
  LYNX_RETURN_IF_ERROR(ranks_->AllToAll(
      std::as_bytes(std::span(head_part_)).first(static_cast<size_t>(head_bytes_[0])), head_bytes_,
      std::as_writable_bytes(std::span(head_parts_)).first(static_cast<size_t>(bytes)),
      head_parts_bytes_));
  if (!has_logits()) return absl::OkStatus();
  const float* part = head_parts_.data();
  for (int32_t rank = 0; rank < layout_.world(); ++rank) {
    float* to = logits_.data();
    for (const WantedRows& entry : wanted_entries_) {
      if (entry.replica == layout_.ReplicaOf(rank)) {
        CopyPart(part, rank, entry.rows, to);
        part += entry.rows * HeadWidth();
      }
      to += entry.rows * spec_.vocab_size;
      logits_rows_ += rank == 0 ? static_cast<size_t>(entry.rows) : 0;
    }
  }
  return absl::OkStatus();
}

void CpuModelRunner::CopyPart(const float* part, int32_t rank, int64_t rows, float* to) const {
  const ShardRange ids = ShardOf(spec_, layout_, rank).vocabulary;
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(part + r * HeadWidth(), ids.size(), to + r * spec_.vocab_size + ids.begin);
  }
}

absl::Status CpuModelRunner::Step(std::span<const SequenceRows> batch, StepObserver* observer) {
  const StepLimits limits = {.vocab_size = spec_.vocab_size,
                             .replicas = layout_.dp,
                             .rows = max_rows_,
                             .logits_rows = max_logits_,
                             .positions = max_positions_,
                             .kv_blocks = kv_->blocks()};
  LYNX_RETURN_IF_ERROR(CheckStep(batch, limits, groups(), rows_of_replica_, wanted_of_replica_));
  logits_rows_ = 0;
  PlaceRows(batch);
  expert_rows_->Begin(rows_of_replica_);
  LYNX_RETURN_IF_ERROR(Embed());
  LYNX_RETURN_IF_ERROR(RunLayers(observer));
  LYNX_RETURN_IF_ERROR(ComputeLogits());
  stats_.weight_bytes_streamed += streamed_bytes_.load(std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status CpuModelRunner::RunLayers(StepObserver* observer) {
  for (int32_t layer = 0; layer < spec_.layers; ++layer) {
    const auto rows = static_cast<int64_t>(tokens_.size());
    const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    const GroupRows& group = group_rows_[static_cast<size_t>(groups().group_of(layer))];
    const RowPlaces places{
        .positions = positions_, .attention = group.attention, .slots = group.slots};
    LYNX_RETURN_IF_ERROR(Attend(weights, places, layer));
    LYNX_RETURN_IF_ERROR(feed_forward_.Run(weights.feed_forward, rows, layer, plan_phase_,
                                           policies_, hidden_.data(), sum_, ctx_));
    const bool moe = weights.feed_forward.is_moe();
    const int64_t active = moe ? feed_forward_.own_active() : 0;
    const moe::PlanStats plan = moe ? feed_forward_.plan().stats() : moe::PlanStats{};
    const int64_t expert_bytes = weights.feed_forward.expert_bytes();
    stats_.plans.push_back(plan);
    stats_.plan_seconds.push_back(moe ? feed_forward_.plan_seconds() : 0);
    stats_.expert_bytes_read += active * expert_bytes;
    // Of the experts that all ranks leave out, this rank's share.
    stats_.expert_bytes_saved += std::max(0, plan.experts_exact - plan.experts) * expert_bytes *
                                 own_experts_ / std::max(1, spec_.experts);
    if (moe) stats_.weight_bytes_read += active * expert_bytes;
    if (rows > 0) {
      stats_.weight_bytes_read += weights.attention.bytes() + weights.latent_attention.bytes() +
                                  weights.feed_forward.fixed_bytes() + (moe ? 0 : expert_bytes);
    }
    if (observer == nullptr) continue;
    if (observer->OnLayerDone(layer)) {
      if (ranks_ != nullptr || layer + 1 == spec_.layers) continue;
      const std::span<const size_t> leaving = observer->Leaving();
      if (!leaving.empty()) RemoveEntries(leaving);
      continue;
    }
    if (ranks_ == nullptr) {
      return absl::CancelledError(absl::StrCat("abandoned after layer ", layer));
    }
    // The other ranks are in the next layer already.
    if (layer + 1 < spec_.layers) sum_.Abandon();
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const RunnerOptions& options) {
  auto wrong = [](std::string_view name, auto value) {
    return absl::InvalidArgumentError(
        absl::StrCat("runner option ", std::string(name), " is ", value));
  };
  if (options.compute_dtype == DType::kF16) return wrong("compute_dtype", "f16");
  if (options.kv_dtype == DType::kF16) return wrong("kv_dtype", "f16");
  if (options.kv_blocks <= 0 && options.device_kv_blocks == nullptr) {
    return wrong("kv_blocks", options.kv_blocks);
  }
  if (options.max_step_rows <= 0) return wrong("max_step_rows", options.max_step_rows);
  if (options.max_step_logits <= 0) return wrong("max_step_logits", options.max_step_logits);
  if (options.threads < 0 || options.threads > 1024) return wrong("threads", options.threads);
  if (options.isa.has_value() && *options.isa > kernels::BestIsa()) {
    return wrong("isa", absl::StrCat(std::string(Name(*options.isa)), "; this machine has up to ",
                                     std::string(Name(kernels::BestIsa()))));
  }
  if (!options.cpus.empty() && options.threads > static_cast<int32_t>(options.cpus.size())) {
    return wrong("threads", absl::StrCat(options.threads, ", more than the ", options.cpus.size(),
                                         " CPUs to pin them to"));
  }
  return absl::OkStatus();
}

// That what a forward pass takes for granted holds for a spec that no config.json was read for.
absl::Status CheckSpec(const ModelSpec& spec) {
  auto wrong = [](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("model spec: ", std::string(what)));
  };
  if (spec.vocab_size <= 0 || spec.hidden_size <= 0 || spec.layers <= 0 || spec.query_heads <= 0 ||
      spec.kv_heads <= 0 || spec.head_dim <= 0 || spec.max_positions <= 0) {
    return wrong("a size is not positive");
  }
  if (spec.query_heads % spec.kv_heads != 0) return wrong("kv_heads does not divide query_heads");
  if (spec.has_latents() &&
      (spec.kv_heads != 1 || spec.head_dim != spec.qk_nope_head_dim + spec.qk_rope_head_dim ||
       spec.rotary_dim != spec.qk_rope_head_dim || spec.v_head_dim <= 0)) {
    return wrong("the sizes of latent attention contradict each other");
  }
  if (!spec.has_latents() && (spec.head_dim % 2 != 0 || spec.head_dim > 256)) {
    return wrong("head_dim is odd or above 256");
  }
  if (static_cast<int32_t>(spec.feed_forward.size()) != spec.layers ||
      static_cast<int32_t>(spec.attention.size()) != spec.layers) {
    return wrong("feed_forward or attention does not name every layer");
  }
  if (spec.has_moe() && (spec.expert_intermediate_size <= 0 || spec.experts_per_token <= 0 ||
                         spec.experts_per_token > spec.experts)) {
    return wrong("the sizes of MoE layers contradict each other");
  }
  const auto moe_layers =
      std::count(spec.feed_forward.begin(), spec.feed_forward.end(), FeedForwardKind::kMoe);
  if (moe_layers < spec.layers && spec.dense_intermediate_size <= 0) {
    return wrong("dense layers have no dense_intermediate_size");
  }
  return absl::OkStatus();
}

int32_t Threads(const RunnerOptions& options) {
  if (options.threads > 0) return options.threads;
  const int32_t usable = kernels::UsableCpus();
  const auto pinned = static_cast<int32_t>(options.cpus.size());
  return pinned > 0 ? std::min(usable, pinned) : usable;
}

absl::Status CheckRanks(const RunnerOptions& options, const ModelSpec& spec) {
  LYNX_RETURN_IF_ERROR(CheckLayout(spec, options.layout));
  const int32_t ranks = options.ranks == nullptr ? 1 : options.ranks->size();
  if (ranks == options.layout.world()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a layout for ", options.layout.world(), " ranks in a group of ", ranks));
}

// The same of one that computes on a device: weights are bound and packed by threads of the host.
absl::StatusOr<std::unique_ptr<ModelRunner>> MakeOnDevice(
    const RunnerOptions& options, ModelSpec spec, const TensorMap& tensors,
    std::string_view identity, std::function<void(std::span<const std::byte>)> consumed) {
  LYNX_RETURN_IF_ERROR(CheckForDevice(options, spec));
  try {
    LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::ThreadTeam> team,
                          kernels::ThreadTeam::Create(Threads(options), {}));
    RunnerOptions with_kv = options;
    const auto admit = [&](const WeightBytes& bytes) -> absl::Status {
      if (options.admit_memory != nullptr) {
        LYNX_RETURN_IF_ERROR(options.admit_memory({.weights = bytes.all}));
      }
      if (options.device_kv_blocks == nullptr) return absl::OkStatus();
      LYNX_ASSIGN_OR_RETURN(const DeviceRoom room, RoomOnDevice(options, spec, bytes.all));
      LYNX_ASSIGN_OR_RETURN(with_kv.kv_blocks, options.device_kv_blocks(room));
      return absl::OkStatus();
    };
    LYNX_ASSIGN_OR_RETURN(ModelWeights weights,
                          BindWeights(tensors, spec, ShardOf(spec, options.layout, 0), admit,
                                      {.team = team.get(),
                                       .progress = options.load_progress,
                                       .consumed = std::move(consumed)}));
    return MakeDeviceModelRunner(with_kv, std::move(spec), std::move(weights), identity);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory of the GPU, or the host, for steps of ", options.max_step_rows,
                     " rows and ", options.max_step_logits, " logits rows"));
  }
}

absl::StatusOr<std::unique_ptr<CpuModelRunner>> Make(
    const RunnerOptions& options, ModelSpec spec, const TensorMap& tensors,
    std::string_view identity, std::function<void(std::span<const std::byte>)> consumed) {
  LYNX_RETURN_IF_ERROR(CheckRanks(options, spec));
  const RankShard shard =
      ShardOf(spec, options.layout, options.ranks == nullptr ? 0 : options.ranks->rank());
  const ModelSpec own = SpecOfShard(spec, shard);
  std::unique_ptr<kv::KvArena> kv;
  try {
    LYNX_ASSIGN_OR_RETURN(std::unique_ptr<kernels::ThreadTeam> team,
                          kernels::ThreadTeam::Create(Threads(options), options.cpus));
    // Before weights are read, which takes long.
    const auto admit = [&](const WeightBytes& bytes) -> absl::Status {
      const bool experts_move = options.layout.ep_spare > 0;
      MemoryNeed need =
          NeedOf(own, bytes.all + (experts_move ? ExpertMover::kMostNew * bytes.expert : 0),
                 {.kv_dtype = options.kv_dtype,
                  .kv_blocks = options.kv_blocks,
                  .rows = options.max_step_rows,
                  .logits_rows = options.max_step_logits,
                  .replicas = options.layout.dp,
                  .threads = team->threads()});
      if (experts_move) need.steps += RankSum::SummandBytes(options.max_step_rows, own.hidden_size);
      if (options.admit_memory != nullptr) LYNX_RETURN_IF_ERROR(options.admit_memory(need));
      LYNX_ASSIGN_OR_RETURN(
          kv, kv::KvArena::Create(KvLayoutOf(own, options.kv_dtype), options.kv_blocks));
      return absl::OkStatus();
    };
    absl::StatusOr<ModelWeights> weights;
    // On a thread of its own: the team pins whoever calls it.
    std::thread([&] {
      weights = BindWeights(
          tensors, spec, shard, admit,
          {.team = team.get(), .progress = options.load_progress, .consumed = std::move(consumed)});
    }).join();
    LYNX_RETURN_IF_ERROR(weights.status());
    const auto first = FirstExperts(spec.experts, options.layout);
    const int32_t rank = options.ranks == nullptr ? 0 : options.ranks->rank();
    for (LayerWeights& layer : weights->layers) {
      if (!layer.feed_forward.is_moe()) continue;
      layer.feed_forward.table =
          ExpertTable(first, spec.experts, rank / options.layout.expert_tp());
    }
    return std::make_unique<CpuModelRunner>(options, std::move(spec), shard, std::move(team),
                                            *std::move(weights), identity, std::move(kv));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for steps of ",
                                                     options.max_step_rows, " rows and ",
                                                     options.max_step_logits, " logits rows"));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Load(const RunnerOptions& options) {
  LYNX_RETURN_IF_ERROR(CheckOptions(options));
  LYNX_ASSIGN_OR_RETURN(ModelSpec spec, LoadModelSpec(options.model_dir));
  LYNX_ASSIGN_OR_RETURN(SafetensorsFolder folder, SafetensorsFolder::Open(options.model_dir));
  if (!folder.unused_files().empty()) {
    spec.notes.push_back(absl::StrCat("weight files beside the model's own are not used: ",
                                      NameList(folder.unused_files())));
  }
  const std::string identity = WeightsIdentity(folder.tensors());
  const auto consumed = [&folder](std::span<const std::byte> data) { folder.Release(data); };
  if (options.device != nullptr) {
    return MakeOnDevice(options, std::move(spec), folder.tensors(), identity, consumed);
  }
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<CpuModelRunner> runner,
                        Make(options, std::move(spec), folder.tensors(), identity, consumed));
  if (options.layout.ep_spare > 0) LYNX_RETURN_IF_ERROR(runner->MoveExperts(std::move(folder)));
  return runner;
}

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(const RunnerOptions& options,
                                                                 ModelSpec spec,
                                                                 const TensorMap& tensors,
                                                                 std::string_view identity) {
  LYNX_RETURN_IF_ERROR(CheckOptions(options));
  LYNX_RETURN_IF_ERROR(CheckSpec(spec));
  if (options.device != nullptr) {
    return MakeOnDevice(options, std::move(spec), tensors, identity, nullptr);
  }
  return Make(options, std::move(spec), tensors, identity, nullptr);
}

}  // namespace lynx::model
