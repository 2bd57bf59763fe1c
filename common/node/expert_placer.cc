#include "common/node/expert_placer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/telemetry/log.h"

namespace lynx::node {
namespace {

// Steps that a layer's placement is judged by, at the least.
constexpr size_t kLeastSteps = moe::ExpertHistory::kRecent / 2;
// What the history of one interval counts in the next.
constexpr double kKeep = 0.5;

// Steps go first: a change may take its time.
void YieldToSteps() {
  // Cannot fail for a thread of our own; if it does, the thread is no worse than others.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);
}

proto::RankMessage ChangeMessage(const model::ExpertChange& change) {
  proto::RankMessage message;
  proto::StageExperts& stage = *message.mutable_stage_experts();
  stage.set_change(change.id);
  stage.set_layer(change.layer);
  for (const std::vector<int32_t>& part : change.slots) {
    stage.add_parts()->mutable_experts()->Assign(part.begin(), part.end());
  }
  return message;
}

telemetry::Counter Changes(telemetry::Registry& registry, const std::string& result) {
  return registry.AddCounter("lynx_moe_placement_changes_total",
                             "Changes of which ranks hold the experts of a layer.",
                             {{"result", result}});
}

}  // namespace

PlacementMetrics::PlacementMetrics(telemetry::Registry& registry)
    : made(Changes(registry, "made")),
      dropped(Changes(registry, "dropped")),
      moved_bytes(registry.AddCounter(
          "lynx_moe_placement_moved_bytes_total",
          "Bytes of experts' weights that ranks have read and packed to take them over.")) {}

ExpertPlacer::ExpertPlacer(const PlacementOptions& options, model::ExpertMover& mover,
                           RankChannel& others)
    : options_(options), mover_(mover), others_(others) {
  const auto layers = mover.layers();
  slots_.resize(static_cast<size_t>(layers.back()) + 1);
  for (const int32_t layer : layers) slots_[static_cast<size_t>(layer)] = mover.first_slots();
  if (options_.interval > absl::ZeroDuration()) thread_ = std::thread([this] { Run(); });
}

ExpertPlacer::~ExpertPlacer() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

uint32_t ExpertPlacer::Ready() {
  MutexLock lock(mu_);
  return ready_;
}

void ExpertPlacer::OnMade() {
  MutexLock lock(mu_);
  ready_ = 0;
  changed_.NotifyAll();
}

void ExpertPlacer::OnStaged(int rank, uint32_t change, const absl::Status& status) {
  MutexLock lock(mu_);
  if (change != staging_) return;  // Given up meanwhile.
  if (!status.ok() && failed_.ok()) {
    failed_ = absl::Status(status.code(), absl::StrCat("rank ", rank, ": ", status.message()));
  }
  staged_.insert(rank);
  changed_.NotifyAll();
}

void ExpertPlacer::Run() {
  YieldToSteps();
  for (;;) {
    {
      const auto next =
          std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options_.interval);
      MutexLock lock(mu_);
      while (!stopping_ && changed_.WaitUntil(mu_, next)) {
      }
      if (stopping_) return;
    }
    for (const Planned& planned : Plan()) {
      if (!Make(planned)) break;
    }
  }
}

std::vector<ExpertPlacer::Planned> ExpertPlacer::Plan() {
  std::vector<Planned> better;
  for (const int32_t layer : mover_.layers()) {
    const moe::ExpertHistory::Layer history = mover_.history().Get(layer);
    if (history.recent.size() < kLeastSteps) continue;
    moe::SlotPlan plan = moe::PlanSlots(slots_[static_cast<size_t>(layer)], history,
                                        model::ExpertMover::kMostNew, options_.least_gain);
    if (!plan.changes.empty()) better.push_back({layer, std::move(plan)});
  }
  mover_.history().Age(kKeep);
  const auto saved = [](const Planned& planned) {
    return planned.plan.before - planned.plan.after;
  };
  std::ranges::stable_sort(better, std::greater(), saved);
  return better;
}

