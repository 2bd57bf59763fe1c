#include "services/cli/loadtest/run_result.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace lynx::loadtest {
namespace {

// The largest number of requests open at one time.
int64_t MostOpen(const std::vector<RequestRecord>& records) {
  std::vector<std::pair<double, int>> changes;
  changes.reserve(2 * records.size());
  for (const RequestRecord& record : records) {
    changes.emplace_back(record.sent_s, 1);
    changes.emplace_back(record.end_s, -1);
  }
  std::sort(changes.begin(), changes.end());  // Ends before beginnings of the same time.
  int64_t open = 0;
  int64_t most = 0;
  for (const auto& change : changes) {
    open += change.second;
    most = std::max(most, open);
  }
  return most;
}

// Values of the records, to be summed up.
struct Samples {
  std::vector<double> ttft, ttft_from_due, tpot, e2e, e2e_from_due, send_delay;
  std::vector<double> prompt_tokens, output_tokens, prompt_error, output_error, retry_after;
  double cached = 0;
  double prompts_with_cached = 0;  // Their tokens.

  void AddSuccess(const RequestRecord& record) {
    if (record.has_tokens()) {
      ttft.push_back(record.ttft_s());
      ttft_from_due.push_back(record.ttft_from_due_s());
    }
    if (record.has_tpot()) tpot.push_back(record.tpot_s());
    e2e.push_back(record.e2e_s());
    e2e_from_due.push_back(record.e2e_from_due_s());
    output_tokens.push_back(record.output_tokens);
    if (record.tokens_counted) {
      output_error.push_back(static_cast<double>(record.output_tokens) / record.wanted_output - 1);
    }
    if (record.prompt_tokens < 0) return;
    prompt_tokens.push_back(record.prompt_tokens);
    if (record.wanted_input > 0) {
      prompt_error.push_back(static_cast<double>(record.prompt_tokens) / record.wanted_input - 1);
    }
    if (record.cached_tokens >= 0) {
      cached += record.cached_tokens;
      prompts_with_cached += record.prompt_tokens;
    }
  }
};

double Sum(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

void AddAttainment(const Slo& slo, RunResult& result) {
  result.has_slo = !slo.empty();
  const int64_t counted =
      result.measured - result.outcomes[static_cast<size_t>(Outcome::kUnfinished)];
  if (!result.has_slo || counted == 0) return;
  const auto meeting = [&](const Slo& limits) {
    return std::count_if(
        result.records.begin(), result.records.end(),
        [&](const RequestRecord& record) { return !record.warmup && Meets(record, limits); });
  };
  const auto share = [&](int64_t met) {
    return static_cast<double>(met) / static_cast<double>(counted);
  };
  const int64_t met = meeting(slo);
  result.attainment = share(met);
  if (result.window_s > 0) result.goodput = static_cast<double>(met) / result.window_s;
  const auto alone = [&](const char* name, std::optional<absl::Duration> Slo::*limit) {
    if (!(slo.*limit).has_value()) return;
    Slo only;
    only.*limit = slo.*limit;
    result.attainment_by_limit[name] = share(meeting(only));
  };
  alone("ttft", &Slo::ttft);
  alone("tpot", &Slo::tpot);
  alone("e2e", &Slo::e2e);
}

}  // namespace

RunResult MakeRunResult(RunLog log, const Slo& slo, const ClientCost& client) {
  RunResult result;
  result.client = client;
  result.records = std::move(log.records);
  result.gaps = std::move(log.gaps);
  result.problems = std::move(log.problems);
  result.most_open = MostOpen(result.records);
  result.measured = log.unsent;
  result.outcomes[static_cast<size_t>(Outcome::kUnsent)] = log.unsent;

  Samples samples;
  double first_due = std::numeric_limits<double>::max();
  double last_due = 0;
  double last_end = 0;
  for (const RequestRecord& record : result.records) {
    if (record.warmup) {
      ++result.warmup;
      continue;
    }
    ++result.measured;
    ++result.outcomes[static_cast<size_t>(record.outcome)];
    first_due = std::min(first_due, record.due_s);
    last_due = std::max(last_due, record.due_s);
    last_end = std::max(last_end, record.end_s);
    samples.send_delay.push_back(record.sent_s - record.due_s);
    if (record.held_back) ++result.held_back;
    if (record.retry_after_s >= 0) samples.retry_after.push_back(record.retry_after_s);
    if (record.outcome == Outcome::kHttpStatus) ++result.statuses[record.status];
    if (!record.ok()) continue;
    samples.AddSuccess(record);
    if (!record.tokens_counted) ++result.uncounted;
    if (record.tokens_shared_out) ++result.shared_out;
    if (!record.has_tokens()) ++result.without_tokens;
  }
  const auto sent = static_cast<double>(samples.send_delay.size());
  if (sent > 0) result.window_s = last_end - first_due;
  if (last_due > first_due) result.due_rate = (sent - 1) / (last_due - first_due);
  if (result.window_s > 0) {
    result.request_rate = static_cast<double>(result.ok()) / result.window_s;
    result.input_token_rate = Sum(samples.prompt_tokens) / result.window_s;
    result.output_token_rate = Sum(samples.output_tokens) / result.window_s;
  }
  if (samples.prompts_with_cached > 0) {
    result.cached_share = samples.cached / samples.prompts_with_cached;
  }
  result.ttft = Summarise(std::move(samples.ttft));
  result.ttft_from_due = Summarise(std::move(samples.ttft_from_due));
  result.tpot = Summarise(std::move(samples.tpot));
  result.itl = result.gaps.tokens.Summarise();
  result.piece_gaps = result.gaps.pieces.Summarise();
  result.e2e = Summarise(std::move(samples.e2e));
  result.e2e_from_due = Summarise(std::move(samples.e2e_from_due));
  result.send_delay = Summarise(std::move(samples.send_delay));
  result.prompt_tokens = Summarise(std::move(samples.prompt_tokens));
  result.output_tokens = Summarise(std::move(samples.output_tokens));
  result.prompt_error = Summarise(std::move(samples.prompt_error));
  result.output_error = Summarise(std::move(samples.output_error));
  result.retry_after = Summarise(std::move(samples.retry_after));
  AddAttainment(slo, result);
  return result;
}

}  // namespace lynx::loadtest
