#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "kernels/core/thread_team.h"
#include "kernels/gemm/packed_matrix.h"
#include "kernels/moe/expert_weights.h"

namespace lynx::model {

struct PackOptions {
  kernels::ThreadTeam* team = nullptr;  // Not null.
  // Both may be empty; called on the packing thread after each matrix: how many of how many packed
  // bytes are done, and which row-major memory is not read again.
  std::function<void(int64_t done, int64_t total)> progress;
  std::function<void(std::span<const std::byte>)> consumed;
};

// Lays packed matrices out one after the other, first, and packs them, later: so that the memory of
// a whole model is one piece, and everything that can be wrong with a model is known before the
// long work begins.
//
// Used once without memory, to learn how much it takes, and again, by the same calls, with it.
class WeightPacker {
 public:
  // `memory` is 64-byte aligned, holds bytes() of all the calls to come, and outlives the matrices;
  // null only counts.
  explicit WeightPacker(std::byte* memory) : memory_(memory) {}

  // From row-major weights [out, in], which stay until Pack() returns.
  kernels::Matrix Add(const std::byte* rows, DType dtype, int64_t out, int64_t in);
  // The gate_up of ExpertWeights, from `gate` and `up` [intermediate, hidden].
  kernels::Matrix AddGateUp(const std::byte* gate, const std::byte* up, DType dtype,
                            int64_t intermediate, int64_t hidden);

  int64_t bytes() const { return bytes_; }

  // Packs what was added, one matrix after the other, each by all threads of the team in the ranges
  // in which they will stream it: its pages come to their NUMA nodes.
  void Pack(const PackOptions& options) const;

 private:
  struct Job {
    std::byte* to;
    kernels::Matrix matrix;  // Packed.
    const std::byte* rows;   // The gate's, where there is `up`.
    const std::byte* up;
    int64_t source_rows;  // Of `rows`, and of `up`.
  };
  kernels::Matrix Place(Job job);
  static void PackJob(const Job& job, const PackOptions& options);

  std::byte* const memory_;
  int64_t bytes_ = 0;
  std::vector<Job> jobs_;
};

}  // namespace lynx::model
