#include "common/node/node_ranks.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/collective/gloo_communicator.h"
#include "common/kv/kv_arena.h"
#include "common/kv/kv_shards.h"
#include "common/node/step_plan.h"

namespace lynx::node {
namespace {

// A bound for on_lost, which ends the process or returns at once.
constexpr auto kTellTime = std::chrono::seconds(5);

// What a rank that has loaded tells rank 0.
std::string Report(model::ModelRunner& runner) {
  return absl::StrCat(runner.compatibility_hash(), "\n", runner.numeric_class(), "\n",
                      runner.kv().blocks(), "\n", runner.kv().handle());
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
         std::vector<std::unique_ptr<kv::KvArena>> others, kv::KvShards shards)
      : ranks_(ranks),
        own_(std::move(own)),
        others_(std::move(others)),
        shards_(std::move(shards)) {}

  absl::Status Step(std::span<const model::SequenceRows> batch,
                    model::StepObserver* observer) override {
    absl::Status status = ranks_.group_->Send(EncodeStep(batch));
    if (status.ok()) {
      status = own_->Step(batch, observer);
      if (OfTheStepAlone(status)) return status;
    }
    ranks_.Fail(status);
    return status;
  }
  std::span<const float> logits() const override { return own_->logits(); }
  const model::StepStats& stats() const override { return own_->stats(); }
  const model::ModelSpec& spec() const override { return own_->spec(); }
  kv::KvArena& kv() override { return own_->kv(); }
  kv::KvShards shards() override { return shards_; }
  const std::string& numeric_class() const override { return own_->numeric_class(); }
  const std::string& compatibility_hash() const override { return own_->compatibility_hash(); }

 private:
  NodeRanks& ranks_;
  const std::unique_ptr<model::ModelRunner> own_;
  const std::vector<std::unique_ptr<kv::KvArena>> others_;  // Of ranks 1 and on.
  const kv::KvShards shards_;
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
  group_->Fail(why);
  const auto deadline = std::chrono::steady_clock::now() + kTellTime;
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
  MutexLock lock(mu_);
  to_abort_ = communicator_.get();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<model::ModelRunner>> NodeRanks::Lead(
    std::unique_ptr<model::ModelRunner> own) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<std::string> reports, group_->Reports());
  const model::ModelSpec& spec = own->spec();
  const DType kv_dtype = own->kv().layout().dtype;
  const kv::KvLayout whole = model::KvLayoutOf(spec, kv_dtype);
  std::vector<kv::KvShards::Shard> shards = {{&own->kv(), 0}};
  std::vector<std::unique_ptr<kv::KvArena>> others;
  const std::vector<std::string> wanted = absl::StrSplit(Report(*own), '\n');
  for (size_t rank = 1; rank < reports.size(); ++rank) {
    const std::vector<std::string> report = absl::StrSplit(reports[rank], '\n');
    for (size_t i = 0; i + 1 < wanted.size(); ++i) {
      if (report.size() == wanted.size() && report[i] == wanted[i]) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " has ", i < report.size() ? report[i] : "nothing", ", rank 0 has ",
          wanted[i], ": they need the same model, options and instruction set"));
    }
    const model::RankShard shard =
        model::ShardOf(spec, options_.layout, static_cast<int32_t>(rank));
    auto arena = kv::KvArena::Attach(report.back(),
                                     model::KvLayoutOf(model::SpecOfShard(spec, shard), kv_dtype),
                                     own->kv().blocks());
    if (!arena.ok()) {
      return absl::Status(arena.status().code(),
                          absl::StrCat("rank ", rank, ": ", std::string(arena.status().message()),
                                       "; the ranks of a node have to share one host"));
    }
    // Latents every rank holds whole.
    const bool by_head = whole.kind == kv::KvKind::kGroupedHeads;
    shards.push_back({arena->get(), by_head ? shard.kv_heads.begin : 0});
    others.push_back(*std::move(arena));
  }
  LYNX_ASSIGN_OR_RETURN(kv::KvShards all, kv::KvShards::Create(whole, std::move(shards)));
  return std::make_unique<Leader>(*this, std::move(own), std::move(others), std::move(all));
}

absl::Status NodeRanks::Follow(model::ModelRunner& own, const std::function<void()>& ready) {
  LYNX_RETURN_IF_ERROR(group_->Report(Report(own)));
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
        status = own.Step(plan->batch(), nullptr);
      }
    }
    if (OfTheStepAlone(status)) continue;
    Fail(status);
    return status;
  }
}

}  // namespace lynx::node
