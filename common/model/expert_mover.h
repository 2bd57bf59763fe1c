#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/huge_buffer.h"
#include "common/base/mutex.h"
#include "common/model/model_spec.h"
#include "common/model/model_weights.h"
#include "common/model/safetensors.h"
#include "common/model/shard_plan.h"
#include "common/moe/expert_history.h"
#include "common/moe/slot_change.h"

namespace lynx::model {

// What a layer's experts are to become.
struct ExpertChange {
  uint32_t id = 0;  // > 0
  int32_t layer = 0;
  moe::ExpertSlots slots = {};  // As many of each part as before.
};

// Changes which experts a rank holds while steps run. A change is staged, by a thread of its own
// that reads what this rank lacks from the model's files and packs it as the start did, into memory
// beside that of the slots; and committed between two steps, which exchanges pointers: the memory
// of what went is where the next change is staged. One change at a time.
//
// Every rank stages and commits the same changes, before the same steps.
class ExpertMover {
 public:
  // Experts that one change may bring to a rank: what is staged, and so the memory beside the
  // slots.
  static constexpr int32_t kMostNew = 2;

  // `weights` outlive this and are changed by Commit() alone. `files` hold them.
  //   Unimplemented      experts of two layers differ in size or type.
  //   ResourceExhausted  no memory to stage in.
  static absl::StatusOr<std::unique_ptr<ExpertMover>> Create(const ModelSpec& spec,
                                                             const RankShard& shard,
                                                             ModelWeights& weights,
                                                             SafetensorsFolder files);

  // Not on the stepping thread. Waits until what was staged before is committed or dropped.
  //   InvalidArgument     `change` does not fit this model, or brings too many experts; says how.
  //   DataLoss            a file cannot be read any more, or was written to; names it.
  //   FailedPrecondition  the change before this one still waits for a step.
  absl::Status Stage(const ExpertChange& change) LYNX_EXCLUDES(mu_);
  // The staged change is not to be.
  void Drop() LYNX_EXCLUDES(mu_);
  // On the stepping thread, between steps. FailedPrecondition: that change is not staged.
  absl::Status Commit(uint32_t id) LYNX_EXCLUDES(mu_);

  const moe::ExpertSlots& first_slots() const { return first_slots_; }
  std::span<const int32_t> layers() const { return layers_; }  // Those with experts.
  int32_t experts() const { return spec_.experts; }
  int64_t expert_bytes() const { return expert_bytes_; }  // Of one, of this rank's columns.
  moe::ExpertHistory& history() { return history_; }

 private:
  // An expert that this rank gets, packed.
  struct Newcomer {
    int32_t expert = 0;
    kernels::ExpertWeights weights;
  };
  ExpertMover(const ModelSpec& spec, const RankShard& shard, ModelWeights& weights,
              SafetensorsFolder files, HugeBuffer staging);
  absl::Status Check(const ExpertChange& change) const;
  void Clear() LYNX_REQUIRES(mu_);

  const ModelSpec& spec_;
  const RankShard shard_;
  ModelWeights& weights_;
  const SafetensorsFolder files_;
  const HugeBuffer staging_;
  const std::vector<int32_t> layers_;
  const moe::ExpertSlots first_slots_;
  const int64_t expert_bytes_;
  const int32_t part_;  // This rank's.
  moe::ExpertHistory history_;
  Mutex mu_;
  CondVar emptied_;  // Nothing is staged.
  // Where nothing is held: kMostNew, in which only Stage() writes.
  std::vector<std::byte*> free_ LYNX_GUARDED_BY(mu_);
  ExpertChange staged_ LYNX_GUARDED_BY(mu_);  // Id 0: none.
  std::vector<Newcomer> newcomers_ LYNX_GUARDED_BY(mu_);
  // By layer, which experts are where: tables are the stepping thread's.
  std::vector<std::vector<int32_t>> held_ LYNX_GUARDED_BY(mu_);
};

}  // namespace lynx::model
