#include "services/cli/bench/bench_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lynx::cli {
namespace {

// As "8+64", with the rows of a prompt beside it.
std::string Batch(const BenchResult& result) {
  if (result.prompt_rows == 0) return absl::StrCat(result.batch);
  return absl::StrCat(result.batch, "+", result.prompt_rows);
}

}  // namespace

void PrintTable(const BenchReport& report, std::ostream& out) {
  out << absl::StrFormat("%s", report.mode);
  if (!report.model.empty()) {
    out << absl::StrFormat(", %s, %d layers, %s", report.model, report.layers,
                           report.numeric_class);
  }
  out << absl::StrFormat("\nread bandwidth %.2f GB/s, %d threads, over %d MiB\n",
                         report.bandwidth_gb_s, report.threads, report.read_buffer_bytes >> 20);
  if (report.arithmetic_gflop_s > 0) {
    out << absl::StrFormat("products with weights in the caches, %s: up to %.0f GFLOP/s\n",
                           report.arithmetic_isa, report.arithmetic_gflop_s);
  }
  for (const std::string& note : report.notes) out << "note: " << note << "\n";
  if (report.results.empty()) return;
  size_t width = 6;
  for (const BenchResult& result : report.results) width = std::max(width, result.policy.size());
  const bool prefill = report.mode == "prefill";
  out << absl::StrFormat("%-*s %6s %8s %10s %10s %10s %10s %8s %7s %7s %8s %10s\n",
                         static_cast<int>(width), "policy", "batch", "context",
                         prefill ? "prompt ms" : "step ms", "p99 ms", "tokens/s", "MB", "GB/s",
                         "share", "roof", "experts", "GFLOP/s");
  for (const BenchResult& r : report.results) {
    out << absl::StrFormat(
        "%-*s %6s %8d %10.3f %10.3f %10.1f %10.2f %8.2f %6.1f%% %6.1f%%%s %7.1f %10.1f\n",
        static_cast<int>(width), r.policy, Batch(r), r.context, r.step_ms_p50, r.step_ms_p99,
        r.tokens_per_s, r.bytes_per_step / 1e6, r.bandwidth_gb_s, r.bandwidth_share * 100,
        r.roof_share * 100, r.arithmetic_bound ? "*" : " ", r.experts, r.gflop_s);
  }
  out << "share: time to read the bytes at the measured bandwidth, over the time taken\n"
         "roof: the same, each part at the lower of bandwidth and arithmetic (*: some are bound by "
         "arithmetic)\n";
  const bool equal = std::all_of(report.results.begin(), report.results.end(),
                                 [](const BenchResult& r) { return r.streamed_share == 1; });
  if (equal) out << "MB: of the plans; kernels read exactly those bytes of weights\n";
  for (const BenchResult& r : report.results) {
    if (r.streamed_share != 1) {
      out << absl::StrFormat("%s, batch %s, context %d: kernels read %.4f of the plans' bytes\n",
                             r.policy, Batch(r), r.context, r.streamed_share);
    }
  }
  for (const BenchResult& r : report.results) {
    if (!r.against_exact.has_value()) continue;
    out << absl::StrFormat(
        "%s against exact, batch %s, context %d: %.3f of the time, %.3f of the bytes\n", r.policy,
        Batch(r), r.context, r.against_exact->time, r.against_exact->bytes);
  }
}

void PrintJson(const BenchReport& report, std::ostream& out) {
  nlohmann::json json{{"mode", report.mode},
                      {"model", report.model},
                      {"layers", report.layers},
                      {"threads", report.threads},
                      {"numeric_class", report.numeric_class},
                      {"notes", report.notes},
                      {"read_buffer_bytes", report.read_buffer_bytes},
                      {"bandwidth_gb_s", report.bandwidth_gb_s},
                      {"arithmetic_gflop_s", report.arithmetic_gflop_s},
                      {"arithmetic_isa", report.arithmetic_isa},
                      {"results", nlohmann::json::array()}};
  for (const BenchResult& r : report.results) {
    nlohmann::json row{{"policy", r.policy},
                       {"batch", r.batch},
                       {"prompt_rows", r.prompt_rows},
                       {"context", r.context},
                       {"step_ms_p50", r.step_ms_p50},
                       {"step_ms_p99", r.step_ms_p99},
                       {"tokens_per_s", r.tokens_per_s},
                       {"bytes_per_step", r.bytes_per_step},
                       {"streamed_share", r.streamed_share},
                       {"bandwidth_gb_s", r.bandwidth_gb_s},
                       {"bandwidth_share", r.bandwidth_share},
                       {"roof_share", r.roof_share},
                       {"arithmetic_bound", r.arithmetic_bound},
                       {"gflop_s", r.gflop_s},
                       {"experts", r.experts},
                       {"plan_share", r.plan_share}};
    if (r.against_exact.has_value()) {
      row["against_exact"] = {{"time", r.against_exact->time}, {"bytes", r.against_exact->bytes}};
    }
    json["results"].push_back(std::move(row));
  }
  // Paths need not be UTF-8.
  out << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

}  // namespace lynx::cli
