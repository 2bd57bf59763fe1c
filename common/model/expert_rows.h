#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/collective/communicator.h"
#include "common/model/activation_buffer.h"
#include "common/model/rank_sum.h"
#include "common/model/shard_plan.h"
#include "common/moe/routing_plan.h"

namespace lynx::model {

// How the rows of a step come to the routed experts of this rank, and their results back, in two
// forms:
//   - one replica of attention: every rank has every row, and the sum of its RankSum takes back
//   what
//     each has computed. Nothing is sent here.
//   - several: a rank has its replica's rows. It dispatches each once to every rank that computes
//     one of its experts, and combines what comes back, both by all-to-all with sizes that follow
//     from the plan.
// Ranks of one place in their replicas are peers, and only they exchange: what rank q computes of a
// row is asked for by the one rank of the row's replica that is q's peer, which adds up the results
// of all its peers, in the order of ranks. The replica's RankSum adds up those of its ranks. So
// each row goes to each rank once, the ranks of a replica share in it, and the bits of a row's
// result depend on the row and its part of the plan alone: neither on other rows nor on its
// replica.
//
// For each layer with experts in this order: Gather, Dispatch, Combine; for each other one Agree.
// Every rank makes the same calls, those of a replica without rows, too. Each fails as Communicator
// does. One call at a time. No allocation after the constructor.
class ExpertRows {
 public:
  virtual ~ExpertRows() = default;

  struct Sizes {
    int64_t max_rows = 0;  // Of each replica.
    int64_t hidden = 0;
    int64_t experts = 0;
    DType dtype = DType::kF32;  // Of rows that experts take.
  };
  // `peers` are this rank and its peers, in order, or null: there is one replica. Outlives this.
  static std::unique_ptr<ExpertRows> Make(collective::Communicator* peers,
                                          const ParallelLayout& layout, int32_t rank,
                                          const Sizes& sizes);

  // Of the step that begins: rows of every replica. The rows of its plans are those of replica 0,
  // then those of replica 1, ...
  virtual void Begin(std::span<const int64_t> rows) = 0;

  // All replicas learn whether a rank wants to abandon the step (RankSum).
  //   Cancelled  one does; all ranks return this.
  virtual absl::Status Agree(RankSum& sum) = 0;

  // From router logits of this rank's rows to those of all, [rows of the step, experts], with the
  // same bits on every rank. Agrees as well. Valid until the next Gather.
  virtual absl::StatusOr<std::span<float>> Gather(std::span<float> own, RankSum& sum) = 0;

  // Rows that this rank computes experts of.
  struct Taken {
    bool all = false;               // All rows of the plan, and `rows` is empty.
    std::span<const int32_t> rows;  // Of the plan, ascending.
    const void* x = nullptr;        // [rows, hidden], as in an ActivationBuffer.
    float* y = nullptr;             // [rows, hidden]: what they add their results to.
  };
  // `x`: this rank's rows. part_of: [experts], the part of ParallelLayout::ep that computes each
  // expert in this plan. `y` [this rank's rows, hidden] is given to Combine, too. Valid until the
  // next Dispatch.
  virtual absl::StatusOr<Taken> Dispatch(ActivationBuffer& x, const moe::RoutingPlan& plan,
                                         std::span<const int32_t> part_of, float* y) = 0;

  // Adds what experts have made of this rank's rows to `y`.
  virtual absl::Status Combine(float* y) = 0;
};

}  // namespace lynx::model
