#pragma once

#include <cstdint>
#include <map>

#include "services/router/membership/node_table.h"
#include "services/router/placement/placement_policy.h"

namespace lynx::router {

// What this router knows of each node's load beyond the node's last heartbeat: a heartbeat is up to
// one interval old, and without the work sent since, every sequence of that interval would go to
// the same node.
//
// Each node's numbers start at zero and return to zero with its last sequence. Not thread-safe.
class LoadTracker {
 public:
  // A decode node was asked for `blocks` and has not answered; it granted them; or the sequence no
  // longer counts there.
  void Reserving(NodeId node, int64_t blocks);
  void Granted(NodeId node, int64_t blocks);
  // `granted`: whether Granted was called for it.
  void Released(NodeId node, int64_t blocks, bool granted);

  // A node was sent a prompt of `tokens`; it has answered, or will not.
  void PromptSent(NodeId node, int64_t tokens);
  void PromptDone(NodeId node, int64_t tokens);

  // A heartbeat tells more than our guesses: forget what it includes by now.
  void OnStatus(NodeId node);
  void OnGone(NodeId node);

  DecodeCandidate Decode(const Member& member) const;
  PrefillCandidate Prefill(const Member& member) const;

  bool empty() const { return nodes_.empty(); }

 private:
  struct Load {
    int64_t reserving_blocks = 0;      // Asked for, unanswered.
    int64_t granted_blocks_since = 0;  // Granted since the last heartbeat.
    int64_t sequences = 0;             // Ours there now.
    int64_t sequences_since = 0;       // Of these, sent since the last heartbeat.
    int64_t prompt_tokens = 0;         // Ours there, unanswered.
    int64_t prompt_tokens_since = 0;   // Sent since the last heartbeat.
    int64_t prompts = 0;
  };
  void DropIfIdle(NodeId node);
  int64_t Queued(const Member& member) const;  // Prompt tokens.

  std::map<NodeId, Load> nodes_;
};

}  // namespace lynx::router
