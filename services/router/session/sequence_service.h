#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/dtype.h"
#include "common/base/fair_share.h"
#include "common/proto/control.pb.h"

namespace lynx::router {

using SequenceId = uint64_t;

// One stream of tokens to generate. Text does not exist at this level.
struct SequenceRequest {
  std::vector<TokenId> prompt;     // Not empty; every id in the vocabulary.
  proto::SamplingParams sampling;  // Complete and checked.
  absl::Time deadline = absl::InfiniteFuture();
  std::string request_id = {};     // For logs only.
  proto::RequestNames names = {};  // For logs of nodes.
  std::string cache_salt = {};     // Shares KV with prompts of the same salt only.
  int32_t priority = 0;            // Lower goes first, wherever there is a queue.
  TenantId tenant = 0;             // Those of one priority share fairly.
};

// How a sequence ended.
struct SequenceEnd {
  // OK: finished; finish_reason says why. Otherwise what the client should hear:
  //   ResourceExhausted  no room before the deadline (429)      Unavailable  no node (503)
  //   OutOfRange         can never fit in this cluster (413)    DeadlineExceeded (504)
  //   anything else      the cluster failed (500)
  absl::Status status;
  proto::Terminal::FinishReason finish_reason = proto::Terminal::FINISH_REASON_UNSPECIFIED;
  absl::Duration retry_after = absl::Seconds(1);  // Hint for 429 and 503.
  bool work_begun = false;                        // Its prompt went to a node, if ever so long ago.
};

// Receives the events of one sequence, in order: at most one OnFirstToken, then any OnTokens and
// OnResumed, then exactly one OnEnd, after which the service no longer knows the sink. Called on
// the router's loop.
class SequenceSink {
 public:
  virtual ~SequenceSink() = default;
  virtual void OnFirstToken(const proto::FirstToken& first) = 0;
  virtual void OnTokens(std::span<const proto::Token* const> tokens) = 0;
  // The nodes that it was on are lost to it, and what follows comes of others, which have computed
  // again, exactly, what came before. Changes nothing for who does not care.
  virtual void OnResumed() {}
  virtual void OnEnd(const SequenceEnd& end) = 0;
};

// What the cluster looks like to a request.
struct ClusterView {
  bool ready = false;  // At least one compatible pair of ready nodes.
  std::string reason;  // When not ready, why; for /readyz and 503 messages.
};

// Runs sequences on the cluster: places them, drives the hand-off, survives what it can and reports
// the rest. The interface between the client-facing front and everything behind it; so the front is
// tested without a cluster.
//
// All calls and callbacks are on the router's EventLoop.
class SequenceService {
 public:
  virtual ~SequenceService() = default;

  // Takes the sequence in, or refuses at once:
  //   ResourceExhausted  queue full, or its first token would come too late (429)
  //   Unavailable        not ready, draining (503)
  //   OutOfRange         can never fit in this cluster's KV memory (413)
  // `sink` stays valid until its OnEnd or until Cancel returns. OnEnd is never called inside Start.
  virtual absl::StatusOr<SequenceId> Start(SequenceRequest request, SequenceSink& sink) = 0;

  // Stops the sequence; its sink hears nothing more, its blocks return on both sides. Unknown and
  // ended ids are ignored.
  virtual void Cancel(SequenceId id) = 0;

  virtual ClusterView View() const = 0;
};

}  // namespace lynx::router
