#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/model/expert_mover.h"
#include "common/node/rank_channel.h"
#include "common/telemetry/metrics.h"

namespace lynx::node {

struct PlacementMetrics {
  explicit PlacementMetrics(telemetry::Registry& registry);

  telemetry::Counter made;
  telemetry::Counter dropped;
  telemetry::Counter moved_bytes;
};

struct PlacementOptions {
  absl::Duration interval = absl::ZeroDuration();  // Between looks at the history; 0: never.
  // Of the mean experts of the fullest rank, the share that a layer's change has to save.
  double least_gain = 0;
  absl::Duration timeout = absl::Seconds(60);  // Until all ranks have staged a change.
  PlacementMetrics* metrics = nullptr;         // Outlives who has it.
};

// Rank 0's part in moving experts while the node serves. Every so often it tries, layer by layer,
// what the history of steps says would be better, on a thread of its own. Where that gains enough
// it tells all ranks what the layer is to become; each stages what it lacks and says so; then the
// next step makes the change on all of them. If one of them cannot, or not in time, nobody does.
class ExpertPlacer {
 public:
  // All outlive this; the options have metrics.
  ExpertPlacer(const PlacementOptions& options, model::ExpertMover& mover, RankChannel& others);
  ~ExpertPlacer();  // Before the others end; no step is running.
  ExpertPlacer(const ExpertPlacer&) = delete;
  ExpertPlacer& operator=(const ExpertPlacer&) = delete;

  // Before a step, on the stepping thread: the change that all ranks make before it, or 0. It is
  // made now: OnMade() follows.
  uint32_t Ready() LYNX_EXCLUDES(mu_);
  void OnMade() LYNX_EXCLUDES(mu_);

  // Of another rank: it has staged the change, or why not. Any thread.
  void OnStaged(int rank, uint32_t change, const absl::Status& status) LYNX_EXCLUDES(mu_);

 private:
  struct Planned {
    int32_t layer = 0;
    moe::SlotPlan plan;
  };
  void Run() LYNX_EXCLUDES(mu_);
  std::vector<Planned> Plan();
  // Whether all of it was made; otherwise it was given up.
  bool Make(const Planned& planned);
  bool Make(const model::ExpertChange& change) LYNX_EXCLUDES(mu_);
  absl::Status AwaitOthers() LYNX_EXCLUDES(mu_);

  const PlacementOptions options_;
  model::ExpertMover& mover_;
  RankChannel& others_;
  std::vector<moe::ExpertSlots> slots_;  // [layers], as they are.
  uint32_t last_id_ = 0;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ LYNX_GUARDED_BY(mu_) = false;
  uint32_t ready_ LYNX_GUARDED_BY(mu_) = 0;
  uint32_t staging_ LYNX_GUARDED_BY(mu_) = 0;  // The change that ranks are asked to stage.
  std::set<int> staged_ LYNX_GUARDED_BY(mu_);  // Ranks.
  absl::Status failed_ LYNX_GUARDED_BY(mu_);
  std::thread thread_;
};

// The others' part: stages what rank 0 says, on a thread of its own.
class ExpertPlacerRank {
 public:
  // Both outlive this.
  ExpertPlacerRank(model::ExpertMover& mover, RankChannel& rank0);
  ~ExpertPlacerRank();
  ExpertPlacerRank(const ExpertPlacerRank&) = delete;
  ExpertPlacerRank& operator=(const ExpertPlacerRank&) = delete;

  // In order; any thread.
  void OnMessage(const proto::RankMessage& message) LYNX_EXCLUDES(mu_);

 private:
  void Run() LYNX_EXCLUDES(mu_);

  model::ExpertMover& mover_;
  RankChannel& rank0_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ LYNX_GUARDED_BY(mu_) = false;
  std::deque<proto::RankMessage> todo_ LYNX_GUARDED_BY(mu_);  // Rank 0 awaits each answer.
  std::thread thread_;
};

}  // namespace lynx::node
