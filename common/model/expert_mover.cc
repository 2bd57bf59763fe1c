#include "common/model/expert_mover.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/model/weight_binder.h"
#include "kernels/core/thread_team.h"

namespace lynx::model {
namespace {

// For the step that makes the change before this one.
constexpr auto kPatience = std::chrono::seconds(60);

std::vector<int32_t> MoeLayers(const ModelSpec& spec) {
  std::vector<int32_t> layers;
  for (int32_t i = 0; i < spec.layers; ++i) {
    if (spec.feed_forward[static_cast<size_t>(i)] == FeedForwardKind::kMoe) layers.push_back(i);
  }
  return layers;
}

// Of the memory of slots and of what is staged, all of which is this process's to write.
std::byte* MemoryOf(const kernels::ExpertWeights& expert) {
  return static_cast<std::byte*>(const_cast<void*>(expert.gate_up.data));
}

bool Alike(const kernels::ExpertWeights& a, const kernels::ExpertWeights& b) {
  const auto alike = [](const kernels::Matrix& x, const kernels::Matrix& y) {
    return x.dtype == y.dtype && x.out == y.out && x.in == y.in;
  };
  return alike(a.gate_up, b.gate_up) && alike(a.down, b.down);
}

bool Holds(std::span<const int32_t> slots, int32_t expert) {
  return std::ranges::find(slots, expert) != slots.end();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertMover>> ExpertMover::Create(const ModelSpec& spec,
                                                                 const RankShard& shard,
                                                                 ModelWeights& weights,
                                                                 SafetensorsFolder files) {
  const std::vector<int32_t> layers = MoeLayers(spec);
  LYNX_CHECK(!layers.empty());
  const FeedForwardWeights& first =
      weights.layers[static_cast<size_t>(layers.front())].feed_forward;
  for (const int32_t layer : layers) {
    if (!Alike(weights.layers[static_cast<size_t>(layer)].feed_forward.experts.front(),
               first.experts.front())) {
      return absl::UnimplementedError(
          absl::StrCat("spare slots: experts of layer ", layer,
                       " are of another size or type than those of layer ", layers.front()));
    }
  }
  LYNX_ASSIGN_OR_RETURN(HugeBuffer staging,
                        HugeBuffer::Create(static_cast<size_t>(kMostNew * first.expert_bytes()),
                                           "experts that are about to come to this rank"));
  return std::unique_ptr<ExpertMover>(
      new ExpertMover(spec, shard, weights, std::move(files), std::move(staging)));
}

ExpertMover::ExpertMover(const ModelSpec& spec, const RankShard& shard, ModelWeights& weights,
                         SafetensorsFolder files, HugeBuffer staging)
    : spec_(spec),
      shard_(shard),
      weights_(weights),
      files_(std::move(files)),
      staging_(std::move(staging)),
      layers_(MoeLayers(spec)),
      first_slots_(weights.layers[static_cast<size_t>(layers_.front())].feed_forward.table.slots()),
      expert_bytes_(
          weights.layers[static_cast<size_t>(layers_.front())].feed_forward.expert_bytes()),
      part_(weights.layers[static_cast<size_t>(layers_.front())].feed_forward.table.part()),
      history_(spec.layers, spec.experts) {
  MutexLock lock(mu_);
  for (int64_t i = 0; i < kMostNew; ++i) free_.push_back(staging_.data() + i * expert_bytes_);
  held_.resize(static_cast<size_t>(spec.layers));
  for (const int32_t layer : layers_) held_[static_cast<size_t>(layer)] = shard.experts;
}

absl::Status ExpertMover::Check(const ExpertChange& change) const {
  const auto wrong = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("change ", change.id, " of experts: ", what...));
  };
  if (!Holds(layers_, change.layer)) return wrong("layer ", change.layer, " has none");
  if (change.slots.size() != first_slots_.size()) {
    return wrong(change.slots.size(), " parts of ", first_slots_.size());
  }
  std::vector<uint8_t> there(static_cast<size_t>(spec_.experts));
  for (size_t part = 0; part < change.slots.size(); ++part) {
    const std::vector<int32_t>& slots = change.slots[part];
    if (slots.size() != first_slots_[part].size()) {
      return wrong("part ", part, " has ", first_slots_[part].size(), " slots, not ", slots.size());
    }
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] < 0 || slots[i] >= spec_.experts) return wrong("there is no expert ", slots[i]);
      if (Holds(std::span(slots).first(i), slots[i])) {
        return wrong("expert ", slots[i], " is twice in part ", part);
      }
      there[static_cast<size_t>(slots[i])] = 1;
    }
  }
  const auto missing = std::ranges::find(there, 0);
  if (missing != there.end()) return wrong("expert ", missing - there.begin(), " is nowhere");
  return absl::OkStatus();
}

