#include "tests/support/fault_trial.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/engine/engine.h"
#include "common/engine/local_generator.h"
#include "common/node/sampling_wire.h"
#include "tests/support/fake_model_runner.h"
#include "tests/support/faulty_channel.h"
#include "tests/support/faulty_transfer_engine.h"
#include "tests/support/metrics_sum.h"

namespace lynx::testing {
namespace {

const FakeModelRunner::Options kModel = {.layers = 2};

// A model that alone gives what prefill and decode nodes give together.
FakeModelRunner::Options ModelOf(const FaultTrial& trial) {
  FakeModelRunner::Options model = kModel;
  if (trial.unlike) model.decode_class = 1;
  return model;
}

class Client final : public router::SequenceSink {
 public:
  // `broken` takes the first promise that is broken to any of the clients.
  Client(size_t number, std::vector<TokenId> answer, std::string& broken)
      : number_(number), want_(std::move(answer)), broken_(broken) {}

  void OnFirstToken(const proto::FirstToken& first) override {
    Hear(std::exchange(begun_, true) ? "a second first token" : "");
    if (first.has_token()) Take(first.token());
  }
  void OnTokens(std::span<const proto::Token* const> tokens) override {
    Hear(begun_ ? "" : "tokens before the first one");
    for (const proto::Token* token : tokens) Take(*token);
  }
  void OnResumed() override { Hear(begun_ ? "" : "resumed before it began"); }
  void OnEnd(const router::SequenceEnd& end) override {
    Hear("");
    ended = true;
    if (!end.status.ok()) {
      Break(absl::StrCat("ended after ", got_, " of ", want_.size(),
                         " tokens: ", end.status.ToString()));
    } else if (got_ != want_.size()) {
      Break(absl::StrCat("ended as complete after ", got_, " of ", want_.size(), " tokens"));
    }
  }
  bool over() const { return left || ended; }

  router::SequenceId id = 0;
  bool ended = false;
  bool left = false;

 private:
  void Break(const std::string& what) {
    if (broken_.empty()) broken_ = absl::StrCat("request ", number_, ": ", what);
  }
  void Hear(const char* wrong) {
    if (ended) wrong = "something after the end";
    if (left) wrong = "something after it left";
    if (*wrong != '\0') Break(wrong);
  }
  void Take(const proto::Token& token) {
    if (got_ < want_.size() && want_[got_] == token.id()) {
      ++got_;
    } else {
      Break(absl::StrCat("token ", got_, " of ", want_.size(), " is ", token.id()));
    }
  }

  const size_t number_;
  const std::vector<TokenId> want_;
  std::string& broken_;
  size_t got_ = 0;
  bool begun_ = false;
};

class Run {
 public:
  explicit Run(const FaultTrial& trial)
      : trial_(trial),
        alone_(std::make_unique<FakeModelRunner>(ModelOf(trial)),
               {.vocab_size = kModel.vocab_size, .max_step_rows = 64, .max_step_logits = 64}),
        cluster_(Options()) {}

  FaultResult Play(const FaultScript& script) {
    for (size_t i = 0; i < script.size() && Sound(absl::StrCat("before event ", i)); ++i) {
      // In small steps, so that what breaks is seen then.
      for (int32_t left = script[i].after_ms; left > 0; left -= 20) {
        cluster_.Run(absl::Milliseconds(std::min(left, 20)));
        if (!Sound(absl::StrCat("before event ", i))) return result_;
      }
      Do(script[i]);
    }
    if (Sound("after the last event")) Heal();
    return result_;
  }

