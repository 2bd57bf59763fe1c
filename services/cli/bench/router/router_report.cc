#include "services/cli/bench/router/router_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace lynx::cli {
namespace {

nlohmann::json ToJson(const StreamFigures& figures) {
  return {{"tokens", figures.tokens},
          {"seconds", figures.seconds},
          {"cpu_seconds", figures.cpu_seconds},
          {"tokens_per_s", figures.tokens_per_s()},
          {"tokens_per_cpu_s", figures.tokens_per_cpu_s()},
          {"bytes_per_token", figures.bytes_per_token},
          {"latency_ms_p50", figures.latency_ms_p50},
          {"latency_ms_p99", figures.latency_ms_p99}};
}

double Ratio(double of, double to) { return to > 0 ? of / to : 0; }

}  // namespace

void PrintRouterTable(const RouterReport& report, std::ostream& out) {
  out << absl::StrFormat(
      "router, %d open streams, %.4g tokens/s each, decode steps of %d streams\n", report.streams,
      report.rate, report.batch);
  for (const std::string& note : report.notes) out << "note: " << note << "\n";
  out << absl::StrFormat("%-7s %10s %12s %14s %12s %10s %10s\n", "", "tokens/s", "CPU seconds",
                         "tokens/CPU s", "bytes/token", "p50 ms", "p99 ms");
  for (const auto& [name, figures] :
       {std::pair<const char*, const StreamFigures&>("router", report.router),
        {"echo", report.echo}}) {
    out << absl::StrFormat("%-7s %10.0f %12.2f %14.0f %12.0f %10.3f %10.3f\n", name,
                           figures.tokens_per_s(), figures.cpu_seconds, figures.tokens_per_cpu_s(),
                           figures.bytes_per_token, figures.latency_ms_p50, figures.latency_ms_p99);
  }
  out << absl::StrFormat(
      "router to echo: %.2f of the p50, %.2f of the p99\n"
      "ms: from the node's sending to the client's receiving\n",
      Ratio(report.router.latency_ms_p50, report.echo.latency_ms_p50),
      Ratio(report.router.latency_ms_p99, report.echo.latency_ms_p99));
}

void PrintRouterJson(const RouterReport& report, std::ostream& out) {
  const nlohmann::json json{
      {"mode", "router"},
      {"streams", report.streams},
      {"rate", report.rate},
      {"batch", report.batch},
      {"notes", report.notes},
      {"router", ToJson(report.router)},
      {"echo", ToJson(report.echo)},
      {"p50_ratio", Ratio(report.router.latency_ms_p50, report.echo.latency_ms_p50)},
      {"p99_ratio", Ratio(report.router.latency_ms_p99, report.echo.latency_ms_p99)}};
  out << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

}  // namespace lynx::cli
