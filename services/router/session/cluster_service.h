#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "common/concurrency/event_loop.h"
#include "common/kv/prefix_hash.h"
#include "services/router/admission/admission_queue.h"
#include "services/router/membership/class_pairs.h"
#include "services/router/membership/node_registry.h"
#include "services/router/placement/load_tracker.h"
#include "services/router/placement/placement_policy.h"
#include "services/router/placement/prefix_index.h"
#include "services/router/session/node_breakers.h"
#include "services/router/session/release_watch.h"
#include "services/router/session/retry_budget.h"
#include "services/router/session/sequence_service.h"
#include "services/router/session/sequence_session.h"
#include "services/router/session/session_metrics.h"

namespace lynx::router {

// SequenceService over a cluster of nodes: carries out what SequenceSession decides. Owns the
// sequences, their place in the queue, what they are charged to which node, and one timer.
//
// What a node says of a sequence this router no longer knows is counted and answered with Cancel,
// so that a lost Cancel does not leave blocks held.
class ClusterService final : public SequenceService, public NodeRegistry::Listener {
 public:
  struct Options {
    SequenceSession::Options session = {};
    AdmissionQueue::Options admission = {};
    RetryBudget::Options retries = {};
    NodeBreakers::Options breakers = {};
    absl::Duration grant_lease = absl::Seconds(30);  // Asked of decode for the hand-off to begin.
    absl::Duration max_duration = absl::Hours(1);    // Of a sequence, whatever its own deadline.
    // What sequences are to keep, for the placement policy; infinite: no limit.
    absl::Duration slo_ttft = absl::InfiniteDuration();  // From arrival to the first token.
    absl::Duration slo_tpot = absl::InfiniteDuration();  // Per further token.
    // Refuse at once what is predicted to miss slo_ttft.
    bool refuse_late = false;
    // Sequences of this router that one node hands over at a time while it drains; 0: none, they
    // end there or are cut.
    int max_moves = 16;
  };

  // `draw_id` gives random non-zero ids. The registry is started by Start below; the borrowed
  // objects outlive the service.
  ClusterService(Options options, EventLoop& loop, NodeRegistry& nodes,
                 std::unique_ptr<PlacementPolicy> policy, telemetry::Registry& metrics,
                 std::function<uint64_t()> draw_id);
  ~ClusterService() override;  // After Shutdown, or with nothing started.

  absl::StatusOr<SequenceId> Start(SequenceRequest request, SequenceSink& sink) override;
  void Cancel(SequenceId id) override;
  ClusterView View() const override;

  // From now on Start refuses and View is not ready; what runs goes on.
  void Drain();
  // Ends every sequence: cancels it on its nodes, and its sink hears Unavailable. Implies Drain.
  void Shutdown();

  // Sequences not ended yet.
  size_t size() const { return entries_.size(); }
  // True when nothing is left of any sequence: for tests.
  bool Idle() const;
  // Nothing waits without a deadline that is watched: for tests.
  bool Watched() const { return deadlines_.size() == entries_.size(); }

  void OnNodeGone(NodeId id, const std::string& why) override;
  void OnNodeStatus(NodeId id) override;
  void ListSequences(NodeId id, proto::Ping& ping) override;
  void OnNodeMessage(NodeId id, proto::Envelope& envelope) override;

 private:
  struct Entry {
    Entry(SequenceRequest request, const SequenceSession::Options& options, absl::Time now,
          SequenceSink& its_sink);
    SequenceSession session;
    // After each whole block of the prompt, and of what a retry found delivered, that leaves a
    // token.
    std::vector<kv::PrefixHash> prefix;
    SequenceSink& sink;
    const absl::Time arrived;
    AdmissionQueue::Ticket ticket;
    uint64_t wire_id = 0;                         // As in wires_.
    absl::Time watched = absl::InfiniteFuture();  // As in deadlines_; infinite: not in it.
    NodeId listed_at = 0;                         // As in at_decode_, with wire_id.
    NodeId charged_decode = 0;                    // As in loads_.
    int64_t charged_blocks = 0;
    bool charged_as_granted = false;
    NodeId charged_prefill = 0;
    int64_t charged_tokens = 0;
    // If it is exact: numeric classes of the pair that it is in, and in which it must stay once
    // tokens were delivered.
    std::optional<ClassNames> classes;
    absl::Time not_before = absl::InfinitePast();  // In the queue; after a retry.
    int measured = 0;            // Stages of this attempt: 1 to the first token, 2 to the second.
    uint64_t other_wire_id = 0;  // As in wires_.
    int failed_moves = 0;        // Since it was placed, or moved.
    absl::Time move_not_before = absl::InfinitePast();
    bool no_move_told = false;  // That no node could take it; since its last move.
  };
  using Effects = SequenceSession::Effects;

