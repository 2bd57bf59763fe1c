#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/config/flag_set.h"
#include "services/cli/loadtest/report.h"
#include "services/cli/loadtest/svg_chart.h"

namespace lynx::loadtest {
namespace {

constexpr int64_t kMaxTimeBuckets = 60;
constexpr int64_t kRequestsPerBucket = 5;  // On average, or quantiles say nothing.
constexpr size_t kMaxPoints = 400;         // Of a line; more cannot be seen.
constexpr int kBars = 40;

// Light and dark by the reader's own setting; charts side by side where there is room.
constexpr char kStyle[] = R"(
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#667;--line:#d8dce0;--card:#f6f7f9}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e6e8ea;--dim:#98a1aa;--line:#343a40;--card:#1d2125}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1320px;padding:12px;background:var(--bg);color:var(--fg);font:15px/1.45 system-ui,sans-serif}
h1{font-size:1.4rem}h2{font-size:1.15rem;margin-top:2rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:12px}
figure{margin:0;padding:8px;background:var(--card);border-radius:8px}
figcaption{font-weight:600}
svg{width:100%;height:auto;display:block}
svg text{fill:var(--dim);font-size:13px}
.g{stroke:var(--line);stroke-width:1}
.l{fill:none;stroke-width:2}
.limit{stroke:var(--fg);stroke-dasharray:5 4}
.s0{--c:#2f7ed8}.s1{--c:#e0703a}.s2{--c:#2a9d63}.s3{--c:#a05bc4}.s4{--c:#c9a227}.s5{--c:#4aa8b8}
circle,rect{fill:var(--c)}circle{opacity:.6}polyline{stroke:var(--c)}
.legend span{margin-right:1em;white-space:nowrap}.legend i{display:inline-block;width:.8em;height:.8em;border-radius:2px;background:var(--c);margin-right:.3em}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:3px 10px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
td:first-child,th:first-child{text-align:left}
.big{display:flex;flex-wrap:wrap;gap:10px}.big div{background:var(--card);border-radius:8px;padding:8px 14px}
.big b{display:block;font-size:1.3rem}
.note{border-left:4px solid #e0703a;padding:4px 10px;background:var(--card);margin:6px 0}
details td{white-space:normal;word-break:break-word;text-align:left}
)";

using Value = std::function<double(const RequestRecord&)>;

bool Counts(const RequestRecord& record) { return !record.warmup && record.ok(); }

std::vector<double> Collect(const RunResult& run, bool (*has)(const RequestRecord&),
                            const Value& value) {
  std::vector<double> values;
  for (const RequestRecord& record : run.records) {
    if (Counts(record) && has(record)) values.push_back(1e3 * value(record));
  }
  return values;
}

bool HasTokens(const RequestRecord& record) { return record.has_tokens(); }
bool HasTpot(const RequestRecord& record) { return record.has_tpot(); }
bool Always(const RequestRecord&) { return true; }

// p50 and p95 of a value over the time at which requests were due.
Chart OverTime(const RunResult& run, std::string title, bool (*has)(const RequestRecord&),
               const Value& value, double limit_ms) {
  double end = 0;
  for (const RequestRecord& record : run.records) end = std::max(end, record.due_s);
  const int64_t count = std::clamp<int64_t>(
      static_cast<int64_t>(run.records.size()) / kRequestsPerBucket, 1, kMaxTimeBuckets);
  const double width = std::max(end / static_cast<double>(count), 1e-9);
  std::map<int64_t, std::vector<double>> buckets;
  for (const RequestRecord& record : run.records) {
    if (!Counts(record) || !has(record)) continue;
    buckets[static_cast<int64_t>(record.due_s / width)].push_back(1e3 * value(record));
  }
  Chart chart{.title = std::move(title),
              .x_label = "due, s after the start",
              .y_label = "ms",
              .series = {{.name = "p50", .points = {}}, {.name = "p95", .points = {}}}};
  chart.y_line = limit_ms;
  for (auto& [bucket, values] : buckets) {
    std::sort(values.begin(), values.end());
    const double at = (static_cast<double>(bucket) + 0.5) * width;
    chart.series[0].points.emplace_back(at, Percentile(values, 0.5));
    chart.series[1].points.emplace_back(at, Percentile(values, 0.95));
  }
  return chart;
}

// Requests open, by time.
Chart OpenOverTime(const RunResult& run) {
  std::vector<std::pair<double, int>> changes;
  for (const RequestRecord& record : run.records) {
    changes.emplace_back(record.sent_s, 1);
    changes.emplace_back(record.end_s, -1);
  }
  std::sort(changes.begin(), changes.end());
  Chart chart{.title = "Open requests",
              .x_label = "s after the start",
              .y_label = "requests",
              .series = {{.name = "most open in a slice of time", .points = {}}}};
  if (changes.empty()) return chart;
  const double width = std::max(changes.back().first / static_cast<double>(kMaxPoints), 1e-9);
  auto& points = chart.series[0].points;
  int open = 0;
  int most = 0;
  int64_t slice = 0;
  for (const auto& [at, change] : changes) {
    if (const auto now = static_cast<int64_t>(at / width); now != slice) {
      points.emplace_back(static_cast<double>(slice) * width, most);
      slice = now;
      most = open;
    }
    open += change;
    most = std::max(most, open);
  }
  points.emplace_back(static_cast<double>(slice) * width, most);
  return chart;
}

Series Cdf(std::string name, std::vector<double> values) {
  Series series{.name = std::move(name), .points = {}};
  std::sort(values.begin(), values.end());
  const size_t count = std::min(values.size(), kMaxPoints);
  for (size_t i = 0; i < count; ++i) {
    const double share = count == 1 ? 1 : static_cast<double>(i) / static_cast<double>(count - 1);
    series.points.emplace_back(Percentile(values, share), share);
  }
  return series;
}

Series Cdf(std::string name, const LogHistogram& gaps) {
  Series series{.name = std::move(name), .points = {}};
  if (gaps.count() == 0) return series;
  for (size_t i = 0; i < kMaxPoints; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(kMaxPoints - 1);
    series.points.emplace_back(1e3 * gaps.Quantile(share), share);
  }
  return series;
}

std::string TimesRow(const char* name, const Summary& summary) {
  if (summary.count == 0) return "";
  std::string row = absl::StrCat("<tr><td>", name, "</td>");
  for (const double value : {summary.mean, summary.p50, summary.p90, summary.p95, summary.p99,
                             summary.max, summary.deviation}) {
    absl::StrAppendFormat(&row, "<td>%.2f</td>", 1e3 * value);
  }
  return row + "</tr>\n";
}

std::string Figure(const char* name, const std::string& value) {
  return absl::StrCat("<div>", name, "<b>", EscapeHtml(value), "</b></div>");
}

std::string Notes(const RunResult& run) {
  std::string html;
  for (const Warning& warning : Warnings(run)) {
    absl::StrAppend(&html, "<p class=\"note\">", EscapeHtml(warning.text), "</p>\n");
  }
  return html;
}

std::string Failures(const RunResult& run) {
  std::string rows;
  for (int i = 0; i < kOutcomes; ++i) {
    const int64_t count = run.outcomes[static_cast<size_t>(i)];
    if (count == 0) continue;
    absl::StrAppend(&rows, "<tr><td>", OutcomeName(static_cast<Outcome>(i)), "</td><td>", count,
                    "</td></tr>\n");
  }
  for (const auto& [problem, times] : run.problems) {
    absl::StrAppend(&rows, "<tr><td>",
                    EscapeHtml(absl::StrCat(OutcomeName(problem.first), ": ", problem.second)),
                    "</td><td>", times, "</td></tr>\n");
  }
  return absl::StrCat(
      "<div class=\"scroll\"><table><tr><th>how requests ended</th><th></th></tr>\n", rows,
      "</table></div>\n");
}

std::string RunHtml(const TestSetup& setup, const RunResult& run) {
  std::string html = "<div class=\"big\">";
  html += Figure("succeeded", absl::StrCat(run.ok(), " of ", run.measured));
  html += Figure("requests/s", absl::StrFormat("%.2f", run.request_rate));
  html += Figure("output tokens/s", absl::StrFormat("%.1f", run.output_token_rate));
  html += Figure("TTFT p50 / p95", absl::StrFormat("%.1f / %.1f ms", 1e3 * run.ttft_from_due.p50,
                                                   1e3 * run.ttft_from_due.p95));
  html += Figure("TPOT p50 / p95",
                 absl::StrFormat("%.2f / %.2f ms", 1e3 * run.tpot.p50, 1e3 * run.tpot.p95));
  if (run.has_slo) {
    html += Figure("met the SLO", absl::StrFormat("%.1f%%", 100 * run.attainment));
    html += Figure("goodput", absl::StrFormat("%.2f requests/s", run.goodput));
  }
  html += "</div>\n" + Notes(run);
  html +=
      "<div class=\"scroll\"><table><tr><th>ms</th><th>mean</th><th>p50</th><th>p90</th>"
      "<th>p95</th><th>p99</th><th>max</th><th>std</th></tr>\n";
  html += TimesRow("TTFT from due", run.ttft_from_due);
  html += TimesRow("TTFT from sending", run.ttft);
  html += TimesRow("TPOT", run.tpot);
  html += TimesRow("ITL, per token", run.itl);
  html += TimesRow("gaps between pieces", run.piece_gaps);
  html += TimesRow("E2E from due", run.e2e_from_due);
  html += TimesRow("E2E from sending", run.e2e);
  html += TimesRow("send delay", run.send_delay);
  html += "</table></div>\n" + Failures(run);

  const Value ttft = [](const RequestRecord& r) { return r.ttft_from_due_s(); };
  const Value sent = [](const RequestRecord& r) { return r.ttft_s(); };
  const Value tpot = [](const RequestRecord& r) { return r.tpot_s(); };
  const Value e2e = [](const RequestRecord& r) { return r.e2e_from_due_s(); };
  const auto limit = [](const std::optional<absl::Duration>& of) {
    return of.has_value() ? absl::ToDoubleMilliseconds(*of) : -1;
  };
  html += "<div class=\"charts\">\n";
  html += ToSvg(OverTime(run, "TTFT over time", HasTokens, ttft, limit(setup.slo.ttft)));
  html += ToSvg(OverTime(run, "TPOT over time", HasTpot, tpot, limit(setup.slo.tpot)));
  html += ToSvg(OpenOverTime(run));
  html += ToSvg({.title = "TTFT and E2E, cumulative",
                 .x_label = "ms",
                 .y_label = "requests",
                 .series = {Cdf("TTFT from due", Collect(run, HasTokens, ttft)),
                            Cdf("TTFT from sending", Collect(run, HasTokens, sent)),
                            Cdf("E2E from due", Collect(run, Always, e2e))},
                 .log_x = true,
                 .y_is_share = true});
  html += ToSvg({.title = "Time per token, cumulative",
                 .x_label = "ms",
                 .y_label = "share",
                 .series = {Cdf("TPOT, of requests", Collect(run, HasTpot, tpot)),
                            Cdf("ITL, of tokens", run.gaps.tokens),
                            Cdf("gaps between pieces", run.gaps.pieces)},
                 .log_x = true,
                 .y_is_share = true});
  html += HistogramSvg("TTFT from due", "ms (the top per cent in the last bar)",
                       Collect(run, HasTokens, ttft), kBars);
  html += HistogramSvg("TPOT", "ms (the top per cent in the last bar)", Collect(run, HasTpot, tpot),
                       kBars);
  return html + "</div>\n";
}

std::string RampHtml(const TestReport& report) {
  const std::vector<const RunResult*> runs = ByRate(report);
  const auto over_rate = [&](std::string name, double (*value)(const RunResult&)) {
    Series series{.name = std::move(name), .points = {}};
    for (const RunResult* run : runs) series.points.emplace_back(run->asked_rate, value(*run));
    return series;
  };
  std::string html = "<div class=\"big\">";
  html += Figure("capacity", report.capacity.has_value()
                                 ? absl::StrFormat("%.2f requests/s", *report.capacity)
                                 : "under all rates tried");
  html += Figure("that keep", absl::StrFormat("%s for %.0f%%", ToString(report.setup.slo),
                                              100 * report.setup.attainment));
  html += "</div>\n<div class=\"charts\">\n";
  html +=
      ToSvg({.title = "Attainment over rate",
             .x_label = "requests/s",
             .y_label = "met the SLO",
             .series = {over_rate("all limits", [](const RunResult& r) { return r.attainment; })},
             .y_is_share = true,
             .y_line = report.setup.attainment});
  html += ToSvg({.title = "Goodput over rate",
                 .x_label = "requests/s due",
                 .y_label = "requests/s",
                 .series = {over_rate("met the SLO", [](const RunResult& r) { return r.goodput; }),
                            over_rate("done", [](const RunResult& r) { return r.request_rate; })}});
  html += ToSvg(
      {.title = "TTFT over rate",
       .x_label = "requests/s",
       .y_label = "ms",
       .series = {over_rate("p50", [](const RunResult& r) { return 1e3 * r.ttft_from_due.p50; }),
                  over_rate("p95", [](const RunResult& r) { return 1e3 * r.ttft_from_due.p95; })}});
  html +=
      ToSvg({.title = "TPOT over rate",
             .x_label = "requests/s",
             .y_label = "ms",
             .series = {over_rate("p50", [](const RunResult& r) { return 1e3 * r.tpot.p50; }),
                        over_rate("p95", [](const RunResult& r) { return 1e3 * r.tpot.p95; })}});
  html += "</div>\n";
  for (const RunResult* run : runs) {
    absl::StrAppendFormat(&html, "<h2>%.3f requests/s</h2>\n", run->asked_rate);
    html += RunHtml(report.setup, *run);
  }
  return html;
}

}  // namespace

std::string ToHtml(const TestReport& report) {
  const TestSetup& setup = report.setup;
  std::string html = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Load test "
      "of ",
      EscapeHtml(setup.model), "</title>\n<style>", kStyle,
      "</style></head><body>\n<h1>Load test of ", EscapeHtml(setup.model), "</h1>\n<p>",
      EscapeHtml(setup.url), "<br>", EscapeHtml(setup.load), "<br>", EscapeHtml(setup.started_at),
      ", seed ", setup.seed, "</p>\n");
  if (report.broken_off) html += "<p class=\"note\">broken off; what was open is left out</p>\n";
  if (report.ramp) {
    html += RampHtml(report);
  } else {
    for (const RunResult& run : report.runs) html += RunHtml(setup, run);
  }
  html += "<details><summary>Options</summary><div class=\"scroll\"><table>\n";
  for (const auto& [name, value] : setup.options) {
    absl::StrAppend(&html, "<tr><td>", EscapeHtml(name), "</td><td>", EscapeHtml(value),
                    "</td></tr>\n");
  }
  absl::StrAppend(
      &html, "</table></div></details>\n<p>lynx loadtest ", std::string(config::Version()),
      ". TTFT: to the first piece with text. TPOT: (last token - first token) / (tokens "
      "- 1) of a request. E2E: to [DONE]. \"From due\" counts waiting in this client, "
      "too.</p>\n</body></html>\n");
  return html;
}

}  // namespace lynx::loadtest
