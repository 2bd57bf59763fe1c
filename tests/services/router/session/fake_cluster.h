#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/concurrency/event_loop.h"
#include "tests/services/router/fake_network.h"

namespace lynx::router {

// The answer every node gives to a seed, so that a test knows what must reach a client.
struct FakeAnswer {
  std::vector<int> tokens;  // Without the stop id.
  bool stop = false;        // Ends by a stop id; else by length.
};
inline FakeAnswer AnswerTo(uint64_t seed, int max_new_tokens) {
  FakeAnswer answer;
  answer.stop = seed % 3 == 0 && static_cast<int>(seed % 7) < max_new_tokens;
  const int count = answer.stop ? static_cast<int>(seed % 7) : max_new_tokens;
  for (int i = 0; i < count; ++i) {
    answer.tokens.push_back(static_cast<int>((seed * 31 + static_cast<uint64_t>(i) * 7) % 997));
  }
  return answer;
}

class FakeCluster;

// A node that keeps the control protocol, on simulated time: a prompt takes 20 ms unless
// told otherwise, a decode step 10 ms. Frees what a router leaves behind as real nodes do: at
// Cancel, at the end of a grant's lease, and when the router's heartbeats stop.
class FakeNode {
 public:
  FakeNode(FakeCluster& cluster, std::string endpoint, proto::Role role, int blocks);
  ~FakeNode() { *alive_ = false; }

  // Forgets everything, as a new process does, but who the router is: as if pinged at once.
  void Restart();
  void SetOnline(bool online);
  void set_state(proto::NodeState state) { state_ = state; }
  void set_busy(bool busy) { busy_ = busy; }
  void set_mute(bool mute) { mute_ = mute; }  // Takes work and does none of it.
  void set_prefill_time(absl::Duration time) { prefill_time_ = time; }
  // What it says a row costs.
  void set_row_time(absl::Duration time) { row_time_ = time; }
  void set_numeric_class(const std::string& name) { numeric_class_ = name; }
  void set_remaps(bool remaps) { remaps_ = remaps; }
  void set_prompt_rows(int32_t rows) { prompt_rows_ = rows; }  // Of a decode node that takes some.
  void set_refuses_prompts(bool refuses) { refuses_prompts_ = refuses; }
  void set_errs(bool errs) { errs_ = errs; }  // Decodes what other seeds are answered.
  void SendStatus();

  proto::Role role() const { return role_; }
  uint64_t incarnation() const { return incarnation_; }
  int blocks() const { return blocks_; }
  int free_blocks() const { return free_; }
  size_t live() const { return live_.size(); }
  int reserves() const { return reserves_; }
  int prefills() const { return prefills_; }
  int given() const { return given_; }  // Tokens of answers that came with prompts.
  int cancels() const { return cancels_; }
  // Priority and tenant that the last Reserve or Prefill told.
  std::pair<int32_t, uint64_t> last_claim() const { return last_claim_; }

 private:
  friend class FakeCluster;
  struct Live {
    int blocks = 0;
    int max_new_tokens = 0;
    uint64_t seed = 0;
    uint64_t grant = 0;
    size_t sent = 0;         // Tokens, the first one included; 0 on decode: not adopted yet.
    bool prompting = false;  // Computes the prompt of its own grant.
  };
  void OnMessage(const proto::Envelope& envelope);
  void OnReserve(const proto::Reserve& reserve);
  void OnPrefill(const proto::Prefill& prefill);
  void FinishPrefill(uint64_t id, const proto::Prefill& prefill);
  bool Adopt(uint64_t id, const proto::Prefill& prefill);
  void Step();
  void Drop(uint64_t id);
  void Refuse(uint64_t id, proto::Refused::Reason reason);
  void End(uint64_t id, proto::Terminal::Kind kind,
           proto::Terminal::FinishReason reason = proto::Terminal::FINISH_REASON_UNSPECIFIED,
           size_t output_tokens = 0);
  void Send(proto::Envelope envelope);
  void Later(absl::Duration delay, std::function<void()> task);