  // Back in the queue, but not to be placed at once.
  void Delay(Entry& entry);

  // Carries out `effects`; may call the sink, which may call anything here. `id` may be gone after.
  void Apply(SequenceId id, Effects effects) { Apply(id, *entries_.at(id), std::move(effects)); }
  void Apply(SequenceId id, Entry& entry, Effects effects);
  void PlacePrefill(SequenceId id);
  // Has a node that drains hand its sequences over, as many as may move at a time.
  void MoveAway(NodeId node);
  // Asks another node for room; false: there is none.
  bool TryMove(SequenceId id, Entry& entry, const Member& from);
  void AskHandOff(SequenceId id);
  // What the decode node that granted room has besides this sequence.
  DecodeCandidate Granted(const Member& decode, const Entry& entry) const;
  // Whether it may compute the prompt; null: it is gone.
  bool MayPrefillLocally(const Entry& entry, const Member* decode) const;
  PlacementRequest Placement(const Entry& entry) const;
  // From now to the first token of a sequence that came now, as far as nodes have told enough.
  absl::Duration PredictedTtft(const Entry& entry) const;
  // Ends one for whom the queue has no place any more.
  void Displace(SequenceId id);
  DecodeCandidate Decode(const Member& member, const Entry& entry) const;
  PrefillCandidate Prefill(const Member& member, const Entry& entry) const;
  // Dispatches from the queue while there is room; never calls a sink.
  void Pump();
  void SchedulePump();
  // Places the sequence on some decode node: true. Otherwise `can_wait` tells whether it would fit
  // one of the ready pairs when they are less busy.
  bool TryDispatch(SequenceId id, Entry& entry, bool& can_wait);
  // Whether the node could hold its part of the sequence if it had nothing else.
  bool Fits(const Member& node, const SequenceSession& session) const;
  std::vector<ClassPair> Pairs(const SequenceSession& session) const;  // In which it fits.
  // Where it goes if it is exact; null: there is none now.
  static const ClassPair* Home(const std::vector<ClassPair>& pairs, const Entry& entry);
  absl::Status NotPlaced(const Entry& entry, absl::Duration waited, Rejection& rejection) const;
  absl::Status TooLarge(const SequenceRequest& request) const;

  template <typename Handle>
  void OnSequence(NodeId from, uint64_t wire_id, bool cancel_unknown, Handle handle);
  void SendCancel(NodeId node, uint64_t wire_id, const char* reason);
  // Brings wires_, at_decode_, loads_ and deadlines_ in line with the session.
  void Settle(SequenceId id, Entry& entry);
  void Watch(SequenceId id, Entry& entry);
  void Forget(SequenceId id);
  void Measure(Entry& entry);
  void OnTimer();
  void ArmTimer();
  void UpdateGauges();

  const Options options_;
  EventLoop& loop_;
  NodeRegistry& nodes_;
  const std::unique_ptr<PlacementPolicy> policy_;
  SessionMetrics metrics_;
  const std::function<uint64_t()> draw_id_;
  AdmissionQueue admission_;
  RetryBudget retries_;
  NodeBreakers breakers_;
  LoadTracker loads_;
  PrefixIndex prefixes_;
  // Lately, as PlacementRequest has them.
  double answer_tokens_ = PlacementRequest().answer_tokens;
  absl::Duration transfer_per_token_ = absl::ZeroDuration();
  ReleaseWatch releases_;
  std::unordered_map<SequenceId, std::unique_ptr<Entry>> entries_;
  std::unordered_map<uint64_t, std::pair<SequenceId, Entry*>> wires_;
  std::unordered_map<NodeId, absl::btree_set<uint64_t>> at_decode_;  // Wire ids, for heartbeats.
  std::set<std::pair<absl::Time, SequenceId>> deadlines_;
  // Nodes that refused work for now: asked again after their next heartbeat, or when a sequence of
  // ours leaves them.
  std::set<NodeId> resting_;
  bool draining_ = false;
  bool pump_scheduled_ = false;
  TimerId timer_ = 0;
  absl::Time timer_due_ = absl::InfiniteFuture();
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // For posted tasks.
};

}  // namespace lynx::router
