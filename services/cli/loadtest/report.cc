#include "services/cli/loadtest/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"
#include "common/config/flag_set.h"

namespace lynx::loadtest {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kBusyShare = 0.8;  // Of a core: beyond, the client may be what is slow.
constexpr double kLongTurnS = 0.02;
constexpr double kLengthError = 0.1;

Json SummaryJson(const Summary& summary) {
  return {{"count", static_cast<int64_t>(summary.count)},
          {"mean", summary.mean},
          {"std", summary.deviation},
          {"min", summary.min},
          {"p50", summary.p50},
          {"p90", summary.p90},
          {"p95", summary.p95},
          {"p99", summary.p99},
          {"max", summary.max}};
}

void PrintTimes(const char* name, const Summary& summary, std::ostream& out) {
  if (summary.count == 0) return;
  out << absl::StrFormat("  %-22s %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f\n", name,
                         1e3 * summary.mean, 1e3 * summary.p50, 1e3 * summary.p90,
                         1e3 * summary.p95, 1e3 * summary.p99, 1e3 * summary.max);
}

void PrintFailures(const RunResult& run, std::ostream& out) {
  if (run.ok() == run.measured) return;
  out << "\nnot succeeded\n";
  for (int i = 0; i < kOutcomes; ++i) {
    const int64_t count = run.outcomes[static_cast<size_t>(i)];
    const auto outcome = static_cast<Outcome>(i);
    if (count == 0 || outcome == Outcome::kOk) continue;
    out << absl::StrFormat("  %-22s %8d", OutcomeName(outcome), count);
    if (outcome == Outcome::kHttpStatus) {
      for (const auto& [status, times] : run.statuses) {
        out << absl::StrFormat("  %d: %d", status, times);
      }
    }
    if (outcome == Outcome::kRefused && run.retry_after.count > 0) {
      out << absl::StrFormat("  Retry-After of %d: %.0f to %.0f s",
                             static_cast<int64_t>(run.retry_after.count), run.retry_after.min,
                             run.retry_after.max);
    }
    out << "\n";
  }
  int left = 8;
  for (const auto& [problem, times] : run.problems) {
    if (left-- == 0) {
      out << "  ...\n";
      break;
    }
    out << absl::StrFormat("  %6d x %s: %s\n", times, OutcomeName(problem.first), problem.second);
  }
}

void PrintRun(const TestSetup& setup, const RunResult& run, std::ostream& out) {
  out << absl::StrFormat("requests %d measured, %d succeeded", run.measured, run.ok());
  if (run.warmup > 0) out << absl::StrFormat(", %d of warm-up left out", run.warmup);
  out << absl::StrFormat("; %.1f s, up to %d open\n", run.window_s, run.most_open);
  out << absl::StrFormat("rates    %.3f requests/s due, %.3f done; tokens/s %.1f in, %.1f out\n",
                         run.due_rate, run.request_rate, run.input_token_rate,
                         run.output_token_rate);
  out << absl::StrFormat("tokens   in %.1f on average (p99 %.0f)", run.prompt_tokens.mean,
                         run.prompt_tokens.p99);
  if (run.cached_share.has_value())
    out << absl::StrFormat(", %.1f%% cached", 100 * *run.cached_share);
  out << absl::StrFormat("; out %.1f (p99 %.0f)\n", run.output_tokens.mean, run.output_tokens.p99);
  if (run.has_slo) {
    out << absl::StrFormat("SLO      %s: %.2f%% met it; goodput %.3f requests/s\n",
                           ToString(setup.slo), 100 * run.attainment, run.goodput);
  }
  out << absl::StrFormat("\n  %-22s %10s %10s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90",
                         "p95", "p99", "max");
  PrintTimes("TTFT from due", run.ttft_from_due, out);
  PrintTimes("TTFT from sending", run.ttft, out);
  PrintTimes("TPOT", run.tpot, out);
  PrintTimes("ITL, per token", run.itl, out);
  PrintTimes("gaps between pieces", run.piece_gaps, out);
  PrintTimes("E2E from due", run.e2e_from_due, out);
  PrintTimes("E2E from sending", run.e2e, out);
  PrintTimes("send delay", run.send_delay, out);
  PrintFailures(run, out);
  out << absl::StrFormat("\nclient   %.1f%% of a core, longest turn %.1f ms, %d connections\n",
                         run.client.wall_s > 0 ? 100 * run.client.cpu_s / run.client.wall_s : 0.0,
                         1e3 * run.client.longest_turn_s, run.client.connections);
  for (const Warning& warning : Warnings(run)) out << "note: " << warning.text << "\n";
}

void PrintRamp(const TestReport& report, std::ostream& out) {
  out << absl::StrFormat("%10s %10s %10s %10s %12s %12s %12s %10s\n", "rate", "done/s", "met",
                         "goodput", "TTFT p95 ms", "TPOT p95 ms", "tokens/s", "failed");
  for (const RunResult* by_rate : ByRate(report)) {
    const RunResult& run = *by_rate;
    out << absl::StrFormat("%10.3f %10.3f %9.1f%% %10.3f %12.1f %12.2f %12.1f %10d\n",
                           run.asked_rate, run.request_rate, 100 * run.attainment, run.goodput,
                           1e3 * run.ttft_from_due.p95, 1e3 * run.tpot.p95, run.output_token_rate,
                           run.measured - run.ok());
  }
  out << "\n";
  const std::string held = absl::StrFormat(
      "%s for %.0f%% of the requests", ToString(report.setup.slo), 100 * report.setup.attainment);
  if (!report.capacity.has_value() && !report.lowest_failed.has_value()) {
    out << "capacity: not found, as no rate was measured\n";
  } else if (!report.capacity.has_value()) {
    out << "capacity: none of these rates kept " << held << "\n";
  } else if (!report.lowest_failed.has_value()) {
    out << absl::StrFormat("capacity: at least %.3f requests/s keep %s\n", *report.capacity, held);
  } else {
    out << absl::StrFormat("capacity: %.3f requests/s keep %s; %.3f do not\n", *report.capacity,
                           held, *report.lowest_failed);
  }
  // Each kind once: ten runs would say it ten times.
  std::set<std::string> said;
  for (const RunResult& run : report.runs) {
    for (const Warning& warning : Warnings(run)) {
      if (!said.insert(warning.key).second) continue;
      out << absl::StrFormat("note: at %.3f requests/s: %s\n", run.asked_rate, warning.text);
    }
  }
}

Json RunJson(const RunResult& run) {
  Json outcomes = Json::object();
  for (int i = 0; i < kOutcomes; ++i) {
    outcomes[OutcomeName(static_cast<Outcome>(i))] = run.outcomes[static_cast<size_t>(i)];
  }
  Json statuses = Json::object();
  for (const auto& [status, times] : run.statuses) statuses[absl::StrCat(status)] = times;
  Json problems = Json::array();
  for (const auto& [problem, times] : run.problems) {
    problems.push_back(
        {{"outcome", OutcomeName(problem.first)}, {"message", problem.second}, {"count", times}});
  }
  Json json = {{"asked_rate", run.asked_rate},
               {"requests",
                {{"measured", run.measured},
                 {"warmup", run.warmup},
                 {"held_back", run.held_back},
                 {"most_open", run.most_open},
                 {"outcomes", std::move(outcomes)},
                 {"http_statuses", std::move(statuses)},
                 {"problems", std::move(problems)}}},
               {"window_s", run.window_s},
               {"rates",
                {{"due_requests_s", run.due_rate},
                 {"done_requests_s", run.request_rate},
                 {"input_tokens_s", run.input_token_rate},
                 {"output_tokens_s", run.output_token_rate}}},
               {"latency_s",
                {{"ttft", SummaryJson(run.ttft)},
                 {"ttft_from_due", SummaryJson(run.ttft_from_due)},
                 {"tpot", SummaryJson(run.tpot)},
                 {"itl", SummaryJson(run.itl)},
                 {"piece_gap", SummaryJson(run.piece_gaps)},
                 {"e2e", SummaryJson(run.e2e)},
                 {"e2e_from_due", SummaryJson(run.e2e_from_due)},
                 {"send_delay", SummaryJson(run.send_delay)}}},
               {"tokens",
                {{"prompt", SummaryJson(run.prompt_tokens)},
                 {"output", SummaryJson(run.output_tokens)},
                 {"prompt_error", SummaryJson(run.prompt_error)},
                 {"output_error", SummaryJson(run.output_error)},
                 {"cached_share", run.cached_share.has_value() ? Json(*run.cached_share) : Json()},
                 {"uncounted_requests", run.uncounted},
                 {"shared_out_requests", run.shared_out},
                 {"requests_without_tokens", run.without_tokens}}},
               {"retry_after_s", SummaryJson(run.retry_after)}};
  if (run.has_slo) {
    json["slo"] = {{"attainment", run.attainment},
                   {"attainment_by_limit", run.attainment_by_limit},
                   {"goodput_requests_s", run.goodput}};
  } else {
    json["slo"] = nullptr;
  }
  json["client"] = {{"wall_s", run.client.wall_s},
                    {"cpu_s", run.client.cpu_s},
                    {"longest_turn_s", run.client.longest_turn_s},
                    {"connections", run.client.connections},
                    {"resent", run.client.resent}};
  json["warnings"] = Json::array();
  for (const Warning& warning : Warnings(run)) {
    json["warnings"].push_back({{"kind", warning.key}, {"message", warning.text}});
  }
  return json;
}

std::string Dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::vector<const RunResult*> ByRate(const TestReport& report) {
  std::vector<const RunResult*> runs;
  for (const RunResult& run : report.runs) runs.push_back(&run);
  std::sort(runs.begin(), runs.end(),
            [](const RunResult* a, const RunResult* b) { return a->asked_rate < b->asked_rate; });
  return runs;
}

std::vector<Warning> Warnings(const RunResult& run) {
  std::vector<Warning> warnings;
  const auto add = [&](const char* key, std::string text) {
    warnings.push_back({.key = key, .text = std::move(text)});
  };
  const ClientCost& client = run.client;
  if (client.cpu_s > kBusyShare * client.wall_s) {
    add("client_busy", absl::StrFormat("this client used %.0f%% of a core: it may be what is slow",
                                       100 * client.cpu_s / client.wall_s));
  }
  if (client.longest_turn_s > kLongTurnS) {
    add("client_away",
        absl::StrFormat("this client was away for up to %.0f ms: single times may be late by that",
                        1e3 * client.longest_turn_s));
  }
  if (run.held_back > 0) {
    add("held_back",
        absl::StrFormat("%d requests were sent late, as the most that --max-open allows were open: "
                        "the times from due count that",
                        run.held_back));
  }
  const int64_t unsent = run.outcomes[static_cast<size_t>(Outcome::kUnsent)];
  if (unsent > 0) {
    add("unsent",
        absl::StrFormat("%d requests were due and never sent: they count as not meeting the SLO",
                        unsent));
  }
  if (std::abs(run.prompt_error.mean) > kLengthError) {
    add("prompt_length", absl::StrFormat("prompts are %+.0f%% off the wanted length on average",
                                         100 * run.prompt_error.mean));
  }
  if (run.output_error.count > 0 && std::abs(run.output_error.mean) > kLengthError) {
    add("output_length", absl::StrFormat("answers are %+.0f%% off the wanted length on average",
                                         100 * run.output_error.mean));
  }
  if (run.uncounted > 0) {
    add("no_usage",
        absl::StrFormat("the server gave no usage for %d answers: their pieces were counted as "
                        "tokens",
                        run.uncounted));
  }
  if (run.shared_out > 0) {
    add("shared_out",
        absl::StrFormat("%d answers came in pieces of several tokens: ITL shares them out by "
                        "length of text (--running-usage may tell)",
                        run.shared_out));
  }
  if (run.without_tokens > 0) {
    add("no_token", absl::StrFormat("%d answers brought no token", run.without_tokens));
  }
  if (client.resent > 0) {
    add("resent",
        absl::StrFormat("%d requests were sent again: the server had closed their connection",
                        client.resent));
  }
  return warnings;
}

void PrintReport(const TestReport& report, std::ostream& out) {
  const TestSetup& setup = report.setup;
  out << absl::StrFormat("\n%s, %s\n%s, seed %d\n\n", setup.url, setup.model, setup.load,
                         setup.seed);
  if (report.ramp) {
    PrintRamp(report, out);
  } else {
    for (const RunResult& run : report.runs) PrintRun(setup, run, out);
  }
  if (report.broken_off) out << "note: broken off; what was open is left out\n";
}

std::string ToJson(const TestReport& report) {
  const TestSetup& setup = report.setup;
  Json options = Json::object();
  for (const auto& [name, value] : setup.options) options[name] = ReplaceInvalidUtf8(value);
  const auto rate = [](const std::optional<double>& value) {
    return value.has_value() ? Json(*value) : Json();
  };
  Json json = {{"schema", "lynx-loadtest/1"},
               {"version", config::Version()},
               {"started_at", setup.started_at},
               {"url", setup.url},
               {"model", setup.model},
               {"load", setup.load},
               {"seed", setup.seed},
               {"options", std::move(options)},
               {"slo", ToString(setup.slo)},
               {"wanted_attainment", setup.attainment},
               {"tokens_per_word", setup.tokens_per_word},
               {"broken_off", report.broken_off},
               {"ramp", report.ramp ? Json{{"capacity_requests_s", rate(report.capacity)},
                                           {"lowest_failed_requests_s", rate(report.lowest_failed)}}
                                    : Json()},
               {"runs", Json::array()}};
  for (const RunResult& run : report.runs) json["runs"].push_back(RunJson(run));
  return Dump(json, 1) + "\n";
}

std::string RecordsToJsonl(const TestReport& report) {
  std::string text;
  for (size_t i = 0; i < report.runs.size(); ++i) {
    for (const RequestRecord& record : report.runs[i].records) {
      const auto time = [](double value) { return value >= 0 ? Json(value) : Json(); };
      const auto count = [](int32_t value) { return value >= 0 ? Json(value) : Json(); };
      text += Dump({{"run", i},
                    {"outcome", OutcomeName(record.outcome)},
                    {"status", record.status},
                    {"warmup", record.warmup},
                    {"held_back", record.held_back},
                    {"due_s", record.due_s},
                    {"sent_s", record.sent_s},
                    {"first_token_s", time(record.first_s)},
                    {"last_token_s", time(record.last_s)},
                    {"end_s", record.end_s},
                    {"wanted_input_tokens", record.wanted_input},
                    {"prompt_tokens", count(record.prompt_tokens)},
                    {"cached_tokens", count(record.cached_tokens)},
                    {"wanted_output_tokens", record.wanted_output},
                    {"output_tokens", record.output_tokens}},
                   -1);
      text += '\n';
    }
  }
  return text;
}

}  // namespace lynx::loadtest
