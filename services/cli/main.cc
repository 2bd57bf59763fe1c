#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

#include "common/config/flag_set.h"
#include "services/cli/bench/bench.h"
#include "services/cli/chat.h"
#include "services/cli/eval/eval.h"
#include "services/cli/inspect/inspect.h"
#include "services/cli/keygen.h"
#include "services/cli/loadtest/loadtest.h"
#include "services/cli/plan.h"
#include "services/cli/top/top.h"
#include "services/cli/up.h"

namespace {

int RunBench(int argc, const char* const* argv) {
  return lynx::cli::RunBench(argc, argv, std::cout, std::cerr);
}

int RunEval(int argc, const char* const* argv) {
  return lynx::cli::RunEval(argc, argv, std::cout, std::cerr);
}

int RunInspect(int argc, const char* const* argv) {
  return lynx::cli::RunInspect(argc, argv, std::cout, std::cerr);
}

int RunKeygen(int argc, const char* const* argv) {
  return lynx::cli::RunKeygen(argc, argv, std::cout, std::cerr);
}

int RunLoadtest(int argc, const char* const* argv) {
  return lynx::loadtest::RunLoadtest(argc, argv, std::cout, std::cerr);
}

int RunPlan(int argc, const char* const* argv) {
  return lynx::cli::RunPlan(argc, argv, std::cout, std::cerr);
}

int RunTop(int argc, const char* const* argv) {
  return lynx::cli::RunTop(argc, argv, std::cout, std::cerr);
}

constexpr struct {
  const char* name;
  int (*run)(int argc, const char* const* argv);
  const char* what;
} kCommands[] = {
    {"up", lynx::cli::RunUp, "run a whole cluster on this machine"},
    {"chat", lynx::cli::RunChat, "talk to a cluster"},
    {"bench", RunBench, "measure an engine, the planner, the hand-off or the router"},
    {"eval", RunEval, "measure what routing policies save and cost"},
    {"inspect", RunInspect, "say what a model is and what it takes to serve it"},
    {"keygen", RunKeygen, "make a key pair for the control plane"},
    {"loadtest", RunLoadtest, "put any OpenAI-style server under load and measure it"},
    {"plan", RunPlan, "show what a routing policy does to router logits"},
    {"top", RunTop, "show what a cluster does now"},
};

int Usage(FILE* out, int status) {
  std::fputs("usage: lynx COMMAND [--help | OPTIONS]\n       lynx --version\n\n", out);
  for (const auto& command : kCommands) {
    std::fprintf(out, "  %-9s %s\n", command.name, command.what);
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return Usage(stderr, 2);
  for (const char* help : {"--help", "-h", "help"}) {
    if (std::strcmp(argv[1], help) == 0) return Usage(stdout, 0);
  }
  if (std::strcmp(argv[1], "--version") == 0) {
    std::printf("lynx %s\n", std::string(lynx::config::Version()).c_str());
    return 0;
  }
  for (const auto& command : kCommands) {
    if (std::strcmp(argv[1], command.name) == 0) return command.run(argc - 1, argv + 1);
  }
  std::fprintf(stderr, "lynx: no command '%s'\n", argv[1]);
  return Usage(stderr, 2);
}
