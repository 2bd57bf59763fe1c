#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace lynx::collective {

// What the ranks of one node say to each other within a step: every rank has one communicator of
// the group and makes the same calls in the same order, with sizes that fit.
//
// A call returns once this rank's part is done. It fails with
//   InvalidArgument    sizes that do not fit together.
//   DeadlineExceeded   some rank took no part within the group's timeout; the message names it.
//   Unavailable        a rank is gone; the message names it where that is known.
//   whatever Abort() was given.
// After a failure the group is of no more use: this and every other rank's calls fail, those that
// wait return, and each later call here fails at once with the first status. What a failed call was
// to fill holds anything. The node starts over with new ranks.
//
// One thread at a time calls; Abort() any thread, at any time. No call waits without end.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // [0, size)
  virtual int size() const = 0;

  // values[i] becomes the sum of all ranks' values[i], added in the order of ranks. So its bits
  // depend on these summands alone, not on how many values share the call: a row's result is the
  // same alone or in a batch.
  virtual absl::Status AllReduceSum(std::span<float> values) = 0;

  virtual absl::Status AllReduceSum(std::span<double> values) = 0;

  // The same sum of this rank's part only: `mine` is part rank() of size() equal parts of `values`.
  virtual absl::Status ReduceScatterSum(std::span<const float> values, std::span<float> mine) = 0;

  // all: size() equal parts, of which part r is `mine` of rank r.
  virtual absl::Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  // Rank r gets send_bytes[r] bytes, the parts lying in `send` one after the other; `received` is
  // filled likewise. Each rank knows what it will be sent: received_bytes[r] equals rank r's
  // send_bytes[rank()].
  virtual absl::Status AllToAll(std::span<const std::byte> send,
                                std::span<const int64_t> send_bytes, std::span<std::byte> received,
                                std::span<const int64_t> received_bytes) = 0;

  // Every rank's `data` becomes that of `root`.
  virtual absl::Status Broadcast(std::span<std::byte> data, int root) = 0;

  // Returns once every rank has called it.
  virtual absl::Status Barrier() = 0;

  // The calls of `members` alone, ascending ranks of this group with this one among them; there
  // each has its place in `members` for its rank. Ranks outside neither take part nor are waited
  // for. Members make the same calls of the two in the same order. It is this group that fails: a
  // failure or Abort() of either is that of both, and messages name ranks of this one. Not to
  // outlive it.
  virtual std::unique_ptr<Communicator> Subgroup(std::vector<int> members) = 0;

  // Ends the group: this rank's running call and all later ones fail with `why`, the other ranks'
  // with Unavailable. The first status counts.
  virtual void Abort(absl::Status why) = 0;
};

}  // namespace lynx::collective