  FakeCluster& cluster_;
  const std::string endpoint_;
  const proto::Role role_;
  const int blocks_;
  uint64_t incarnation_ = 0;
  uint64_t router_ = 0;
  absl::Time router_heard_;
  int free_ = 0;
  proto::NodeState state_ = proto::NODE_STATE_READY;
  bool busy_ = false;
  bool mute_ = false;
  bool stepping_ = false;
  absl::Duration prefill_time_ = absl::Milliseconds(20);
  absl::Duration row_time_ = absl::ZeroDuration();
  std::string numeric_class_ = "cpu";
  bool remaps_ = false;
  int32_t prompt_rows_ = 0;
  bool refuses_prompts_ = false;
  bool errs_ = false;
  std::map<uint64_t, Live> live_;
  uint64_t next_grant_ = 1;
  int reserves_ = 0;
  int prefills_ = 0;
  int given_ = 0;
  int cancels_ = 0;
  std::pair<int32_t, uint64_t> last_claim_ = {};
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

class FakeCluster {
 public:
  FakeCluster(EventLoop& loop, FakeNetwork& network) : loop_(loop), network_(network) {}

  FakeNode& Add(const std::string& endpoint, proto::Role role, int blocks = 64) {
    nodes_.push_back(std::make_unique<FakeNode>(*this, endpoint, role, blocks));
    return *nodes_.back();
  }
  const std::vector<std::unique_ptr<FakeNode>>& nodes() const { return nodes_; }

 private:
  friend class FakeNode;
  FakeNode* ByIncarnation(uint64_t incarnation) {
    for (auto& node : nodes_) {
      if (node->incarnation() == incarnation) return node.get();
    }
    return nullptr;
  }

