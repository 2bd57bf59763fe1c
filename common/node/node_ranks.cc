#include "common/node/node_ranks.h"

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/collective/gloo_communicator.h"
#include "common/model/expert_mover.h"
#include "common/node/step_plan.h"
#include "common/node/transfer_identity.h"

namespace lynx::node {
namespace {

// A bound for on_lost, which ends the process or returns at once.
constexpr auto kTellTime = std::chrono::seconds(5);

// That a rank is lost is heard at once where its process has ended; of one that stands still the
// calls of the others wait as well.
constexpr auto kHearTime = std::chrono::milliseconds(500);

constexpr char kIncarnationKey[] = "incarnation";

// What a rank that has loaded tells rank 0.
std::string Report(model::ModelRunner& runner, const std::string& address) {
  return absl::StrCat(runner.compatibility_hash(), "\n", runner.numeric_class(), "\n",
                      runner.kv().blocks(), "\n", address);
}

// What its first lines are.
constexpr const char* kReported[] = {"compatibility hash of the model", "numeric class",
                                     "number of KV blocks"};

std::vector<std::string> ParseReport(const std::string& report) {
  return absl::StrSplit(report, absl::MaxSplits('\n', 3));  // An address is any bytes.
}

// Whether the step was refused by all ranks alike, or abandoned by all: nothing is wrong with them.
bool OfTheStepAlone(const absl::Status& status) {
  return status.ok() || absl::IsInvalidArgument(status) || absl::IsCancelled(status);
}

}  // namespace

// All ranks as one runner: tells the others each step, and makes its own part of it.
class NodeRanks::Leader final : public model::ModelRunner {
 public:
  Leader(NodeRanks& ranks, std::unique_ptr<model::ModelRunner> own,
         const PlacementOptions& placement)
      : ranks_(ranks), own_(std::move(own)) {
    if (own_->expert_mover() == nullptr || placement.metrics == nullptr) return;
    placer_.emplace(placement, *own_->expert_mover(), ranks_);
    ranks_.SetMover([this](int rank, const proto::RankMessage& message) {
      const proto::ExpertsStaged& staged = message.experts_staged();
      placer_->OnStaged(
          rank, staged.change(),
          absl::Status(static_cast<absl::StatusCode>(staged.status_code()), staged.message()));
    });
  }
  ~Leader() override { ranks_.SetMover(nullptr); }

  absl::Status Step(std::span<const model::SequenceRows> batch,
                    model::StepObserver* observer) override {
    const uint32_t change = placer_.has_value() ? placer_->Ready() : 0;
    absl::Status status = ranks_.group_->Send(EncodeStep(batch, change));
    if (status.ok() && change > 0) {
      status = own_->expert_mover()->Commit(change);
      placer_->OnMade();
    }
    if (status.ok()) {
      status = own_->Step(batch, observer);
      if (OfTheStepAlone(status)) {
        const absl::Status met = ranks_.MeetAfterStep();
        if (met.ok()) return status;
        status = met;
      }
    }
    ranks_.Fail(status);
    return status;
  }
  std::span<const float> logits() const override { return own_->logits(); }
  const model::StepStats& stats() const override { return own_->stats(); }
  const model::ModelSpec& spec() const override { return own_->spec(); }
  kv::KvArena& kv() override { return own_->kv(); }
  const std::string& numeric_class() const override { return own_->numeric_class(); }
  const std::string& compatibility_hash() const override { return own_->compatibility_hash(); }

