#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/model/row_source.h"
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

  // What they read stays until Pack() returns. Gate and up are of one shape and type.
  kernels::Matrix Add(RowSource rows);
  // The gate_up of ExpertWeights.
  kernels::Matrix AddGateUp(RowSource gate, RowSource up);

  int64_t bytes() const { return bytes_; }
  // What Pack() will read, part for part.
  std::vector<std::span<const std::byte>> Sources() const;
  bool only_counts() const { return memory_ == nullptr; }

  // Packs what was added, one matrix after the other, each by all threads of the team in the ranges
  // in which they will stream it: its pages come to their NUMA nodes.
  void Pack(const PackOptions& options) const;

 private:
  struct Job {
    std::byte* to;
    kernels::Matrix matrix;  // Packed.
    RowSource rows;          // The gate's, where there is `up`.
    RowSource up;
  };
  kernels::Matrix Place(Job job);
  static void PackJob(const Job& job, const PackOptions& options);

  std::byte* const memory_;
  int64_t bytes_ = 0;
  std::vector<Job> jobs_;
};

}  // namespace lynx::model