absl::Status ExpertMover::Stage(const ExpertChange& change) {
  LYNX_RETURN_IF_ERROR(Check(change));
  const FeedForwardWeights& layer = weights_.layers[static_cast<size_t>(change.layer)].feed_forward;
  const auto part = static_cast<size_t>(part_);
  std::vector<int32_t> wanted;
  std::vector<std::byte*> memory;
  {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    MutexLock lock(mu_);
    while (staged_.id != 0) {
      if (!emptied_.WaitUntil(mu_, deadline) && staged_.id != 0) {
        return absl::FailedPreconditionError(absl::StrCat(
            "change ", change.id, " of experts: change ", staged_.id, " is still to be made"));
      }
    }
    for (const int32_t expert : change.slots[part]) {
      if (!Holds(held_[static_cast<size_t>(change.layer)], expert)) wanted.push_back(expert);
    }
    memory = free_;
  }
  if (wanted.size() > memory.size()) {
    return absl::InvalidArgumentError(absl::StrCat("change ", change.id, " of experts brings ",
                                                   wanted.size(), " to part ", part, ", of ",
                                                   memory.size(), " at most"));
  }
  kernels::ThreadTeam alone(1);
  std::vector<Newcomer> newcomers;
  for (size_t i = 0; i < wanted.size(); ++i) {
    LYNX_ASSIGN_OR_RETURN(
        kernels::ExpertWeights packed,
        BindExpert(
            files_.tensors(), spec_, shard_, change.layer, wanted[i], memory[i],
            [this](std::span<const std::byte> data) { return files_.CheckReadable(data); },
            {.team = &alone,
             .progress = nullptr,
             .consumed = [this](std::span<const std::byte> data) { files_.Release(data); }}));
    layer.SetBiases(wanted[i], packed);
    newcomers.push_back({wanted[i], packed});
  }
  MutexLock lock(mu_);
  staged_ = change;
  newcomers_ = std::move(newcomers);
  return absl::OkStatus();
}

void ExpertMover::Drop() {
  MutexLock lock(mu_);
  Clear();
}

void ExpertMover::Clear() {
  staged_ = {};
  newcomers_.clear();
  emptied_.NotifyAll();
}

absl::Status ExpertMover::Commit(uint32_t id) {
  MutexLock lock(mu_);
  if (staged_.id != id || id == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "change ", id, " of experts is to be made, and ", staged_.id, " was prepared"));
  }
  FeedForwardWeights& layer = weights_.layers[static_cast<size_t>(staged_.layer)].feed_forward;
  const std::vector<int32_t>& slots = staged_.slots[static_cast<size_t>(part_)];
  std::vector<kernels::ExpertWeights> experts;
  for (const int32_t expert : slots) {
    const int32_t slot = layer.table.slot_of(expert);
    experts.push_back(slot >= 0
                          ? layer.experts[static_cast<size_t>(slot)]
                          : std::ranges::find(newcomers_, expert, &Newcomer::expert)->weights);
  }
  for (const Newcomer& newcomer : newcomers_) std::erase(free_, MemoryOf(newcomer.weights));
  for (size_t slot = 0; slot < layer.experts.size(); ++slot) {
    if (!Holds(slots, layer.table.held()[slot])) free_.push_back(MemoryOf(layer.experts[slot]));
  }
  layer.experts = std::move(experts);
  held_[static_cast<size_t>(staged_.layer)] = slots;
  layer.table = ExpertTable(std::move(staged_.slots), spec_.experts, part_);
  Clear();
  return absl::OkStatus();
}

}  // namespace lynx::model