bool ExpertPlacer::Make(const Planned& planned) {
  moe::ExpertSlots& slots = slots_[static_cast<size_t>(planned.layer)];
  int32_t moved = 0;
  for (const moe::ExpertSlots& next : planned.plan.changes) {
    if (!Make(model::ExpertChange{.id = ++last_id_, .layer = planned.layer, .slots = next})) {
      return false;
    }
    moved += moe::CountNew(slots, next);
    slots = next;
  }
  telemetry::LogInfo("experts moved",
                     {{"layer", absl::StrCat(planned.layer)},
                      {"experts", absl::StrCat(moved)},
                      {"fullest_before", absl::StrFormat("%.2f", planned.plan.before)},
                      {"fullest_after", absl::StrFormat("%.2f", planned.plan.after)}});
  return true;
}

bool ExpertPlacer::Make(const model::ExpertChange& change) {
  {
    MutexLock lock(mu_);
    if (stopping_) return false;
    staging_ = change.id;
    staged_.clear();
    failed_ = absl::OkStatus();
  }
  others_.Tell(ChangeMessage(change));
  absl::Status status = mover_.Stage(change);
  // Also after a failure here: the others are not asked for the next before they are done.
  if (absl::Status others = AwaitOthers(); status.ok()) status = std::move(others);
  if (!status.ok()) {
    {
      MutexLock lock(mu_);
      staging_ = 0;
      if (stopping_) return false;
    }
    mover_.Drop();
    proto::RankMessage drop;
    drop.mutable_drop_experts()->set_change(change.id);
    others_.Tell(drop);
    options_.metrics->dropped.Increment();
    telemetry::LogWarning(
        "experts stay where they are",
        {{"layer", absl::StrCat(change.layer)}, {"status", std::string(status.ToString())}});
    return false;
  }
  {
    MutexLock lock(mu_);
    ready_ = change.id;
    while (ready_ != 0 && !stopping_) changed_.Wait(mu_);  // For a step, whenever there is one.
    if (ready_ != 0) return false;
  }
  const moe::ExpertSlots& slots = slots_[static_cast<size_t>(change.layer)];
  const auto ranks_of_part = (others_.others() + 1) / std::ssize(slots);
  options_.metrics->made.Increment();
  options_.metrics->moved_bytes.Increment(static_cast<double>(
      moe::CountNew(slots, change.slots) * mover_.expert_bytes() * ranks_of_part));
  return true;
}

absl::Status ExpertPlacer::AwaitOthers() {
  const auto deadline =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options_.timeout);
  MutexLock lock(mu_);
  while (staged_.size() < static_cast<size_t>(others_.others())) {
    if (stopping_) return absl::CancelledError("the node ends");
    if (changed_.WaitUntil(mu_, deadline)) continue;
    return absl::DeadlineExceededError(absl::StrCat(staged_.size(), " of ", others_.others(),
                                                    " other ranks were ready after ",
                                                    absl::FormatDuration(options_.timeout)));
  }
  return failed_;
}

ExpertPlacerRank::ExpertPlacerRank(model::ExpertMover& mover, RankChannel& rank0)
    : mover_(mover), rank0_(rank0), thread_([this] { Run(); }) {}

ExpertPlacerRank::~ExpertPlacerRank() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  mover_.Drop();  // Nothing waits for a step that does not come.
  thread_.join();
}

void ExpertPlacerRank::OnMessage(const proto::RankMessage& message) {
  MutexLock lock(mu_);
  todo_.push_back(message);
  changed_.NotifyAll();
}

void ExpertPlacerRank::Run() {
  YieldToSteps();
  for (;;) {
    proto::RankMessage message;
    {
      MutexLock lock(mu_);
      while (todo_.empty() && !stopping_) changed_.Wait(mu_);
      if (stopping_) return;
      message = std::move(todo_.front());
      todo_.pop_front();
    }
    if (message.has_drop_experts()) {
      mover_.Drop();
      continue;
    }
    const proto::StageExperts& stage = message.stage_experts();
    model::ExpertChange change{.id = stage.change(), .layer = stage.layer()};
    for (const proto::StageExperts::Part& part : stage.parts()) {
      change.slots.emplace_back(part.experts().begin(), part.experts().end());
    }
    const absl::Status status = mover_.Stage(change);
    proto::RankMessage answer;
    proto::ExpertsStaged& staged = *answer.mutable_experts_staged();
    staged.set_change(change.id);
    staged.set_status_code(static_cast<uint32_t>(status.code()));
    staged.set_message(std::string(status.message()));
    rank0_.Tell(answer);
  }
}

}  // namespace lynx::node
