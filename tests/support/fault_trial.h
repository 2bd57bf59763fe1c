#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tests/support/fault_script.h"
#include "tests/support/sim_cluster.h"

namespace lynx::testing {

struct FaultTrial {
  int prefill = 2;
  int decode = 2;
  int32_t prompt_rows = 0;  // Of decode nodes; 0: they take no prompts.
  int32_t kv_blocks = 48;
  // Prefill and decode are of two numeric classes; what is preempted is copied.
  bool unlike = false;
};

struct FaultResult {
  // The invariant that broke, and when; nothing: all held.
  std::optional<std::string> broken;
  int finished = 0;  // Answers that were whole.
  int resumed = 0;   // Went on after tokens were delivered, ...
  int retried = 0;   // ... or began anew, as often.
  int moved = 0;     // Went on at another decode node, with their KV.
};

// Runs `script` on a simulated cluster, then heals everything and waits for rest. Whatever
// happened:
//
//   at any time    what a client has is the beginning of the answer that the model gives alone, and
//                  every sequence in the router has a deadline
//   in the end     every client that stayed has its whole answer, once; a client that left hears
//                  nothing more; no node and no router holds anything; and the cluster serves
//
// That a block has one owner shows in the answers: the model's tokens are a hash of the KV that it
// reads. Requests may be tried without bound here: bounds have tests of their own.
FaultResult RunFaults(const FaultTrial& trial, const FaultScript& script);

}  // namespace lynx::testing