 private:
  NodeRanks& ranks_;
  const std::unique_ptr<model::ModelRunner> own_;
  std::optional<ExpertPlacer> placer_;
};

absl::StatusOr<std::unique_ptr<NodeRanks>> NodeRanks::Create(const Options& options) {
  std::unique_ptr<NodeRanks> ranks(new NodeRanks(options));
  LYNX_ASSIGN_OR_RETURN(
      ranks->group_,
      collective::RankGroup::Create(
          {.rank = options.rank,
           .world = options.layout.world(),
           .address = options.leader,
           .start_timeout = options.start_timeout,
           .silence = options.silence,
           .on_lost = [self = ranks.get()](const absl::Status& why) { self->OnLost(why); },
           .on_told = [self = ranks.get()](
                          int rank, const std::string& message) { self->OnTold(rank, message); },
           .on_refused = options.on_refused}));
  return ranks;
}

NodeRanks::~NodeRanks() {
  group_ = nullptr;  // First: nothing calls OnLost() any more.
}

void NodeRanks::OnLost(const absl::Status& why) {
  {
    MutexLock lock(mu_);
    if (to_abort_ != nullptr) to_abort_->Abort(why);
  }
  if (options_.on_lost != nullptr) options_.on_lost(why);
  MutexLock lock(mu_);
  told_ = true;
  told_changed_.NotifyAll();
}

void NodeRanks::Fail(const absl::Status& why) {
  // A connection between ranks has broken, as those of ranks do that have ended over the loss of a
  // third one. Which one that is the group hears by itself.
  if (absl::IsUnavailable(why)) AwaitTold(kHearTime);
  group_->Fail(why);
  AwaitTold(kTellTime);
}

void NodeRanks::AwaitTold(std::chrono::steady_clock::duration longest) {
  const auto deadline = std::chrono::steady_clock::now() + longest;
  MutexLock lock(mu_);
  while (!told_ && told_changed_.WaitUntil(mu_, deadline)) {
  }
}

absl::Status NodeRanks::Join(const std::string& identity,
                             const std::function<absl::Status()>& check) {
  LYNX_RETURN_IF_ERROR(group_->Join(identity, check));
  auto communicator =
      collective::GlooCommunicator::Connect({.rank = options_.rank,
                                             .size = options_.layout.world(),
                                             .address = group_->host(),
                                             .connect_timeout = options_.start_timeout,
                                             .timeout = options_.call_timeout},
                                            group_->rendezvous());
  if (!communicator.ok()) {
    group_->Leave(communicator.status());
    return communicator.status();
  }
  communicator_ = *std::move(communicator);
  if (options_.rank == 0) {
    LYNX_RETURN_IF_ERROR(group_->rendezvous().Put(kIncarnationKey, HexId(options_.incarnation)));
  }
  LYNX_ASSIGN_OR_RETURN(const std::string incarnation,
                        group_->rendezvous().Get(kIncarnationKey, options_.start_timeout));
  if (!absl::SimpleHexAtoi(incarnation, &incarnation_)) {
    return absl::InternalError(absl::StrCat("rank 0 has the incarnation '", incarnation, "'"));
  }
  MutexLock lock(mu_);
  to_abort_ = communicator_.get();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<model::ModelRunner>> NodeRanks::Lead(
    std::unique_ptr<model::ModelRunner> own, const PlacementOptions& placement) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<std::string> reports, group_->Reports());
  const model::ModelSpec& spec = own->spec();
  const std::vector<std::string> wanted = ParseReport(Report(*own, ""));
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const std::vector<std::string> report = rank == 0 ? wanted : ParseReport(reports[rank]);
    for (size_t i = 0; i + 1 < wanted.size(); ++i) {
      if (report.size() == wanted.size() && report[i] == wanted[i]) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("the ", kReported[i], " of rank ", rank, " is ",
                       i < report.size() ? report[i] : "unknown", ", of rank 0 ", wanted[i],
                       ": ranks need the same model, options and instruction set"));
    }
    const auto number = static_cast<int32_t>(rank);
    const kv::KvLayout layout =
        model::KvLayoutOf(model::SpecOfShard(spec, model::ShardOf(spec, options_.layout, number)),
                          own->kv().layout().dtype);
    proto::RankEndpoint& endpoint = endpoints_.emplace_back();
    endpoint.set_transfer_address(report.back());
    endpoint.set_head_begin(FirstKvHead(spec, options_.layout, number));
    endpoint.set_head_end(endpoint.head_begin() + layout.kv_heads);
  }
  return std::make_unique<Leader>(*this, std::move(own), placement);
}

absl::Status NodeRanks::MeetAfterStep() {
  return options_.layout.dp > 1 ? communicator_->Barrier() : absl::OkStatus();
}

void NodeRanks::Tell(const proto::RankMessage& message) {
  // That it cannot be told is the end of the node, of which on_lost hears.
  group_->Tell(message.SerializeAsString()).IgnoreError();
}

void NodeRanks::SetListener(std::function<void(int, const proto::RankMessage&)> listener) {
  MutexLock lock(listener_mu_);
  listener_ = std::move(listener);
}

void NodeRanks::SetMover(std::function<void(int, const proto::RankMessage&)> mover) {
  MutexLock lock(listener_mu_);
  mover_ = std::move(mover);
}

void NodeRanks::OnTold(int rank, const std::string& bytes) {
  proto::RankMessage message;
  if (!message.ParseFromString(bytes)) {
    group_->Fail(absl::InternalError(absl::StrCat("rank ", rank, " tells what cannot be read")));
    return;
  }
  const bool moves =
      message.has_stage_experts() || message.has_drop_experts() || message.has_experts_staged();
  MutexLock lock(listener_mu_);
  const auto& hear = moves ? mover_ : listener_;
  if (hear != nullptr) hear(rank, message);
}

absl::Status NodeRanks::Follow(model::ModelRunner& own, const std::string& address,
                               const std::function<void()>& before_step,
                               const std::function<void()>& ready) {
  std::optional<ExpertPlacerRank> placer;
  if (own.expert_mover() != nullptr) {
    placer.emplace(*own.expert_mover(), *this);
    SetMover([&](int, const proto::RankMessage& message) { placer->OnMessage(message); });
  }
  const absl::Cleanup deaf = [this] { SetMover(nullptr); };
  LYNX_RETURN_IF_ERROR(group_->Report(Report(own, address)));
  if (ready != nullptr) ready();
  for (;;) {
    absl::StatusOr<std::string> message = group_->Receive();
    if (absl::IsCancelled(message.status())) return absl::OkStatus();
    LYNX_RETURN_IF_ERROR(message.status());
    absl::Status status;
    {
      absl::StatusOr<StepPlan> plan = StepPlan::Decode(*message);
      if (!plan.ok()) {
        status = absl::InternalError(plan.status().message());
      } else {
        if (before_step != nullptr) before_step();
        if (plan->expert_change() > 0) {
          status = own.expert_mover() == nullptr
                       ? absl::InternalError("experts are to move that cannot")
                       : own.expert_mover()->Commit(plan->expert_change());
        }
        if (status.ok()) status = own.Step(plan->batch(), nullptr);
      }
    }
    if (OfTheStepAlone(status)) status = MeetAfterStep();
    if (status.ok()) continue;
    Fail(status);
    return status;
  }
}

RankListener::RankListener(NodeRanks* ranks, EventLoop& loop,
                           std::function<void(int, const proto::RankMessage&)> hear)
    : ranks_(ranks) {
  if (ranks_ == nullptr) return;
  ranks_->SetListener([&loop, hear = std::move(hear)](int rank, const proto::RankMessage& message) {
    loop.Post([hear, rank, message] { hear(rank, message); });
  });
}

RankListener::~RankListener() {
  if (ranks_ != nullptr) ranks_->SetListener(nullptr);
}

}  // namespace lynx::node
