#include "tests/support/fleet_trial.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lynx::testing {
namespace {

const FakeModelRunner::Options kModel = {.layers = 1, .chained = true};

// What the clients of a trial have in common.
struct Progress {
  uint64_t digest = 0xcbf29ce484222325;
  size_t open = 0;  // Clients not ended.
};

// One client. Mixes all it hears and when into the digest.
class Client final : public router::SequenceSink {
 public:
  Client(const FleetRequest& request, EventLoop& loop, Progress& progress)
      : request_(request), loop_(loop), progress_(progress) {
    ++progress_.open;
  }

  void OnFirstToken(const proto::FirstToken& first) override {
    LYNX_CHECK(!ended() && ids_.empty());
    first_ = loop_.Now();
    cached_tokens_ = first.cached_tokens();
    if (first.has_token()) Hear(first.token());
  }
  void OnTokens(std::span<const proto::Token* const> tokens) override {
    LYNX_CHECK(!ended());
    for (const proto::Token* token : tokens) Hear(*token);
  }
  void OnEnd(const router::SequenceEnd& end) override {
    LYNX_CHECK(!ended());
    Ends(end.status);
  }
  void Ends(const absl::Status& status) {
    end_ = loop_.Now();
    status_ = status;
    --progress_.open;
    Mix(static_cast<uint64_t>(status.code()));
  }

  bool ended() const { return end_ != absl::InfiniteFuture(); }
  absl::Time end() const { return end_; }
  const absl::Status& status() const { return status_; }
  const FleetRequest& request() const { return request_; }
  const std::vector<TokenId>& ids() const { return ids_; }
  absl::Duration ttft(absl::Time start) const { return first_ - (start + request_.arrival); }
  int32_t cached_tokens() const { return cached_tokens_; }
  bool started() const { return first_ != absl::InfinitePast(); }
  absl::Duration tpot() const {
    return ids_.size() < 2 ? absl::ZeroDuration()
                           : (end_ - first_) / static_cast<int64_t>(ids_.size() - 1);
  }

 private:
  void Hear(const proto::Token& token) {
    ids_.push_back(token.id());
    Mix(static_cast<uint64_t>(token.id()));
  }
  // FNV-1a over words.
  void Mix(uint64_t value) {
    for (const uint64_t word : {value, static_cast<uint64_t>(absl::ToUnixNanos(loop_.Now()))}) {
      progress_.digest = (progress_.digest ^ word) * 0x100000001b3;
    }
  }

  const FleetRequest& request_;
  EventLoop& loop_;
  Progress& progress_;
  std::vector<TokenId> ids_;
  int32_t cached_tokens_ = 0;
  absl::Time first_ = absl::InfinitePast();
  absl::Time end_ = absl::InfiniteFuture();
  absl::Status status_;
};

// Of a node's metrics page.
int64_t Value(const std::string& page, const std::string& series) {
  const std::string start = absl::StrCat("\n", series, " ");
  const size_t at = page.find(start);
  LYNX_CHECK(at != std::string::npos);
  return std::stoll(page.substr(at + start.size()));
}

int64_t PromptTokens(const std::string& page, const std::string& source) {
  return Value(page,
               absl::StrCat("lynx_node_prompt_tokens_total{model_name=\"lynx-tiny-moe\",source=\"",
                            source, "\"}"));
}

bool IsRefusal(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status) ||
         absl::IsOutOfRange(status);
}

}  // namespace

absl::Duration StepTimes::Of(const model::StepStats& stats) const {
  absl::Duration took = absl::ZeroDuration();
  if (stats.prefill_rows > 0) took += prefill_step + prefill_row * stats.prefill_rows;
  if (stats.decode_rows > 0) {
    took += decode_step + all_experts * (1 - std::pow(1 - experts_per_row, stats.decode_rows));
  }
  return took;
}

std::vector<TokenId> FleetAnswer(const std::vector<TokenId>& prompt, int32_t tokens) {
  return FakeModelRunner::GreedyAnswer(kModel, prompt, tokens);
}

