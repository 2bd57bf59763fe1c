#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/collective/rendezvous.h"

namespace lynx::collective {

// The processes of one node, held together by TCP: rank 0, the leader, listens and the others come
// to it. They find each other here before they can form a Communicator, the leader tells the others
// what to do next, and every rank learns of the loss of any other while nothing else is going on.
//
// A rank is lost when its connection closes, or when nothing was heard of it for
// Options::silence; a thread of the group's own sends a sign of life every few of those, so a rank
// that only computes for long is not lost. Whoever loses one fails, and with the leader all do.
//
// Plain TCP: for a network that the operator trusts. The leader stops listening when all are there.
//
// Thread-safe. No call waits without end.
class RankGroup {
 public:
  static constexpr size_t kMaxMessageBytes = size_t{256} << 20;
  static constexpr size_t kMaxIdentityBytes = 2048;

  struct Options {
    int rank = 0;
    int world = 1;
    // host:port that the leader listens at; of the leader itself port 0 picks a free one.
    std::string address;
    absl::Duration start_timeout = absl::Minutes(10);  // Of Join() and Reports(), from Create() on.
    absl::Duration silence = absl::Milliseconds(1500);
    // The group failed after Join(). Called once, on a thread of the group's own, which stays in
    // there; the group is not to be destroyed meanwhile.
    std::function<void(const absl::Status&)> on_lost = nullptr;
    // Somebody has used Tell(): which rank, and what. On a thread of the group's own, which it must
    // not hold up.
    std::function<void(int rank, std::string message)> on_told = nullptr;
    // Of the leader: somebody was not let in, or cannot be for want of file descriptors. As
    // on_lost, but called for each one that was told, and every few seconds for others.
    std::function<void(const absl::Status&)> on_refused = nullptr;
  };

  // The leader listens when this returns. No thread runs yet.
  //   InvalidArgument  rank, world or address.
  //   Unavailable      the address cannot be listened at.
  static absl::StatusOr<std::unique_ptr<RankGroup>> Create(const Options& options);
  // Leaves in good order.
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  // Where the leader listens, with the real port. The leader's only.
  std::string endpoint() const;

  // Waits for all ranks, once. A rank that the leader closes the connection of unread, as it does
  // when too many come at once, asks again.
  // `identity`: what must be alike on all of them, a line each for people to read; a refusal has
  // those that are not.
  // `check` is asked every now and then, its error ends the wait; it may be null.
  //   DeadlineExceeded    ranks that did not come in time, named; or the leader cannot be reached.
  //   InvalidArgument     the leader refuses this rank: its number, world or identity does not fit.
  //   AlreadyExists       another process is this rank.
  //   Unavailable         the leader was lost meanwhile.
  absl::Status Join(const std::string& identity, const std::function<absl::Status()>& check);

  // After Join().
  int rank() const;
  int world() const;
  // By which the other ranks reach this host.
  std::string host() const;
  // What one rank puts all get; for a communicator's Connect().
  Rendezvous& rendezvous();

  // The leader's: to all others, which Receive() it in order.
  absl::Status Send(std::string_view message);
  // The others': waits for the next message.
  //   Cancelled  the leader has left in good order.
  //   others     the group's failure.
  absl::StatusOr<std::string> Receive();

  // Of the leader to all others, of these to the leader, which hear of it by on_told, at once and
  // in order with what Send() sends.
  absl::Status Tell(std::string_view message);

  // The others': tells the leader, once.
  absl::Status Report(std::string_view text);
  // The leader's: waits until all others have; by rank, that of rank 0 is empty.
  //   DeadlineExceeded  names those that have not.
  absl::StatusOr<std::vector<std::string>> Reports();

  // Ends the group for all ranks with `why`, as the loss of this one would; on_lost is called here,
  // too. The first status counts.
  void Fail(const absl::Status& why);

  // Ends this rank's part, and with it the group: the others fail with `why`, or, if the leader
  // leaves with OK, end in good order. on_lost is not called here any more.
  void Leave(const absl::Status& why);

 private:
  class Impl;
  explicit RankGroup(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace lynx::collective