  EventLoop& loop_;
  FakeNetwork& network_;
  std::vector<std::unique_ptr<FakeNode>> nodes_;
  uint64_t next_incarnation_ = 1000;
};

inline FakeNode::FakeNode(FakeCluster& cluster, std::string endpoint, proto::Role role, int blocks)
    : cluster_(cluster), endpoint_(std::move(endpoint)), role_(role), blocks_(blocks) {
  Restart();
  SetOnline(true);
}

inline void FakeNode::Restart() {
  *alive_ = false;
  alive_ = std::make_shared<bool>(true);
  incarnation_ = cluster_.next_incarnation_++;
  free_ = blocks_;
  stepping_ = false;
  live_.clear();
}

inline void FakeNode::SetOnline(bool online) {
  if (online) {
    cluster_.network_.Plug(endpoint_, [this](const proto::Envelope& e) { OnMessage(e); });
  } else {
    cluster_.network_.Unplug(endpoint_);
  }
}

inline void FakeNode::OnMessage(const proto::Envelope& envelope) {
  if (envelope.has_ping()) {
    router_ = envelope.sender();
    router_heard_ = cluster_.loop_.Now();
    SendStatus();
    const absl::Time heard = router_heard_;
    Later(absl::Seconds(3), [this, heard] {
      if (router_heard_ != heard) return;
      while (!live_.empty()) Drop(live_.begin()->first);
    });
    return;
  }
  if (envelope.receiver() != incarnation_) return;
  if (envelope.has_reserve()) OnReserve(envelope.reserve());
  if (envelope.has_prefill()) OnPrefill(envelope.prefill());
  if (envelope.has_cancel()) {
    ++cancels_;
    if (live_.contains(envelope.cancel().sequence())) {
      Drop(envelope.cancel().sequence());
      End(envelope.cancel().sequence(), proto::Terminal::KIND_CANCELLED);
    }
  }
}

inline void FakeNode::SendStatus() {
  proto::Envelope envelope;
  proto::NodeStatus& status = *envelope.mutable_node_status();
  status.set_role(role_);
  status.set_state(state_);
  status.set_compatibility_hash("h");
  status.set_numeric_class(numeric_class_);
  status.set_remaps(remaps_);
  status.set_prompt_rows(prompt_rows_);
  status.set_kv_blocks_total(blocks_);
  status.set_kv_blocks_free(free_);
  status.set_running_sequences(static_cast<int>(live_.size()));
  status.mutable_step_time()->set_row_seconds(absl::ToDoubleSeconds(row_time_));
  Send(std::move(envelope));
}

inline void FakeNode::OnReserve(const proto::Reserve& reserve) {
  ++reserves_;
  last_claim_ = {reserve.priority(), reserve.tenant()};
  const uint64_t id = reserve.sequence();
  if (mute_) return;
  if (!live_.contains(id)) {
    const int blocks = (reserve.prompt_tokens() + reserve.max_new_tokens() + 15) / 16;
    if (state_ != proto::NODE_STATE_READY) return Refuse(id, proto::Refused::REASON_NOT_READY);
    if (blocks > blocks_) return Refuse(id, proto::Refused::REASON_TOO_LARGE);
    if (busy_ || blocks > free_) return Refuse(id, proto::Refused::REASON_BUSY);
    free_ -= blocks;
    const uint64_t grant = next_grant_++;
    live_[id] = {.blocks = blocks, .max_new_tokens = 0, .seed = 0, .grant = grant, .sent = 0};
    Later(absl::Milliseconds(reserve.lease_ms()), [this, id, grant] {
      auto it = live_.find(id);
      if (it == live_.end() || it->second.grant != grant || it->second.sent > 0 ||
          it->second.prompting) {
        return;
      }
      Drop(id);
      End(id, proto::Terminal::KIND_FAILED);
    });
  }
  proto::Envelope envelope;
  envelope.mutable_grant()->set_sequence(id);
  proto::GrantInfo& grant = *envelope.mutable_grant()->mutable_grant();
  grant.set_grant_id(live_[id].grant);
  grant.set_decode_incarnation(incarnation_);
  grant.set_compatibility_hash("h");
  Send(std::move(envelope));
}

inline void FakeNode::OnPrefill(const proto::Prefill& prefill) {
  ++prefills_;
  given_ += prefill.output_size();
  last_claim_ = {prefill.priority(), prefill.tenant()};
  const uint64_t id = prefill.sequence();
  if (mute_) return;
  if (role_ == proto::ROLE_DECODE) {
    if (!live_.contains(id)) return Refuse(id, proto::Refused::REASON_NOT_READY);
    if (live_[id].prompting || live_[id].sent > 0) {
      return Refuse(id, proto::Refused::REASON_DUPLICATE);
    }
    if (refuses_prompts_) return Refuse(id, proto::Refused::REASON_BUSY);
    live_[id].prompting = true;
  } else {
    if (live_.contains(id)) return Refuse(id, proto::Refused::REASON_DUPLICATE);
    if (state_ != proto::NODE_STATE_READY) return Refuse(id, proto::Refused::REASON_NOT_READY);
    if (busy_) return Refuse(id, proto::Refused::REASON_BUSY);
    live_[id] = {};
  }
  Later(prefill_time_, [this, id, prefill] {
    if (live_.contains(id)) FinishPrefill(id, prefill);
  });
}

inline void FakeNode::FinishPrefill(uint64_t id, const proto::Prefill& prefill) {
  const int limit = prefill.sampling().max_new_tokens();
  const FakeAnswer answer = AnswerTo(prefill.sampling().seed(), limit);
  const auto at = static_cast<size_t>(prefill.output_size());
  const bool stops = at >= answer.tokens.size();
  const bool last = at + 1 == static_cast<size_t>(limit);
  if (at >= static_cast<size_t>(limit) || at > answer.tokens.size() ||
      !std::equal(prefill.output().begin(), prefill.output().end(), answer.tokens.begin())) {
    Drop(id);  // Not what was sampled: a router that lost count.
    return End(id, proto::Terminal::KIND_FAILED);
  }
  proto::Envelope envelope;
  envelope.mutable_first_token()->set_sequence(id);
  envelope.mutable_first_token()->set_position(static_cast<uint32_t>(at));
  if (!stops) envelope.mutable_first_token()->mutable_token()->set_id(answer.tokens[at]);
  Send(std::move(envelope));
  if (role_ == proto::ROLE_DECODE && !last && !stops) {
    live_[id].prompting = false;
    Adopt(id, prefill);
    return;
  }
  Drop(id);
  if (stops || last) {
    return End(id, proto::Terminal::KIND_FINISHED,
               stops ? proto::Terminal::FINISH_REASON_STOP : proto::Terminal::FINISH_REASON_LENGTH,
               at + 1);
  }
  FakeNode* decode = cluster_.ByIncarnation(prefill.grant().decode_incarnation());
  const bool adopted = decode != nullptr && decode->Adopt(id, prefill);
  End(id, adopted ? proto::Terminal::KIND_HANDED_OFF : proto::Terminal::KIND_FAILED);
}

inline bool FakeNode::Adopt(uint64_t id, const proto::Prefill& prefill) {
  auto it = live_.find(id);
  if (it == live_.end() || it->second.grant != prefill.grant().grant_id()) return false;
  it->second.seed = prefill.sampling().seed() + (errs_ ? 3 : 0);
  it->second.max_new_tokens = prefill.sampling().max_new_tokens();
  it->second.sent = static_cast<size_t>(prefill.output_size()) + 1;
  if (!stepping_) {
    stepping_ = true;
    Later(absl::Milliseconds(10), [this] { Step(); });
  }
  return true;
}

inline void FakeNode::Step() {
  proto::Envelope batch;
  std::vector<std::pair<uint64_t, FakeAnswer>> finished;
  bool running = false;
  for (auto& [id, live] : live_) {
    if (live.sent == 0) continue;
    running = true;
    FakeAnswer answer = AnswerTo(live.seed, live.max_new_tokens);
    if (live.sent < answer.tokens.size()) {
      proto::TokenBatch::Entry& entry = *batch.mutable_token_batch()->add_entries();
      entry.set_sequence(id);
      entry.set_position(static_cast<uint32_t>(live.sent));
      entry.add_tokens()->set_id(answer.tokens[live.sent]);
      ++live.sent;
    }
    // A stop id takes a step of its own, in which nothing is sent.
    if (live.sent == answer.tokens.size()) finished.emplace_back(id, std::move(answer));
  }
  if (batch.has_token_batch()) Send(std::move(batch));
  for (const auto& [id, answer] : finished) {
    Drop(id);
    End(id, proto::Terminal::KIND_FINISHED,
        answer.stop ? proto::Terminal::FINISH_REASON_STOP : proto::Terminal::FINISH_REASON_LENGTH,
        answer.tokens.size() + (answer.stop ? 1 : 0));
  }
  stepping_ = running;
  if (running) Later(absl::Milliseconds(10), [this] { Step(); });
}

inline void FakeNode::Drop(uint64_t id) {
  free_ += live_.at(id).blocks;
  live_.erase(id);
}

inline void FakeNode::Refuse(uint64_t id, proto::Refused::Reason reason) {
  proto::Envelope envelope;
  envelope.mutable_refused()->set_sequence(id);
  envelope.mutable_refused()->set_reason(reason);
  Send(std::move(envelope));
}

inline void FakeNode::End(uint64_t id, proto::Terminal::Kind kind,
                          proto::Terminal::FinishReason reason, size_t output_tokens) {
  proto::Envelope envelope;
  proto::Terminal& terminal = *envelope.mutable_terminal();
  terminal.set_sequence(id);
  terminal.set_kind(kind);
  terminal.set_finish_reason(reason);
  terminal.set_output_tokens(static_cast<uint32_t>(output_tokens));
  if (kind == proto::Terminal::KIND_FAILED) {
    terminal.set_status_code(static_cast<uint32_t>(absl::StatusCode::kAborted));
  }
  Send(std::move(envelope));
}

inline void FakeNode::Send(proto::Envelope envelope) {
  envelope.set_sender(incarnation_);
  envelope.set_receiver(router_);
  cluster_.network_.Deliver(endpoint_, std::move(envelope));
}

inline void FakeNode::Later(absl::Duration delay, std::function<void()> task) {
  cluster_.loop_.RunAfter(delay, [alive = alive_, task = std::move(task)] {
    if (*alive) task();
  });
}

}  // namespace lynx::router
