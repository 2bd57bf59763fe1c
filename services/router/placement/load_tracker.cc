#include "services/router/placement/load_tracker.h"

#include <algorithm>

#include "common/proto/step_time_wire.h"

namespace lynx::router {
namespace {

// What a node may say of its load; sums with it stay far from overflow. A broken node that counts
// below zero does not look better than an idle one.
constexpr int64_t kMaxLoad = int64_t{1} << 40;

int64_t Told(int64_t count) { return std::clamp<int64_t>(count, 0, kMaxLoad); }

}  // namespace

void LoadTracker::Reserving(NodeId node, int64_t blocks) {
  Load& load = nodes_[node];
  load.reserving_blocks += blocks;
  ++load.sequences;
  ++load.sequences_since;
}

void LoadTracker::Granted(NodeId node, int64_t blocks) {
  auto it = nodes_.find(node);
  if (it == nodes_.end()) return;
  it->second.reserving_blocks -= blocks;
  it->second.granted_blocks_since += blocks;
}

void LoadTracker::Released(NodeId node, int64_t blocks, bool granted) {
  auto it = nodes_.find(node);
  if (it == nodes_.end()) return;
  Load& load = it->second;
  if (granted) {
    // Granted before the last heartbeat: the heartbeat's own count still holds them.
    load.granted_blocks_since = std::max<int64_t>(load.granted_blocks_since - blocks, 0);
  } else {
    load.reserving_blocks -= blocks;
  }
  --load.sequences;
  load.sequences_since = std::min(load.sequences_since, load.sequences);
  DropIfIdle(node);
}

void LoadTracker::PromptSent(NodeId node, int64_t tokens) {
  Load& load = nodes_[node];
  load.prompt_tokens += tokens;
  load.prompt_tokens_since += tokens;
  ++load.prompts;
}

void LoadTracker::PromptDone(NodeId node, int64_t tokens) {
  auto it = nodes_.find(node);
  if (it == nodes_.end()) return;
  Load& load = it->second;
  load.prompt_tokens -= tokens;
  load.prompt_tokens_since = std::min(load.prompt_tokens_since, load.prompt_tokens);
  --load.prompts;
  DropIfIdle(node);
}

void LoadTracker::OnStatus(NodeId node) {
  auto it = nodes_.find(node);
  if (it == nodes_.end()) return;
  it->second.granted_blocks_since = 0;
  it->second.sequences_since = 0;
  it->second.prompt_tokens_since = 0;
}

void LoadTracker::OnGone(NodeId node) { nodes_.erase(node); }

DecodeCandidate LoadTracker::Decode(const Member& member) const {
  const proto::NodeStatus& status = member.status;
  DecodeCandidate candidate{member.id, status.kv_blocks_free(),
                            Told(status.running_sequences()) + Told(status.waiting_sequences()),
                            StepTimeFromWire(status.step_time())};
  candidate.prompt_rows = status.prompt_rows();
  candidate.remaps = status.remaps();
  if (status.kv_blocks_sequence() > 0) candidate.most_blocks = status.kv_blocks_free_sequence();
  candidate.queued_tokens = Queued(member);
  auto it = nodes_.find(member.id);
  if (it == nodes_.end()) return candidate;
  const Load& load = it->second;
  candidate.free_blocks -= load.reserving_blocks + load.granted_blocks_since;
  candidate.load = std::max(candidate.load + load.sequences_since, load.sequences);
  return candidate;
}

PrefillCandidate LoadTracker::Prefill(const Member& member) const {
  return {member.id, Queued(member), StepTimeFromWire(member.status.step_time())};
}

int64_t LoadTracker::Queued(const Member& member) const {
  const int64_t told = Told(member.status.queued_prompt_tokens());
  auto it = nodes_.find(member.id);
  if (it == nodes_.end()) return told;
  // Our own unanswered prompts are there whatever the heartbeat says.
  return std::max(told + it->second.prompt_tokens_since, it->second.prompt_tokens);
}

void LoadTracker::DropIfIdle(NodeId node) {
  auto it = nodes_.find(node);
  if (it->second.sequences == 0 && it->second.prompts == 0) nodes_.erase(it);
}

}  // namespace lynx::router
