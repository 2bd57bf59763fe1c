#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "services/cli/eval/results.h"

namespace lynx::cli {

// Whether plots can be drawn here. FailedPrecondition: gnuplot is not installed.
absl::Status CheckPlotting();

// The gnuplot script that draws `svg`: distinct experts against the change of NLL (of answers where
// there is no text), one panel a batch size, one mark a policy, a line through the Pareto front.
std::string ParetoScript(std::span<const EvalResult> results, const std::filesystem::path& svg);

// Draws `svg` with gnuplot, as a child process.
//   FailedPrecondition  gnuplot is not installed.
//   Internal            it failed, or took too long; its own message is on standard error.
absl::Status DrawPareto(std::span<const EvalResult> results, const std::filesystem::path& svg);

}  // namespace lynx::cli
