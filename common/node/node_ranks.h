#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/collective/communicator.h"
#include "common/collective/rank_group.h"
#include "common/concurrency/event_loop.h"
#include "common/model/model_runner.h"
#include "common/model/shard_plan.h"
#include "common/node/expert_placer.h"
#include "common/node/rank_channel.h"
#include "common/telemetry/metrics.h"

namespace lynx::node {

// This process's part in a node of several ranks.
//
// Rank 0 decides what every step does and tells the others; these do what they are told and never
// decide. All make each step together. Once one of them is lost, or a step fails otherwise than by
// its own words, all are: on_lost is told, and the process is of no more use.
//
//   Create, Join; load a runner with communicator(); then Lead or Follow.
class NodeRanks final : public RankChannel {
 public:
  struct Options {
    int rank = 0;
    Incarnation incarnation = 0;  // Of rank 0: the node's.
    model::ParallelLayout layout;
    std::string
        leader;  // host:port where rank 0 listens; of rank 0 itself port 0 picks a free one.
    absl::Duration start_timeout = absl::Minutes(10);  // Until all have loaded.
    absl::Duration silence = absl::Milliseconds(1500);
    absl::Duration call_timeout = absl::Seconds(30);  // Longest wait for another rank in a step.
    // Called once, on a thread of its own making; the object is not to be destroyed meanwhile.
    std::function<void(const absl::Status&)> on_lost = nullptr;
    std::function<void(const absl::Status&)> on_refused = nullptr;  // As in RankGroup.
  };

  // Fails as RankGroup::Create.
  static absl::StatusOr<std::unique_ptr<NodeRanks>> Create(const Options& options);
  ~NodeRanks() override;  // After the runners. Of rank 0: the others end in good order.
  NodeRanks(const NodeRanks&) = delete;
  NodeRanks& operator=(const NodeRanks&) = delete;

  int rank() const { return options_.rank; }
  const model::ParallelLayout& layout() const { return options_.layout; }
  std::string endpoint() const { return group_->endpoint(); }  // Where rank 0 listens.

  // Finds the other ranks and connects to them. As RankGroup::Join.
  absl::Status Join(const std::string& identity, const std::function<absl::Status()>& check);
  // After Join(): for RunnerOptions.
  collective::Communicator* communicator() { return communicator_.get(); }

  // After Join(): the node's, the same on all ranks.
  Incarnation incarnation() const { return incarnation_; }

  // Rank 0: waits until the others have loaded, and makes one runner of all. It takes the rank's
  // own runner, loaded with communicator(), and does not outlive this. Where the layout has spare
  // slots experts move as `placement` says.
  //   DeadlineExceeded    names the ranks that are not ready in time.
  //   FailedPrecondition  a rank has another model or numeric class; names both.
  absl::StatusOr<std::unique_ptr<model::ModelRunner>> Lead(std::unique_ptr<model::ModelRunner> own,
                                                           const PlacementOptions& placement = {});

  // Rank 0, after Lead(): where each rank takes KV, and of which heads; its own without an address.
  const std::vector<proto::RankEndpoint>& endpoints() const { return endpoints_; }

  int others() const override { return options_.layout.world() - 1; }
  void Tell(const proto::RankMessage& message) override;
  // Who hears what the others tell, on a thread of the group's own, which it must not hold up;
  // null: nobody. Returns when the former one is not running any more.
  void SetListener(std::function<void(int rank, const proto::RankMessage&)> listener)
      LYNX_EXCLUDES(listener_mu_);

  // This rank gives up, and with it the node; on_lost is not called here. Nothing after a failure.
  void Leave(const absl::Status& why) { group_->Leave(why); }

  // The others: does what rank 0 says until that ends in good order, then OK. `address` is where
  // this rank takes KV, if it does. `ready` is called once rank 0 knows of this rank, `before_step`
  // before each step: it returns when all that was told before has been carried out.
  absl::Status Follow(model::ModelRunner& own, const std::string& address,
                      const std::function<void()>& before_step, const std::function<void()>& ready);

 private:
  class Leader;
  explicit NodeRanks(const Options& options) : options_(options) {}
  void OnLost(const absl::Status& why) LYNX_EXCLUDES(mu_);
  // Ends the node. Returns once on_lost has: where that ends the process nobody learns of a step
  // that failed, and routers of nothing but the end.
  void Fail(const absl::Status& why) LYNX_EXCLUDES(mu_);
  // Until on_lost has returned.
  void AwaitTold(std::chrono::steady_clock::duration longest) LYNX_EXCLUDES(mu_);

  // Replicas need not meet at the end of a step, but what is told after it, as who has a block
  // then, is to find nothing of it under way.
  absl::Status MeetAfterStep();

  void OnTold(int rank, const std::string& message) LYNX_EXCLUDES(listener_mu_);
  // As SetListener(), of what is told about experts that move.
  void SetMover(std::function<void(int rank, const proto::RankMessage&)> mover)
      LYNX_EXCLUDES(listener_mu_);

  const Options options_;
  Incarnation incarnation_ = 0;
  std::vector<proto::RankEndpoint> endpoints_;
  Mutex listener_mu_;
  std::function<void(int, const proto::RankMessage&)> listener_ LYNX_GUARDED_BY(listener_mu_);
  std::function<void(int, const proto::RankMessage&)> mover_ LYNX_GUARDED_BY(listener_mu_);
  Mutex mu_;
  CondVar told_changed_;
  bool told_ LYNX_GUARDED_BY(mu_) = false;
  collective::Communicator* to_abort_ LYNX_GUARDED_BY(mu_) = nullptr;
  std::unique_ptr<collective::Communicator> communicator_;
  std::unique_ptr<collective::RankGroup> group_;
};

// Hears on `loop` what the other ranks tell, while it lives and the loop runs.
class RankListener {
 public:
  // ranks: null where there is one rank.
  RankListener(NodeRanks* ranks, EventLoop& loop,
               std::function<void(int rank, const proto::RankMessage&)> hear);
  ~RankListener();
  RankListener(const RankListener&) = delete;
  RankListener& operator=(const RankListener&) = delete;

 private:
  NodeRanks* const ranks_;
};

}  // namespace lynx::node
