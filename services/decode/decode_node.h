#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/concurrency/event_loop.h"
#include "common/engine/engine.h"
#include "common/handoff/kv_sender.h"
#include "common/kv/prefix_cache.h"
#include "common/node/moe_metrics.h"
#include "common/node/node_control.h"
#include "common/node/node_metrics.h"
#include "common/node/step_executor.h"
#include "common/node/step_time_fit.h"
#include "common/proto/control.pb.h"
#include "services/decode/handoff/kv_receiver.h"
#include "services/decode/handoff/node_kv_copy.h"
#include "services/decode/policy/step_policy.h"
#include "services/decode/quality/quality_watch.h"
#include "services/decode/scheduler/decode_scheduler.h"
#include "services/decode/scheduler/swap_cost.h"

namespace lynx::decode {

// A decode node: grants room, adopts sequences whose KV has arrived, advances them all by a token a
// step and streams the tokens to their routers. Everything decides on the node's loop; steps run on
// the executor.
//
// A prompt may also be computed here, in the place of its hand-off: it begins as a sequence that
// was preempted, and its chunks share steps with the sequences that decode.
//
// What sequences leave behind is kept for prompts that begin alike (kv::PrefixCache): a grant then
// holds the blocks of such a prefix, and only the rest is handed over.
//
// A sequence may leave for another decode node: when the router asks, as it does when this node
// drains, and its KV is complete up to the token that the router has named, it stops here, its KV
// is sent, and once the other node has adopted it this one forgets it. When that fails it goes on
// here: the router listens to one of the two only.
//
// Attention replicas have sequences and blocks of their own, and are scheduled each for itself; a
// sequence stays with the one that granted it room. What all of them have planned is one step.
class DecodeNode final : private node::NodeControl::Delegate,
                         private DecodeScheduler::Leases,
                         private engine::StepListener,
                         public KvReceiver::Handler {
 public:
  struct Options {
    Incarnation incarnation = 0;
    std::string model_name;
    int32_t max_context_tokens = 0;
    bool prefix_cache = true;            // A prefix that is here is not handed over again.
    int32_t max_sequences = 512;         // Granted and running together, on all replicas.
    DecodeScheduler::Options scheduler;  // Of each replica. Its groups are the engine's.
    // Of each rank: bytes of copies of what preempted sequences held.
    int64_t swap_space = 0;
    node::RankChannel* ranks = nullptr;  // The node's others; null: there are none.
    bool takes_prompts = false;          // Computes prompts, scheduler.chunk_rows rows in a step.
    absl::Duration max_lease = absl::Minutes(10);  // Caps what a router asks for.
    absl::Duration max_prefill_time = absl::Minutes(10);
    int32_t max_leaving = 64;  // Asked to leave and not gone; more are refused as busy.
    absl::Duration max_leave_time = absl::Minutes(1);
    absl::Duration router_timeout = absl::Seconds(10);
    // A router has asked for what SIGTERM does; null: Drain().
    std::function<void()> ask_to_end = nullptr;
  };

  // All references outlive the node; the executor's running step must have ended before the node
  // is destroyed, so destroy the executor first.
  DecodeNode(const Options& options, const StepPolicy& policy, QualityWatch& quality,
             engine::Engine& engine, node::StepExecutor& executor, EventLoop& loop,
             rpc::Channel& channel, node::NodeMetrics& metrics, node::MoeMetrics& moe_metrics);
  ~DecodeNode() override;

  // The calls below and all work happen on the loop. `receiver`, whose handler is this node,
  // outlives it; so does `sender`, but it may be destroyed first when the loop has stopped.
  void Start(KvReceiver& receiver, handoff::KvSender& sender);
  // Grants nothing more; what was granted goes on.
  void Drain();
  // The process ends: tells the routers, so that they place what is here anew at once.
  void CutOff();
  bool idle() const { return streams_.empty() && grants_.empty(); }

  void OnAdopt(Adopted adopted) override;
  void OnFailed(uint64_t sequence, Incarnation router, const absl::Status& status) override;

 private:
  // One of the node's attention replicas; on most nodes the only one.
  struct Replica {
    Replica(int32_t n, kv::BlockPool& p, const DecodeScheduler::Options& options)
        : number(n), pool(p), scheduler(options) {}

    const int32_t number;
    kv::BlockPool& pool;
    DecodeScheduler scheduler;
    std::optional<kv::PrefixCache> prefixes;
    int32_t grants = 0;
    int64_t granted_blocks = 0;
    int64_t rows = 0;  // Of the running step.

    // What is left for newcomers.
    int64_t room() const { return pool.free_blocks() - scheduler.headroom_blocks(); }
    int32_t sequences() const { return grants + scheduler.sequences(); }
  };

  // What a sequence that is to leave was asked.
  struct Leaving {
    proto::HandOff request;
    absl::Time deadline;
    std::optional<handoff::KvSender::HandoffId> handoff;  // It has stopped, and its KV is sent.
  };

  // A sequence that was adopted, or whose prompt is computed here.
  struct Stream {
    Replica* replica = nullptr;
    Incarnation router = 0;
    std::unique_ptr<engine::Sequence> sequence;
    proto::SamplingParams sampling;
    std::string cache_salt;
    Claim claim;
    std::unique_ptr<Leaving> leaving;
    // Until it is sent; null where it was prefill's to send.
    std::unique_ptr<proto::FirstToken> first;
    absl::Time first_due = absl::InfiniteFuture();
    std::unique_ptr<NodeKvCopy> swapped;  // While preempted, if it was copied.
    // It is exact, and its prompt came from another numeric class: computed again here, that would
    // have other bits.
    bool foreign_prompt = false;
    std::optional<moe::Policy> policy;  // Asked for by the request.
    kv::PrefixHash root_prefix = 0;
    // Of the leading rows, those whose KV no lossy plan has touched.
    int32_t exact_tokens = std::numeric_limits<int32_t>::max();
    absl::Time adopted;
    bool waits = true;  // Has been in no step yet.
    absl::Time cancelled = absl::InfiniteFuture();
    bool in_step = false;
  };

  proto::NodeStatus Status() override;
  void OnRequest(Incarnation router, const proto::Envelope& envelope) override;
  void OnRouterLost(Incarnation router) override;
  const kv::PrefixLedger* Prefixes() const override {
    return options_.prefix_cache ? &prefixes_ : nullptr;
  }
  void OnRouterAlive(Incarnation router, std::span<const uint64_t> sequences) override;

  void OnReserve(Incarnation router, const proto::Reserve& request);
  void OnPrefill(Incarnation router, const proto::Prefill& request);
  void OnHandOff(Incarnation router, const proto::HandOff& request);
  // What is wrong with the request; OK: the sequence can leave as it says.
  absl::Status CheckHandOff(const Stream& stream, const proto::HandOff& request) const;
  // It has come to where it leaves; it is in no step.
  bool MayLeaveNow(const Stream& stream) const;
  // Stops it and sends its KV.
  void Leave(SequenceId id);
  absl::Status SendKv(Stream& stream);
  void OnHandedOff(SequenceId id, const absl::Status& status);
  // It goes on here: it had stopped; or it has not.
  void Return(SequenceId id, const absl::Status& why);
  void Stay(SequenceId id, const std::string& why);
  // A stream of `prompt` and the tokens sampled already. InvalidArgument, OutOfRange: it cannot be
  // served here.
  absl::StatusOr<Stream> NewStream(Replica& replica, Incarnation router,
                                   std::vector<TokenId> prompt,
                                   const proto::SamplingParams& sampling,
                                   std::span<const TokenId> output, const std::string& cache_salt);
  // Gives up prompts whose first token is overdue, and keeps what has not left in time; not while
  // a step runs.
  void FailLate();
  // The longest prefix of the prompt that is there and may be used.
  kv::PrefixCache::Found FindPrefix(Replica& replica, const proto::Reserve& request);
  void Refuse(Incarnation router, SequenceId id, proto::Refused::Reason reason,
              const std::string& message);
  void Cancel(SequenceId id, Incarnation router);
  void MaybeStep();
  int64_t Preempt(SequenceId id) override;
  Resumed Resume(SequenceId id, int64_t free_blocks) override;
  // Copies what a sequence holds that is about to lose it, if that is worth it.
  void SwapOut(Stream& stream);
  // Give a sequence that holds nothing KV of its first tokens; how many. Its copy, in blocks of its
  // own or shared ones:
  int32_t SwapIn(Stream& stream);
  // What the prefix cache has, if it then still fits into `free_blocks`:
  int32_t TakePrefix(Stream& stream, int64_t free_blocks);
  void OnLayerDone(int32_t, std::span<const engine::WorkItem>) override {}
  void OnLeft(engine::Sequence& sequence) override;
  void OnStepDone();
  // Whether sequences that asked for this may be given KV that lossy plans have touched.
  bool MayBeLossy(const std::optional<moe::Policy>& asked) const;
  // Leaves what the stream has computed to later ones.
  void KeepPrefix(const Stream& stream);
  // The most that a sequence of so many tokens in the end, the last sampled and not computed, ever
  // holds.
  int64_t MostBlocks(int64_t tokens) const;
  void SendFirstToken(SequenceId id, Stream& stream, const engine::ItemResult& result);
  void SendTerminal(Incarnation router, SequenceId id, proto::Terminal terminal);
  void SendFailure(Incarnation router, SequenceId id, const absl::Status& status,
                   int64_t output_tokens);
  void Erase(SequenceId id);
  // Its blocks return.
  void Forget(SequenceId id);
  // To metrics now, and soon to the routers.
  void ReportLoad();

  const Options options_;
  engine::Engine& engine_;
  node::StepExecutor& executor_;
  EventLoop& loop_;
  node::NodeMetrics& metrics_;
  node::MoeMetrics& moe_metrics_;
  node::NodeControl control_;
  KvReceiver* receiver_ = nullptr;
  handoff::KvSender* sender_ = nullptr;
  kv::PrefixLedger prefixes_;  // Of all replicas.
  std::vector<std::unique_ptr<Replica>> replicas_;
  node::StepTimeFit step_time_;
  SwapCost swap_cost_;
  StepPolicy policy_;
  QualityWatch& quality_;
  std::map<SequenceId, Stream> streams_;
  struct Granted {
    Replica* replica = nullptr;
    Incarnation router = 0;
    int32_t prompt_tokens = 0;
    int64_t blocks = 0;  // No more free because of it.
    absl::Duration lease;
    int32_t held_tokens = 0;   // A prefix that is here, ...
    int32_t exact_tokens = 0;  // ... and of its rows those that are exact.
    Claim claim;
  };
  std::map<SequenceId, Granted> grants_;  // Not adopted yet; the receiver holds their leases.
  // Takes the grant out.
  Granted EndGrant(std::map<SequenceId, Granted>::iterator grant);
  int64_t sampled_tokens_ = 0;  // Since the start.
  int32_t leaving_ = 0;         // Streams that are to leave.
  bool draining_ = false;

  // The running step.
  bool stepping_ = false;
  std::vector<SequenceId> step_ids_;
  std::vector<engine::WorkItem> items_;
  engine::Shadow* shadow_ = nullptr;  // Null: it is not compared.
  bool backed_off_ = false;           // The quality guard took its rows' policies.
  absl::Time step_began_;
  absl::Status step_status_;     // Written by the step, read after it.
  model::StepStats last_stats_;  // Of the last step, while the next one may be running.
};

}  // namespace lynx::decode
