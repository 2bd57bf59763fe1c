#include "services/cli/bench/router/stub_nodes.h"

#include <algorithm>
#include <limits>
#include <span>
#include <unordered_map>
#include <utility>

#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/kv/kv_layout.h"
#include "common/node/node_control.h"

namespace lynx::cli {
namespace {

constexpr int32_t kBlocks = std::numeric_limits<int32_t>::max() / 2;

proto::NodeStatus StatusOf(const StubNodes::Options& options, proto::Role role) {
  proto::NodeStatus status;
  status.set_role(role);
  status.set_state(proto::NODE_STATE_READY);
  status.set_model_name(options.model_name);
  status.set_compatibility_hash("lynx-bench-router");
  status.set_numeric_class("stub");
  status.set_transfer_address("none");
  status.set_transport("none");
  status.set_vocab_size(options.spec.vocab_size);
  status.set_max_context_tokens(options.spec.max_positions);
  status.set_experts(options.spec.experts);
  status.set_experts_per_token(options.spec.experts_per_token);
  status.set_kv_blocks_total(kBlocks);
  status.set_kv_blocks_free(kBlocks);
  return status;
}

}  // namespace

class StubNodes::Decode final : private node::NodeControl::Delegate {
 public:
  Decode(const Options& options, TokenTimes& times, EventLoop& loop,
         std::unique_ptr<rpc::ZmqChannel> channel)
      : options_(options),
        times_(times),
        channel_(std::move(channel)),
        control_({.incarnation = incarnation_}, loop, *channel_, *this),
        streams_(static_cast<size_t>(options.streams)),
        stepper_(loop, (options.streams + options.batch - 1) / options.batch, options.step,
                 [this](int32_t group) { Step(group); }) {
    control_.Start();
  }

  const std::string& endpoint() const { return channel_->endpoint(); }
  Stepper& stepper() { return stepper_; }

  // Prefill has given the stream its first token.
  void Adopt(Incarnation router, uint64_t sequence, int32_t stream) {
    router_ = router;
    streams_[static_cast<size_t>(stream)] = {sequence, 1};
    by_sequence_[sequence] = stream;
  }

  void Finish() {
    for (Stream& stream : streams_) {
      if (stream.sequence == 0) continue;
      proto::Envelope envelope;
      proto::Terminal& terminal = *envelope.mutable_terminal();
      terminal.set_sequence(stream.sequence);
      terminal.set_kind(proto::Terminal::KIND_FINISHED);
      terminal.set_finish_reason(proto::Terminal::FINISH_REASON_LENGTH);
      terminal.set_output_tokens(static_cast<uint32_t>(stream.tokens));
      control_.Send(router_, std::move(envelope));
      stream.sequence = 0;
    }
    by_sequence_.clear();
  }

 private:
  struct Stream {
    uint64_t sequence = 0;  // 0: not running.
    int32_t tokens = 0;
  };

  proto::NodeStatus Status() override {
    proto::NodeStatus status = StatusOf(options_, proto::ROLE_DECODE);
    status.set_running_sequences(static_cast<int32_t>(by_sequence_.size()));
    return status;
  }

  void OnRequest(Incarnation router, const proto::Envelope& envelope) override {
    if (envelope.has_reserve()) {
      const proto::Reserve& reserve = envelope.reserve();
      proto::Envelope answer;
      answer.mutable_grant()->set_sequence(reserve.sequence());
      proto::GrantInfo& grant = *answer.mutable_grant()->mutable_grant();
      grant.set_grant_id(reserve.sequence());
      grant.set_decode_incarnation(incarnation_);
      grant.set_epoch(1);
      grant.set_transfer_address("none");
      grant.set_blocks(static_cast<int32_t>(kv::BlocksFor(reserve.prompt_tokens() + 1)));
      grant.set_compatibility_hash("lynx-bench-router");
      control_.Send(router, std::move(answer));
    } else if (envelope.has_cancel()) {
      auto it = by_sequence_.find(envelope.cancel().sequence());
      if (it == by_sequence_.end()) return;
      streams_[static_cast<size_t>(it->second)].sequence = 0;
      proto::Envelope answer;
      answer.mutable_terminal()->set_sequence(it->first);
      answer.mutable_terminal()->set_kind(proto::Terminal::KIND_CANCELLED);
      by_sequence_.erase(it);
      control_.Send(router, std::move(answer));
    }
  }

  void OnRouterLost(Incarnation) override {
    for (Stream& stream : streams_) stream.sequence = 0;
    by_sequence_.clear();
  }
  void OnRouterAlive(Incarnation, std::span<const uint64_t>) override {}

