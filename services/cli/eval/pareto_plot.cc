#include "services/cli/eval/pareto_plot.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/child_process.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "services/cli/eval/statistics.h"

namespace lynx::cli {
namespace {

constexpr absl::Duration kDrawTimeout = absl::Seconds(60);
constexpr int kPanelWidth = 1000;
constexpr int kPanelHeight = 520;

// A policy's mark. Lower is better in both.
struct Mark {
  double experts = 0;
  Estimate loss;
};

Mark MarkOf(const EvalResult& result) {
  if (result.text) {
    return {.experts = result.text_routing.experts(), .loss = result.text->delta};
  }
  return {.experts = result.task_routing.experts(),
          .loss = {.mean = -100 * result.task_delta.mean, .error = 100 * result.task_delta.error}};
}

std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? "''" : std::string(1, c);
  return quoted + "'";
}

// One panel: the results of a batch size.
void AddPanel(std::span<const EvalResult> results, std::string& script) {
  const EvalResult& first = results.front();
  std::vector<std::string> families;
  std::vector<Tradeoff> points;
  for (const EvalResult& result : results) {
    const Mark mark = MarkOf(result);
    points.push_back({.cost = mark.experts, .loss = mark.loss.mean});
    if (std::find(families.begin(), families.end(), result.family) == families.end()) {
      families.push_back(result.family);
    }
  }
  const std::string suffix = absl::StrCat("_", first.batch);
  absl::StrAppend(&script, "$front", suffix, " << EOD\n");
  for (size_t i : ParetoFront(points)) {
    absl::StrAppendFormat(&script, "%.4f %.6f\n", points[i].cost, points[i].loss);
  }
  absl::StrAppend(&script, "EOD\n");
  for (size_t f = 0; f < families.size(); ++f) {
    absl::StrAppend(&script, "$family", suffix, "_", f, " << EOD\n");
    for (const EvalResult& result : results) {
      if (result.family != families[f]) continue;
      const Mark mark = MarkOf(result);
      absl::StrAppendFormat(&script, "%.4f %.6f %.6f\n", mark.experts, mark.loss.mean,
                            mark.loss.error);
    }
    absl::StrAppend(&script, "EOD\n");
  }
  absl::StrAppendFormat(&script,
                        "set title 'Batch of %d: what is saved and what it costs (bars: one "
                        "standard error)'\n",
                        first.batch);
  absl::StrAppendFormat(&script, "set xlabel 'distinct experts a step and layer (exact: %.1f)'\n",
                        first.routing().experts_exact());
  absl::StrAppend(&script, "plot $front", suffix,
                  " with lines lw 2 lc rgb '#bbbbbb' title 'front'");
  for (size_t f = 0; f < families.size(); ++f) {
    absl::StrAppend(&script, ", \\\n  $family", suffix, "_", f, " with yerrorbars lc ", f + 1,
                    " pt ", f + 4, " ps 0.8 title ", Quoted(families[f]));
  }
  absl::StrAppend(&script, "\n");
}

// The path of a program, as a shell would find it; empty when there is none.
std::string FindProgram(std::string_view name) {
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t end = rest.find(':');
    const std::filesystem::path candidate = std::filesystem::path(rest.substr(0, end)) / name;
    if (access(candidate.c_str(), X_OK) == 0) return candidate.string();
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
  }
  return "";
}

// A file with `content`, removed at the end of the scope.
class ScopedFile {
 public:
  static absl::StatusOr<ScopedFile> Write(const std::filesystem::path& path,
                                          std::string_view content) {
    LYNX_RETURN_IF_ERROR(WriteFileAtomically(path, content));
    return ScopedFile(path);
  }
  ScopedFile(ScopedFile&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  ScopedFile& operator=(ScopedFile&&) = delete;
  ~ScopedFile() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }

 private:
  explicit ScopedFile(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

}  // namespace

absl::Status CheckPlotting() {
  if (!FindProgram("gnuplot").empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "drawing needs gnuplot, which is not on PATH: install Debian's gnuplot-nox");
}

std::string ParetoScript(std::span<const EvalResult> results, const std::filesystem::path& svg) {
  std::vector<std::span<const EvalResult>> panels;
  for (size_t start = 0, end = 0; start < results.size(); start = end) {
    while (end < results.size() && results[end].batch == results[start].batch) ++end;
    panels.push_back(results.subspan(start, end - start));
  }
  std::string script = absl::StrFormat(
      "set terminal svg size %d,%d dynamic background rgb 'white' font 'sans-serif,12' "
      "noenhanced\n",
      kPanelWidth, kPanelHeight * static_cast<int>(panels.size()));
  absl::StrAppend(&script, "set output ", Quoted(svg.string()), "\n",
                  // Losses span three decades and may be a little below zero: a square root, where
                  // a logarithm could not go.
                  "set nonlinear y via (y < 0 ? -sqrt(-y) : sqrt(y)) ",
                  "inverse (y < 0 ? -y * y : y * y)\n", "set key outside right top\n", "set grid\n",
                  // The fifth colour is a yellow that a white page swallows.
                  "set linetype 5 lc rgb '#8b5a2b'\n");
  if (!results.empty() && results.front().text) {
    absl::StrAppend(&script, "set ylabel 'change of NLL, nats a token'\n",
                    "set ytics (-0.003, 0, 0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.5, 1, 2)\n");
  } else {
    absl::StrAppend(&script, "set ylabel 'answers no longer right, points'\n",
                    "set ytics (-1, 0, 0.3, 1, 3, 6, 10, 20, 30, 50, 100)\n");
  }
  absl::StrAppend(&script, "set multiplot layout ", panels.size(), ",1\n");
  for (std::span<const EvalResult> panel : panels) AddPanel(panel, script);
  absl::StrAppend(&script, "unset multiplot\n");
  return script;
}

absl::Status DrawPareto(std::span<const EvalResult> results, const std::filesystem::path& svg) {
  LYNX_RETURN_IF_ERROR(CheckPlotting());
  const std::filesystem::path script_path = absl::StrCat(svg.string(), ".gnuplot");
  LYNX_ASSIGN_OR_RETURN(const ScopedFile script,
                        ScopedFile::Write(script_path, ParetoScript(results, svg)));
  LYNX_ASSIGN_OR_RETURN(
      ChildProcess gnuplot,
      ChildProcess::Start("gnuplot", {FindProgram("gnuplot"), script_path.string()}));
  if (!gnuplot.Stop(kDrawTimeout)) {
    return absl::InternalError(absl::StrCat("gnuplot could not draw ", svg.string()));
  }
  return absl::OkStatus();
}

}  // namespace lynx::cli
