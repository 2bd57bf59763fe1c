#include "services/router/membership/node_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace lynx::router {
namespace {

constexpr size_t kRememberedIncarnations = 16;

MemberState StateOf(const proto::NodeStatus& status) {
  switch (status.state()) {
    case proto::NODE_STATE_READY:
      return MemberState::kReady;
    case proto::NODE_STATE_DRAINING:
      return MemberState::kDraining;
    default:
      return MemberState::kLoading;
  }
}

}  // namespace

const char* Name(MemberState state) {
  switch (state) {
    case MemberState::kGone:
      return "gone";
    case MemberState::kLoading:
      return "loading";
    case MemberState::kReady:
      return "ready";
    case MemberState::kSuspect:
      return "suspect";
    case MemberState::kDraining:
      return "draining";
    case MemberState::kRefused:
      return "refused";
  }
  return "?";
}

const char* Name(proto::Role role) {
  switch (role) {
    case proto::ROLE_PREFILL:
      return "prefill";
    case proto::ROLE_DECODE:
      return "decode";
    default:
      return "unspecified";
  }
}

NodeTable::NodeTable(Options options) : options_(std::move(options)) {
  LYNX_CHECK(options_.gone_after > options_.suspect_after);
}

bool NodeTable::Add(const std::string& endpoint, proto::Role role) {
  auto [it, added] = members_.try_emplace(endpoint);
  if (!added) return false;
  it->second.endpoint = endpoint;
  it->second.role = role;
  it->second.detail = "has not answered yet";
  return true;
}

void NodeTable::Remove(const std::string& endpoint, std::vector<Event>& events) {
  auto it = members_.find(endpoint);
  if (it == members_.end()) return;
  Leave(it->second, "removed from the configuration", events);
  members_.erase(it);
  replaced_.erase(endpoint);
}

bool NodeTable::OnStatus(const std::string& endpoint, Incarnation incarnation,
                         const proto::NodeStatus& status, absl::Time now,
                         std::vector<Event>& events) {
  auto it = members_.find(endpoint);
  if (it == members_.end() || incarnation == 0) return false;
  Member& member = it->second;
  std::deque<Incarnation>& replaced = replaced_[endpoint];
  if (std::find(replaced.begin(), replaced.end(), incarnation) != replaced.end()) return false;

  if (member.id != 0 && member.incarnation != incarnation) {
    replaced.push_back(member.incarnation);
    if (replaced.size() > kRememberedIncarnations) replaced.pop_front();
    Leave(member,
          absl::StrCat("incarnation ", HexId(member.incarnation), " was replaced by ",
                       HexId(incarnation)),
          events);
  }
  if (status.state() == proto::NODE_STATE_FAILED) {
    Leave(member, "reports that it has failed", events);
    return true;
  }
  if (member.id == 0) {
    for (const auto& [other_endpoint, other] : members_) {
      if (other.id != 0 && other.incarnation == incarnation) {
        member.detail = absl::StrCat("is the same node as ", other_endpoint);
        return true;
      }
    }
  }

  const bool joined = member.id == 0;
  if (joined) {
    member.id = next_id_++;
    member.incarnation = incarnation;
    endpoints_[member.id] = endpoint;
  }
  const MemberState before = member.state;
  std::string mismatch = Mismatch(member, status);
  member.state = mismatch.empty() ? StateOf(status) : MemberState::kRefused;
  const bool changed = member.state != before || member.detail != mismatch;
  member.detail = std::move(mismatch);
  member.status = status;
  member.last_heard = now;
  member.disconnected = absl::InfiniteFuture();
  if (joined || changed) {
    events.push_back({joined ? Event::kJoined : Event::kChanged, member.id, endpoint, member.role,
                      member.state, member.detail});
  }
  return true;
}

void NodeTable::OnDisconnected(const std::string& endpoint, absl::Time now,
                               std::vector<Event>& events) {
  auto it = members_.find(endpoint);
  if (it == members_.end() || it->second.id == 0) return;
  Member& member = it->second;
  member.disconnected = std::min(member.disconnected, now);
  if (member.state == MemberState::kReady) Suspect(member, events);
}

void NodeTable::OnLost(NodeId id, std::string detail, std::vector<Event>& events) {
  auto it = endpoints_.find(id);
  if (it == endpoints_.end()) return;
  Leave(members_.at(std::string(it->second)), std::move(detail), events);
}

void NodeTable::Tick(absl::Time now, std::vector<Event>& events) {
  const absl::Duration since = now - last_tick_;
  const absl::Duration slept = since > options_.suspect_after ? since : absl::ZeroDuration();
  last_tick_ = now;
  for (auto& [endpoint, member] : members_) {
    if (member.id == 0) continue;
    member.last_heard = std::min(now, member.last_heard + slept);
    member.disconnected += slept;
    const absl::Duration silence = now - member.last_heard;
    if (now - member.disconnected >= options_.reconnect_grace) {
      Leave(member, "closed its connection and has not come back", events);
    } else if (silence >= options_.gone_after) {
      Leave(member, absl::StrCat("has not answered for ", absl::FormatDuration(silence)), events);
    } else if (silence >= options_.suspect_after && member.state == MemberState::kReady) {
      Suspect(member, events);
    }
  }
}