 private:
  SimCluster::Options Options() {
    SimCluster::Options options = {.prefill = trial_.prefill,
                                   .decode = trial_.decode,
                                   .kv_blocks = trial_.kv_blocks,
                                   .step_rows = 64,
                                   .prompt_rows = trial_.prompt_rows};
    FakeModelRunner::Options model = kModel;
    model.kv_blocks = options.kv_blocks;
    options.make_runner = [model] { return std::make_unique<FakeModelRunner>(model); };
    if (trial_.unlike) {
      options.swap_blocks = 64 * options.kv_blocks;
      model.numeric_class = *ModelOf(trial_).decode_class;
      options.wrap_runner = [model](const std::string& name,
                                    std::unique_ptr<model::ModelRunner> prefills) {
        return name.starts_with("decode") ? std::make_unique<FakeModelRunner>(model)
                                          : std::move(prefills);
      };
    }
    options.session.max_retries = 1 << 20;
    options.session.queue_timeout = options.session.resume_timeout = absl::Hours(10);
    options.wrap_channel = [this](const std::string& name, EventLoop& loop,
                                  std::unique_ptr<rpc::Channel> channel) {
      auto faulty = std::make_unique<FaultyChannel>(std::move(channel), loop);
      faulty->set_script([this, name](int, const proto::Envelope&) { return OnMessage(name); });
      return faulty;
    };
    options.wrap_transfer = [this](const std::string& name, EventLoop& loop,
                                   std::unique_ptr<transfer::TransferEngine> engine) {
      auto faulty = std::make_unique<FaultyTransferEngine>(std::move(engine), loop);
      faulty->set_script(
          [this, name](int, const proto::TransferHeader&) { return OnTransfer(name); });
      return faulty;
    };
    return options;
  }

  ChannelFault OnMessage(const std::string& name) {
    Faults& faults = faults_[name];
    if (faults.cut) return {.drop = true};
    if (faults.messages == 0) return {};
    --faults.messages;
    return faults.message;
  }
  TransferFault OnTransfer(const std::string& name) {
    Faults& faults = faults_[name];
    if (faults.transfer_in == 0 || --faults.transfer_in > 0) return {};
    return faults.transfer;
  }

  void Do(const FaultEvent& event) {
    const bool alive = cluster_.alive(event.who);
    Faults& faults = faults_[event.who];
    const auto messages = [&](ChannelFault fault) {
      faults.message = fault;
      faults.messages = event.a;
    };
    const auto transfer = [&](TransferFault fault) {
      fault.byte = static_cast<uint64_t>(event.a) * 977;
      faults.transfer = fault;
      faults.transfer_in = event.a;
    };
    switch (event.op) {
      case FaultEvent::kSubmit:
        Submit(event.a, event.b);
        break;
      case FaultEvent::kCancel:
        if (event.a < static_cast<int32_t>(clients_.size())) {
          Client& client = *clients_[static_cast<size_t>(event.a)];
          if (client.over()) break;
          cluster_.service().Cancel(client.id);
          client.left = true;
        }
        break;
      case FaultEvent::kKill:
        if (alive) cluster_.Kill(event.who);
        draining_.erase(event.who);
        break;
      case FaultEvent::kStart:
        if (!alive) cluster_.Start(event.who);
        break;
      case FaultEvent::kDrain:
        if (!alive) break;
        cluster_.Drain(event.who);
        draining_.insert(event.who);
        break;
      case FaultEvent::kRestart:
        Restart(event.who);
        break;
      case FaultEvent::kFreeze:
        if (alive) cluster_.Freeze(event.who);
        break;
      case FaultEvent::kThaw:
        if (alive) cluster_.Thaw(event.who);
        break;
      case FaultEvent::kCut:
        faults.cut = true;
        break;
      case FaultEvent::kHeal:
        faults.cut = false;
        break;
      case FaultEvent::kDrop:
        messages({.drop = true});
        break;
      case FaultEvent::kDouble:
        messages({.copies = 2});
        break;
      case FaultEvent::kDelay:
        messages({.delay = absl::Milliseconds(300)});
        break;
      case FaultEvent::kLose:
        transfer({.kind = TransferFault::kLose});
        break;
      case FaultEvent::kCorrupt:
        transfer({.kind = TransferFault::kCorrupt});
        break;
      case FaultEvent::kFail:
        transfer({.kind = TransferFault::kFail});
        break;
      case FaultEvent::kHang:
        transfer({.kind = TransferFault::kHang});
        break;
      case FaultEvent::kBreak:
        transfer({.kind = TransferFault::kBreak});
        break;
      case FaultEvent::kTwice:
        transfer({.kind = TransferFault::kDuplicate});
        break;
      case FaultEvent::kLate:
        transfer({.kind = TransferFault::kDelayInNet, .delay = absl::Seconds(5)});
        break;
    }
  }

  void Restart(const std::string& name) {
    if (cluster_.alive(name)) cluster_.Kill(name);
    draining_.erase(name);
    cluster_.Start(name);
  }

