#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/proto/control.pb.h"

namespace lynx::router {

// Names one life of one node as this router saw it: a node that restarts, or that was given up and
// returns, gets a new id. Never 0, never reused, so whatever still holds an old id can only miss.
using NodeId = uint64_t;

enum class MemberState : uint8_t {
  kGone,      // Configured, but nobody answers there now.
  kLoading,   // Answers; not ready yet.
  kReady,     // May be given work.
  kSuspect,   // Was ready and missed heartbeats: no new work, its sequences wait.
  kDraining,  // Finishes what it has.
  kRefused,   // Answers, but must not serve this router; Member::detail says why.
};
inline constexpr int kMemberStates = 6;
const char* Name(MemberState state);
const char* Name(proto::Role role);

// What is known of one endpoint.
struct Member {
  std::string endpoint;
  proto::Role role = proto::ROLE_UNSPECIFIED;  // As configured.
  MemberState state = MemberState::kGone;
  NodeId id = 0;  // Of the node that answers there; 0 when gone.
  Incarnation incarnation = 0;
  proto::NodeStatus status;  // Last one heard; meaningful while id != 0.
  absl::Time last_heard = absl::InfinitePast();
  // When its connection broke, if nothing was heard since.
  absl::Time disconnected = absl::InfiniteFuture();
  std::string detail;  // Why gone or refused; for people.
};

// Which nodes there are and what may be asked of them. Pure bookkeeping: it is told what arrived
// and what time it is, and says what changed; connections and timers are NodeRegistry's.
//
// One endpoint is in exactly one state. One incarnation is a member at one endpoint at most: a
// second endpoint that leads to the same process (two names, two address families) is an alias and
// stays kGone, so that no node is counted twice.
//
// Not thread-safe.
class NodeTable {
 public:
  struct Options {
    absl::Duration suspect_after = absl::Milliseconds(1500);  // Since last heard.
    absl::Duration gone_after = absl::Seconds(5);             // Since last heard; > suspect_after.
    // Since its connection broke, which a process that ends does at once.
    absl::Duration reconnect_grace = absl::Milliseconds(500);
    // What the router itself was started with; an empty name or a 0 is not compared.
    std::string model_name = {};
    int32_t vocab_size = 0;
    int32_t experts = 0;
    int32_t experts_per_token = 0;
  };

  struct Event {
    enum Kind {
      kJoined,   // A node answers at an endpoint where none did (its state may be any but kGone).
      kChanged,  // Its state changed.
      kGone,     // It will not answer again under this id: everything it held is lost.
    };
    Kind kind;
    NodeId id;
    std::string endpoint;
    proto::Role role;
    MemberState state;     // After the event.
    std::string detail;    // For kGone and kRefused: why.
    bool drained = false;  // For kGone: it had said that it would leave.
  };

  explicit NodeTable(Options options);

  // Adds an endpoint at which a node of `role` is expected. False when it is there already.
  bool Add(const std::string& endpoint, proto::Role role);

  // Forgets the endpoint; a node there is gone.
  void Remove(const std::string& endpoint, std::vector<Event>& events);

  // A NodeStatus came from `endpoint`, sent by `incarnation`. False when it says nothing about the
  // present: endpoint unknown, incarnation 0, or one that was replaced here.
  bool OnStatus(const std::string& endpoint, Incarnation incarnation,
                const proto::NodeStatus& status, absl::Time now, std::vector<Event>& events);

  // The connection to the endpoint broke: the node there is given no new work until it is heard
  // again, and has until reconnect_grace.
  void OnDisconnected(const std::string& endpoint, absl::Time now, std::vector<Event>& events);

  // The node is given up before its heartbeats say so (its queue is full, for example).
  void OnLost(NodeId id, std::string detail, std::vector<Event>& events);

  // Applies the timeouts. Call at least once per heartbeat interval: where more than suspect_after
  // lies between two calls, this process did not run, and what the nodes said meanwhile is still to
  // be read. That time counts as nobody's silence.
  void Tick(absl::Time now, std::vector<Event>& events);

  const std::map<std::string, Member>& members() const { return members_; }
  const Member* Find(NodeId id) const;  // Null when gone.
  const Member* FindEndpoint(const std::string& endpoint) const;

  // True when some ready prefill node and some ready decode node may exchange KV, or a ready decode
  // node takes prompts. Otherwise
  // `reason` tells an operator what is missing, naming endpoints and values.
  bool Ready(std::string* reason) const;

  // Ready nodes of `role`, in endpoint order. With a hash: only those that may exchange KV with it.
  std::vector<const Member*> ReadyNodes(proto::Role role,
                                        const std::string& compatibility_hash = "") const;

 private:
  static void Suspect(Member& member, std::vector<Event>& events);
  void Leave(Member& member, std::string detail, std::vector<Event>& events);
  std::string Mismatch(const Member& member, const proto::NodeStatus& status) const;

  const Options options_;
  std::map<std::string, Member> members_;
  std::map<NodeId, std::string> endpoints_;  // Of the nodes that answer.
  // Incarnations that were replaced at an endpoint: a late word of theirs must not bring them back.
  std::map<std::string, std::deque<Incarnation>> replaced_;
  NodeId next_id_ = 1;
  absl::Time last_tick_ = absl::InfiniteFuture();  // Future: none yet.
};

}  // namespace lynx::router
