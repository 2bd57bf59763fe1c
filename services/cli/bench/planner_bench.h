#pragma once

#include <ostream>

namespace lynx::cli {

// `lynx bench planner [--traces FILE.bin] [--policy P] ...`: microseconds to plan one MoE layer of
// a decode step, on one core and real router logits, next to what one layer of a model shaped like
// OLMoE-1B-7B takes. argv[0] is "bench"; arguments, output and exit status as RunBench (bench.h).
int RunPlannerBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