  void Submit(int32_t prompt_tokens, int32_t tokens) {
    // Half of them begin alike, as conversations do.
    std::vector<TokenId> prompt;
    uint64_t hash = clients_.size() % 2 == 0 ? 0 : clients_.size() * 7919;
    for (int32_t i = 0; i < prompt_tokens; ++i) {
      hash = hash * 6364136223846793005 + 1442695040888963407;
      prompt.push_back(static_cast<TokenId>((hash >> 33) % 97));
    }
    auto client = std::make_unique<Client>(clients_.size(), Answer(prompt, tokens), broken_);
    auto id = cluster_.service().Start(
        {.prompt = std::move(prompt), .sampling = PlainSampling(tokens)}, *client);
    if (!id.ok()) {
      client->left = true;  // No pair is ready: a refusal at once.
    } else {
      client->id = *id;
    }
    clients_.push_back(std::move(client));
  }

  // What the model gives alone, with room for any of it.
  std::vector<TokenId> Answer(const std::vector<TokenId>& prompt, int32_t tokens) {
    const engine::GenerateRequest request = {prompt, node::SamplingFromWire(PlainSampling(tokens))};
    const auto result =
        engine::Generate(alone_, std::span(&request, 1),
                         {.max_context_tokens = 512, .max_chunk_tokens = 64, .max_sequences = 1});
    LYNX_CHECK_MSG(result.ok(), result.status().ToString());
    std::vector<TokenId> ids;
    for (const engine::SampledToken& token : result->front().output) ids.push_back(token.id);
    return ids;
  }

  bool Sound(const std::string& when) {
    if (result_.broken.has_value()) return false;
    if (!broken_.empty()) {
      result_.broken = absl::StrCat(when, ", ", broken_);
      return false;
    }
    if (!cluster_.service().Watched()) {
      result_.broken = absl::StrCat(when, ": a sequence waits without a deadline");
      return false;
    }
    return true;
  }

  void Heal() {
    for (auto& [name, faults] : faults_) faults = {};
    const auto each_node = [&](const std::string& role, int count) {
      for (int i = 0; i < count; ++i) {
        const std::string name = absl::StrCat(role, i);
        if (draining_.contains(name)) {
          Restart(name);
        } else if (cluster_.alive(name)) {
          cluster_.Thaw(name);
        } else {
          cluster_.Start(name);
        }
      }
    };
    each_node("prefill-", trial_.prefill);
    each_node("decode-", trial_.decode);
    const auto all_over = [&] {
      return std::all_of(clients_.begin(), clients_.end(), [](auto& c) { return c->over(); });
    };
    const bool over = cluster_.RunUntil(all_over, absl::Minutes(30));
    if (!Sound("healed")) return;
    if (!over) {
      result_.broken = "healed: requests go on without an end";
      return;
    }
    if (!cluster_.RunUntil([&] { return cluster_.Idle(); }, absl::Minutes(10))) {
      result_.broken = "healed: something is held that nobody needs";
      return;
    }
    if (!cluster_.RunUntil([&] { return cluster_.service().View().ready; }, absl::Minutes(1))) {
      result_.broken = "healed: the cluster is not ready again";
      return;
    }
    Submit(40, 10);
    Client& last = *clients_.back();
    cluster_.RunUntil([&] { return last.over(); }, absl::Minutes(2));
    if (!Sound("at rest")) return;
    if (!last.ended) result_.broken = "at rest: a request is not served";
    for (const auto& client : clients_) result_.finished += client->ended ? 1 : 0;
    const std::string metrics = cluster_.RouterMetrics();
    result_.retried = static_cast<int>(MetricsSum(metrics, "lynx_router_retries_total"));
    result_.resumed =
        static_cast<int>(MetricsSum(metrics, "lynx_router_failovers_total{result=\"resumed\"}"));
    result_.moved =
        static_cast<int>(MetricsSum(metrics, "lynx_router_moves_total{result=\"moved\"}"));
  }

  struct Faults {
    bool cut = false;
    ChannelFault message;
    int32_t messages = 0;  // The next so many.
    TransferFault transfer;
    int32_t transfer_in = 0;  // The so manieth from now; 0: none.
  };

  const FaultTrial trial_;
  engine::Engine alone_;
  FaultResult result_;
  std::string broken_;  // By the service, to a client.
  std::map<std::string, Faults> faults_;
  std::set<std::string> draining_;
  std::vector<std::unique_ptr<Client>> clients_;  // Outlive the cluster.
  SimCluster cluster_;
};

}  // namespace

FaultResult RunFaults(const FaultTrial& trial, const FaultScript& script) {
  return Run(trial).Play(script);
}

}  // namespace lynx::testing