FleetResult RunFleet(const FleetOptions& options, const std::vector<FleetRequest>& trace) {
  FakeModelRunner::Options model = kModel;
  model.kv_blocks = options.cluster.kv_blocks;
  model.max_step_rows = options.cluster.step_rows;
  model.max_step_logits = options.cluster.step_rows;
  SimCluster::Options cluster_options = options.cluster;
  cluster_options.make_runner = [model] { return std::make_unique<FakeModelRunner>(model); };
  cluster_options.step_time = [times = options.times](const model::StepStats& stats) {
    return times.Of(stats);
  };
  Progress progress;
  std::vector<std::unique_ptr<Client>> clients;  // Outlive the cluster.
  SimCluster cluster(cluster_options);
  EventLoop& loop = cluster.loop();
  const absl::Time start = loop.Now();
  std::mt19937_64 random(options.seed);

  for (const FleetRequest& request : trace) {
    clients.push_back(std::make_unique<Client>(request, loop, progress));
    Client& client = *clients.back();
    const size_t router = random() % static_cast<uint64_t>(cluster_options.routers);
    const double leaves = static_cast<double>(random() >> 11) * 0x1p-53;
    const TenantId tenant = options.tenants > 1 ? random() % options.tenants : 0;
    loop.RunAfter(request.arrival, [&, router, leaves, tenant] {
      const auto id =
          cluster.service(router).Start({.prompt = client.request().prompt,
                                         .sampling = PlainSampling(client.request().output_tokens),
                                         .tenant = tenant},
                                        client);
      if (!id.ok()) return client.Ends(id.status());
      if (leaves >= options.cancel_share) return;
      // Within about the time that answers take.
      loop.RunAfter(absl::Seconds(leaves / options.cancel_share), [&, router, id = *id] {
        if (client.ended()) return;
        cluster.service(router).Cancel(id);
        client.Ends(absl::CancelledError());
      });
    });
  }
  cluster.RunUntil([&] { return progress.open == 0; }, trace.back().arrival + absl::Minutes(10));
  FleetResult result = {.failed = static_cast<int>(progress.open), .digest = progress.digest};
  result.idle = cluster.RunUntil([&] { return cluster.Idle(); }, absl::Minutes(1));

  absl::Time last = start;
  for (const auto& client : clients) {
    if (!client->ended()) continue;
    last = std::max(last, client->end());
    if (client->started()) {
      result.prompt_tokens += static_cast<int64_t>(client->request().prompt.size());
      result.cached_tokens += client->cached_tokens();
    }
    const std::vector<TokenId> want =
        FleetAnswer(client->request().prompt, client->request().output_tokens);
    const bool finished = client->status().ok();
    if (finished ? client->ids() != want
                 : !std::equal(client->ids().begin(), client->ids().end(), want.begin())) {
      ++result.wrong;
    }
    if (absl::IsCancelled(client->status())) {
      ++result.cancelled;
    } else if (IsRefusal(client->status())) {
      ++result.refused;
    } else if (!finished) {
      ++result.failed;
    } else {
      ++result.finished;
      result.ttft.push_back(absl::ToDoubleSeconds(client->ttft(start)));
      result.tpot.push_back(absl::ToDoubleSeconds(client->tpot()));
      if (client->ttft(start) <= options.slo_ttft && client->tpot() <= options.slo_tpot) {
        ++result.met_slo;
      }
    }
  }
  for (int i = 0; i < options.cluster.decode; ++i) {
    const std::string page = cluster.Metrics(absl::StrCat("decode-", i));
    result.held_tokens += PromptTokens(page, "held");
    result.sent_tokens += PromptTokens(page, "transferred");
    result.local_prefills +=
        Value(page, "lynx_node_local_prefills_total{model_name=\"lynx-tiny-moe\"}");
    result.preemptions += Value(page, "lynx_node_preemptions_total{model_name=\"lynx-tiny-moe\"}");
    result.copied_bytes += Value(page, "lynx_node_swapped_out_bytes_total");
  }
  std::sort(result.ttft.begin(), result.ttft.end());
  std::sort(result.tpot.begin(), result.tpot.end());
  result.seconds = absl::ToDoubleSeconds(last - (start + trace.front().arrival));
  return result;
}

}  // namespace lynx::testing
