#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/collective/communicator.h"

namespace lynx::model {

// Adds up what each rank contributes to the residual stream of its rows, which all ranks (of a
// replica of attention, where there are several) hold alike. A single rank writes to it directly.
// One call at a time.
class RankSum {
 public:
  // `ranks` may be null: there is one; outlives this. `of_replica`: they are those of one replica
  // of several. `order_free`: BeginSummands() will be used, which is not of a replica.
  RankSum(collective::Communicator* ranks, bool of_replica, int64_t max_rows, int64_t hidden,
          bool order_free);

  // What `order_free` takes beyond.
  static int64_t SummandBytes(int64_t max_rows, int64_t hidden) {
    return (max_rows * hidden + 1) * static_cast<int64_t>(sizeof(double));
  }

  bool alone() const { return ranks_ == nullptr; }
  // Contributes what is to be added once.
  bool first() const { return alone() || ranks_->rank() == 0; }

  // Where this rank adds its part of `rows` rows: `hidden` itself, or zeros.
  float* Begin(float* hidden, int64_t rows);
  // Adds what all ranks wrote there to `hidden`. Fails as the communicator does.
  //   Cancelled  a rank has called Abandon(), before its part of this sum: all ranks return this.
  //              Not of a replica: the others have to hear of it first.
  absl::Status End(float* hidden, int64_t rows);

  // Where ranks take turns in what they add: between Begin() and EndSummands(), which takes the
  // place of End(), this rank adds that by kernels::ToSummand() to what this returns, zeros [rows,
  // hidden]; what is its own in any case, to Begin()'s. Then `hidden` has the same bits whichever
  // rank added what. Not alone.
  double* BeginSummands(int64_t rows);
  absl::Status EndSummands(float* hidden, int64_t rows);

  // Makes the next of both fail on all ranks; costs no message of its own.
  void Abandon() { abandon_ = true; }
  // Of a replica: whether any of its ranks wants that, by the sums made since.
  bool TakeAbandoned() { return std::exchange(abandon_, false); }

  // Of other values, in place.
  absl::Status Add(std::span<float> values);

 private:
  collective::Communicator* const ranks_;
  const bool of_replica_;
  const int64_t width_;
  // [max_rows, width], and behind the rows in use one value more: whether to go on. Empty for a
  // single rank.
  std::vector<float> part_;
  std::vector<double> summands_;  // The same; empty without.
  bool abandon_ = false;
};

}  // namespace lynx::model
