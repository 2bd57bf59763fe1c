#include "services/cli/bench/bench.h"

#include <string_view>

#include "services/cli/bench/memory_bench.h"
#include "services/cli/bench/model_bench.h"
#include "services/cli/bench/planner_bench.h"
#include "services/cli/bench/ranks_bench.h"
#include "services/cli/bench/router/echo_server.h"
#include "services/cli/bench/router/router_bench.h"
#include "services/cli/bench/transfer/transfer_bench.h"
#include "services/cli/bench/transfer/transfer_peer.h"

namespace lynx::cli {
namespace {

constexpr struct {
  std::string_view name;
  int (*run)(int argc, const char* const* argv, std::ostream& out, std::ostream& err);
  std::string_view what;
} kModes[] = {
    {"memory", RunMemoryBench, "read bandwidth of this machine's memory"},
    {"decode", RunModelBench, "decode steps of a model, or of a model's shape"},
    {"prefill", RunModelBench, "prompts of a model, or of a model's shape"},
    {"planner", RunPlannerBench, "expert assignment of one layer"},
    {"ranks", RunRanksBench, "decode steps of several ranks, in both forms of expert parallelism"},
    {"transfer", RunTransferBench, "hand-off of KV to another process"},
    {"router", RunRouterBench, "streams through a router with stub nodes"},
    // Started by those two.
    {"transfer-peer", RunTransferPeer, ""},
    {"echo-server", RunEchoServer, ""},
};

int Usage(std::ostream& out, int status) {
  out << "usage: lynx bench MODE [--help | OPTIONS]\n\n";
  for (const auto& mode : kModes) {
    if (!mode.what.empty()) out << "  " << mode.name << ": " << mode.what << "\n";
  }
  return status;
}

}  // namespace

int RunBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  if (argc < 2) return Usage(err, 2);
  const std::string_view asked = argv[1];
  if (asked == "--help" || asked == "-h") return Usage(out, 0);
  for (const auto& mode : kModes) {
    if (mode.name == asked) return mode.run(argc, argv, out, err);
  }
  err << "lynx bench: no mode '" << asked << "'\n";
  return Usage(err, 2);
}

}  // namespace lynx::cli
