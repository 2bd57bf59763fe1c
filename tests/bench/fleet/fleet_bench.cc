// Placement policies on a simulated fleet: goodput and latencies at several rates. See README.md.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "services/router/placement/expert_affinity.h"
#include "services/router/placement/least_load.h"
#include "services/router/placement/prefix_aware.h"
#include "services/router/placement/random_choice.h"
#include "services/router/placement/round_robin.h"
#include "services/router/placement/slo_aware.h"
#include "tests/support/fleet_trial.h"

namespace lynx {
namespace {

using MakePolicy = std::function<std::unique_ptr<router::PlacementPolicy>()>;

double Quantile(const std::vector<double>& ascending, double q) {
  if (ascending.empty()) return 0;
  return ascending[static_cast<size_t>(q * static_cast<double>(ascending.size() - 1))];
}

double Percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

void Run(int requests) {
  const std::pair<const char*, MakePolicy> policies[] = {
      {"random", [] { return std::make_unique<router::RandomChoice>(1); }},
      {"round-robin", [] { return std::make_unique<router::RoundRobin>(); }},
      {"least-load", [] { return std::make_unique<router::LeastLoad>(); }},
      {"prefix-aware", [] { return std::make_unique<router::PrefixAware>(); }},
      {"expert-affinity", [] { return std::make_unique<router::ExpertAffinity>(); }},
      {"slo-aware", [] { return std::make_unique<router::SloAware>(); }},
      {"refuse-late", [] { return std::make_unique<router::SloAware>(); }},
  };
  std::printf("%-15s %9s %9s %9s %9s %9s %9s %9s %9s %9s %9s\n", "policy", "requests/s", "finished",
              "TTFT p50", "p99", "TPOT p50", "p99", "goodput", "met SLO", "cached", "held");
  for (const double rate : {400., 800., 1200., 1600.}) {
    const auto trace = testing::MakeConversations({.requests = requests,
                                                   .requests_per_second = rate,
                                                   .burstiness = 0.5,
                                                   .answer = testing::FleetAnswer});
    for (const auto& [name, make] : policies) {
      testing::FleetOptions options = {.cluster = {.routers = 2,
                                                   .prefill = 32,
                                                   .decode = 64,
                                                   .kv_blocks = 2000,
                                                   .step_rows = 512,
                                                   .max_batch = 64}};
      options.slo_tpot = absl::Milliseconds(25);
      options.cluster.slo_tpot = options.slo_tpot;
      options.cluster.slo_ttft = options.slo_ttft;
      options.cluster.refuse_late = std::string(name) == "refuse-late";
      if (options.cluster.refuse_late) options.cluster.session.queue_timeout = options.slo_ttft;
      options.cluster.admission = {.max_in_flight = 100000, .max_queued = 100000};
      options.cluster.make_placement = make;
      const testing::FleetResult r = testing::RunFleet(options, trace);
      std::printf("%-15s %9.0f %9d %9.3f %9.3f %9.4f %9.4f %9.1f %8.1f%% %8.1f%% %8.1f%%%s\n", name,
                  rate, r.finished, Quantile(r.ttft, 0.5), Quantile(r.ttft, 0.99),
                  Quantile(r.tpot, 0.5), Quantile(r.tpot, 0.99), r.goodput(),
                  100.0 * r.met_slo / requests, Percent(r.cached_tokens, r.prompt_tokens),
                  Percent(r.held_tokens, r.held_tokens + r.sent_tokens),
                  r.wrong != 0 || r.failed != 0 || !r.idle ? "  BROKEN" : "");
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace lynx

int main(int argc, char** argv) {
  lynx::Run(argc > 1 ? std::atoi(argv[1]) : 20000);
  return 0;
}