void NodeTable::Suspect(Member& member, std::vector<Event>& events) {
  member.state = MemberState::kSuspect;
  events.push_back({Event::kChanged, member.id, member.endpoint, member.role, member.state, ""});
}

const Member* NodeTable::Find(NodeId id) const {
  auto it = endpoints_.find(id);
  return it == endpoints_.end() ? nullptr : &members_.at(it->second);
}

const Member* NodeTable::FindEndpoint(const std::string& endpoint) const {
  auto it = members_.find(endpoint);
  return it == members_.end() ? nullptr : &it->second;
}

bool NodeTable::Ready(std::string* reason) const {
  std::vector<std::string> hashes[2];
  const proto::Role roles[2] = {proto::ROLE_PREFILL, proto::ROLE_DECODE};
  std::vector<std::string> missing;
  for (int i = 0; i < 2; ++i) {
    std::vector<std::string> others;
    for (const auto& [endpoint, member] : members_) {
      if (member.role != roles[i]) continue;
      if (member.state == MemberState::kReady) {
        if (member.status.prompt_rows() > 0)
          hashes[0].push_back(member.status.compatibility_hash());
        hashes[i].push_back(member.status.compatibility_hash());
        continue;
      }
      others.push_back(absl::StrCat(endpoint, " is ", Name(member.state),
                                    member.detail.empty() ? "" : " (", member.detail,
                                    member.detail.empty() ? "" : ")"));
    }
    if (hashes[i].empty()) {
      missing.push_back(absl::StrCat(
          "no ", Name(roles[i]),
          " node is ready: ", others.empty() ? "none is known" : absl::StrJoin(others, ", ")));
    }
  }
  // Decode nodes may be meant to do without: only they are missed then.
  const bool no_prefill = std::ranges::none_of(
      members_, [](const auto& member) { return member.second.role == proto::ROLE_PREFILL; });
  if (no_prefill && missing.size() == 2) missing.erase(missing.begin());
  for (const std::string& prefill : hashes[0]) {
    for (const std::string& decode : hashes[1]) {
      if (!prefill.empty() && prefill == decode) {
        if (reason != nullptr) reason->clear();
        return true;
      }
    }
  }
  if (reason != nullptr) {
    *reason = !missing.empty()
                  ? absl::StrJoin(missing, "; ")
                  : absl::StrCat(
                        "no prefill and decode node may exchange KV: compatibility hashes "
                        "of prefill are [",
                        absl::StrJoin(hashes[0], ", "), "], of decode [",
                        absl::StrJoin(hashes[1], ", "), "]");
  }
  return false;
}

std::vector<const Member*> NodeTable::ReadyNodes(proto::Role role,
                                                 const std::string& compatibility_hash) const {
  std::vector<const Member*> nodes;
  for (const auto& [endpoint, member] : members_) {
    if (member.role != role || member.state != MemberState::kReady) continue;
    if (member.status.compatibility_hash().empty()) continue;
    if (!compatibility_hash.empty() && member.status.compatibility_hash() != compatibility_hash) {
      continue;
    }
    nodes.push_back(&member);
  }
  return nodes;
}

void NodeTable::Leave(Member& member, std::string detail, std::vector<Event>& events) {
  const NodeId id = std::exchange(member.id, 0);
  const bool drained = member.state == MemberState::kDraining;
  member.state = MemberState::kGone;
  member.detail = std::move(detail);
  member.incarnation = 0;
  member.disconnected = absl::InfiniteFuture();
  if (id == 0) return;
  endpoints_.erase(id);
  events.push_back(
      {Event::kGone, id, member.endpoint, member.role, member.state, member.detail, drained});
}

std::string NodeTable::Mismatch(const Member& member, const proto::NodeStatus& status) const {
  if (status.role() != member.role) {
    return absl::StrCat("configured as ", Name(member.role), " but says it is ",
                        Name(status.role()));
  }
  // While it loads, a node may not know its model yet.
  if (status.state() == proto::NODE_STATE_LOADING) return "";
  if (!options_.model_name.empty() && status.model_name() != options_.model_name) {
    return absl::StrCat("serves model \"", status.model_name(), "\", this router \"",
                        options_.model_name, "\"");
  }
  if (options_.vocab_size != 0 && status.vocab_size() != options_.vocab_size) {
    return absl::StrCat("has a vocabulary of ", status.vocab_size(), ", this router ",
                        options_.vocab_size);
  }
  // What requests were checked against; a node that does not tell is taken at the router's word.
  if (options_.experts != 0 && status.experts() != 0 &&
      (status.experts() != options_.experts ||
       status.experts_per_token() != options_.experts_per_token)) {
    return absl::StrCat("routes a token to ", status.experts_per_token(), " of ", status.experts(),
                        " experts, this router's model to ", options_.experts_per_token, " of ",
                        options_.experts);
  }
  return "";
}

}  // namespace lynx::router