  void Step(int32_t group) {
    const int32_t first = group * options_.batch;
    const int32_t past = std::min(first + options_.batch, options_.streams);
    proto::Envelope envelope;
    proto::TokenBatch& batch = *envelope.mutable_token_batch();
    const int64_t now = MonotonicNs();
    for (int32_t i = first; i < past; ++i) {
      Stream& stream = streams_[static_cast<size_t>(i)];
      if (stream.sequence == 0 || stream.tokens >= times_.tokens()) continue;
      times_.at(i, stream.tokens) = now;
      proto::TokenBatch::Entry& entry = *batch.add_entries();
      entry.set_sequence(stream.sequence);
      entry.set_position(static_cast<uint32_t>(stream.tokens));
      const auto word = static_cast<size_t>(i + stream.tokens) % options_.words.size();
      entry.add_tokens()->set_id(options_.words[word]);
      stream.tokens += 1;
    }
    if (batch.entries_size() > 0) control_.Send(router_, std::move(envelope));
  }

  const Options& options_;
  TokenTimes& times_;
  const Incarnation incarnation_ = RandomId();
  const std::unique_ptr<rpc::ZmqChannel> channel_;
  node::NodeControl control_;
  Incarnation router_ = 0;
  std::vector<Stream> streams_;
  std::unordered_map<uint64_t, int32_t> by_sequence_;
  Stepper stepper_;
};

class StubNodes::Prefill final : private node::NodeControl::Delegate {
 public:
  Prefill(const Options& options, TokenTimes& times, EventLoop& loop,
          std::unique_ptr<rpc::ZmqChannel> channel, Decode& decode)
      : options_(options),
        times_(times),
        channel_(std::move(channel)),
        control_({.incarnation = RandomId()}, loop, *channel_, *this),
        decode_(decode) {
    control_.Start();
  }

  const std::string& endpoint() const { return channel_->endpoint(); }

 private:
  proto::NodeStatus Status() override { return StatusOf(options_, proto::ROLE_PREFILL); }

  void OnRequest(Incarnation router, const proto::Envelope& envelope) override {
    if (!envelope.has_prefill()) return;
    const proto::Prefill& prefill = envelope.prefill();
    if (prefill.sampling().seed() >= static_cast<uint64_t>(options_.streams)) return;
    const auto stream = static_cast<int32_t>(prefill.sampling().seed());
    times_.at(stream, 0) = MonotonicNs();
    proto::Envelope first;
    first.mutable_first_token()->set_sequence(prefill.sequence());
    first.mutable_first_token()->mutable_token()->set_id(options_.words.front());
    control_.Send(router, std::move(first));
    decode_.Adopt(router, prefill.sequence(), stream);
    proto::Envelope over;
    over.mutable_terminal()->set_sequence(prefill.sequence());
    over.mutable_terminal()->set_kind(proto::Terminal::KIND_HANDED_OFF);
    over.mutable_terminal()->set_output_tokens(1);
    control_.Send(router, std::move(over));
  }

  void OnRouterLost(Incarnation) override {}
  void OnRouterAlive(Incarnation, std::span<const uint64_t>) override {}

  const Options& options_;
  TokenTimes& times_;
  const std::unique_ptr<rpc::ZmqChannel> channel_;
  node::NodeControl control_;
  Decode& decode_;
};

absl::StatusOr<std::unique_ptr<StubNodes>> StubNodes::Start(const Options& options,
                                                            TokenTimes& times) {
  std::unique_ptr<StubNodes> nodes(new StubNodes(options, times));
  // All streams begin at once, and end at once.
  const rpc::ZmqChannel::Options bound = {
      .bind = "127.0.0.1:0", .max_queued = 4096 + 2 * static_cast<size_t>(options.streams)};
  LYNX_ASSIGN_OR_RETURN(auto decode,
                        rpc::ZmqChannel::Create(bound, nodes->loop_, nodes->registry_));
  LYNX_ASSIGN_OR_RETURN(auto prefill,
                        rpc::ZmqChannel::Create(bound, nodes->loop_, nodes->registry_));
  nodes->loop_.RunAndWait([&, raw = nodes.get()] {
    raw->decode_ = std::make_unique<Decode>(raw->options_, times, raw->loop_, std::move(decode));
    raw->prefill_ = std::make_unique<Prefill>(raw->options_, times, raw->loop_, std::move(prefill),
                                              *raw->decode_);
  });
  return nodes;
}

StubNodes::StubNodes(const Options& options, TokenTimes& times)
    : options_(options), times_(times) {}

StubNodes::~StubNodes() {
  loop_.RunAndWait([&] {
    prefill_.reset();
    decode_.reset();
  });
  loop_.Stop();
}

const std::string& StubNodes::prefill() const { return prefill_->endpoint(); }
const std::string& StubNodes::decode() const { return decode_->endpoint(); }

void StubNodes::Resume() {
  loop_.RunAndWait([&] { decode_->stepper().Start(); });
}

void StubNodes::Pause() {
  loop_.RunAndWait([&] { decode_->stepper().Stop(); });
}

void StubNodes::Finish() {
  loop_.RunAndWait([&] { decode_->Finish(); });
}

}  // namespace lynx::cli
