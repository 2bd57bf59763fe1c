#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/transfer/staging_pool.h"
#include "common/transfer/transfer_engine.h"
#include "services/decode/handoff/prefill_peers.h"

namespace lynx::decode {

// Who fills one grant, or this rank's part of it: ranks of one prefill node, each with its share of
// the staging memory of its connection.
class GrantSenders {
 public:
  bool empty() const { return senders_.empty(); }
  bool contains(transfer::PeerId peer) const { return senders_.contains(peer); }
  Incarnation node() const { return node_; }   // 0: nobody has sent yet.
  absl::Time begun() const { return begun_; }  // When the first of them came.

  // Whether the peer may be one of them: the first, or a rank of their node not heard from so far.
  bool Admits(const PrefillPeer& peer) const {
    return empty() || (node_ == peer.incarnation &&
                       std::none_of(senders_.begin(), senders_.end(), [&](const auto& entry) {
                         return entry.second.rank == peer.rank;
                       }));
  }
  void Add(const PrefillPeer& peer, absl::Time now) {
    if (empty()) {
      node_ = peer.incarnation;
      begun_ = now;
    }
    senders_[peer.id] = {peer.rank, peer.staging->OpenPart()};
  }

  // Staging memory for a payload of one of them; null: there is none.
  std::unique_ptr<transfer::Landing> Acquire(transfer::PeerId peer, size_t bytes) {
    return senders_.at(peer).staging->Acquire(bytes);
  }
  // Whether payloads are still landing, or have not been stored.
  bool landing() const {
    return std::any_of(senders_.begin(), senders_.end(),
                       [](const auto& entry) { return entry.second.staging->used_bytes() > 0; });
  }
  std::vector<transfer::PeerId> peers() const {
    std::vector<transfer::PeerId> peers;
    for (const auto& [peer, sender] : senders_) peers.push_back(peer);
    return peers;
  }

  // Its connection is gone. False: it was none of them. The node stays known.
  bool Remove(transfer::PeerId peer) {
    auto it = senders_.find(peer);
    if (it == senders_.end()) return false;
    it->second.staging->Abandon();
    senders_.erase(it);
    return true;
  }
  // Gives up on all of them, as if nobody had sent.
  void Abandon() {
    for (const auto& [peer, sender] : senders_) sender.staging->Abandon();
    senders_.clear();
    node_ = 0;
  }

 private:
  struct Sender {
    int32_t rank = 0;
    std::unique_ptr<transfer::StagingPool::Account> staging;
  };

  Incarnation node_ = 0;
  absl::Time begun_;
  std::map<transfer::PeerId, Sender> senders_;
};

}  // namespace lynx::decode
