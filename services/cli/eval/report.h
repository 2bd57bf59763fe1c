#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <string>

#include "services/cli/eval/results.h"

namespace lynx::cli {

// What an evaluation was of, for people who read its output.
struct EvalSetup {
  std::string model = {};
  std::string numeric_class = {};
  int32_t context = 0;
  int32_t positions = 0;
  bool exact_kv = false;
  int64_t windows = 0;
  int64_t task_items = 0;
};

// The tables of one batch size: every policy, then families at matched numbers of experts.
void PrintTables(const EvalSetup& setup, std::span<const EvalResult> results, std::ostream& out);

// {"results": [...]}: one object a policy and batch size; docs/lynx.md lists its members. What was
// not measured is null or missing.
std::string ToJson(const EvalSetup& setup, std::span<const EvalResult> results);

}  // namespace lynx::cli
