#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/collective/exchange_communicator.h"
#include "common/collective/rendezvous.h"

namespace lynx::collective {

// Ranks that are processes, on one host or several, over TCP (Gloo). A thread of Gloo's own moves
// the bytes. A rank that dies is noticed at once by those that wait for it; one that stands still,
// or is cut off, when the timeout has passed. So is an Abort() by ranks that wait for a third one:
// who wants all to end at once has each of them abort, as RankGroup tells them to.
class GlooCommunicator final : public ExchangeCommunicator {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::string address = "127.0.0.1";  // Of this host, as the other ranks reach it.
    absl::Duration connect_timeout = absl::Seconds(60);  // For all ranks to come.
    absl::Duration timeout = absl::Seconds(2);           // Of each call.
  };
  // Connects to all others, which do the same. Blocks. Makes the process ignore SIGPIPE.
  //   InvalidArgument   an address that is none of this host's; rank or size out of range.
  //   AlreadyExists     another process is this rank.
  //   DeadlineExceeded  ranks that did not come in time; names them.
  //   Unavailable       a connection failed.
  static absl::StatusOr<std::unique_ptr<GlooCommunicator>> Connect(const Options& options,
                                                                   Rendezvous& rendezvous);
  ~GlooCommunicator() override;

 private:
  struct Impl;
  GlooCommunicator(const Options& options, std::unique_ptr<Impl> impl);

  absl::Status Exchange(std::span<const std::byte> out, std::span<const Part> to,
                        std::span<std::byte> in, std::span<const Part> from) override;
  void Interrupt() override;

  const absl::Duration timeout_;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace lynx::collective
