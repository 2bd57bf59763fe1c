#include "services/router/front/front_metrics.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/telemetry/buckets.h"
#include "services/router/session/stage_duration.h"

namespace lynx::router {
namespace {

constexpr char kOther[] = "other";

const char* Name(Api api) { return api == Api::kChat ? "chat" : "completions"; }

const char* Name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kClientError:
      return "client_error";
    case Outcome::kRejected:
      return "rejected";
    case Outcome::kServerError:
      return "server_error";
    case Outcome::kStreamError:
      return "stream_error";
    case Outcome::kCancelled:
      return "cancelled";
  }
  return "?";
}

// All ways in which a request can end.
constexpr std::pair<int, Outcome> kEnds[] = {
    {200, Outcome::kOk},          {200, Outcome::kStreamError},
    {200, Outcome::kCancelled},   {FrontMetrics::kClientClosedCode, Outcome::kCancelled},
    {400, Outcome::kClientError}, {404, Outcome::kClientError},
    {413, Outcome::kClientError}, {429, Outcome::kClientError},
    {429, Outcome::kRejected},    {503, Outcome::kRejected},
    {429, Outcome::kServerError}, {500, Outcome::kServerError},
    {503, Outcome::kServerError}, {504, Outcome::kServerError}};

bool Has(absl::Duration target) { return target != absl::InfiniteDuration(); }

FrontMetrics::Model MakeModel(telemetry::Registry& registry, const std::string& name,
                              const SloTargets& targets) {
  const telemetry::Labels model = {{"model_name", name}};
  auto labels = [&](std::initializer_list<std::pair<const std::string, std::string>> more) {
    telemetry::Labels all = model;
    all.insert(more);
    return all;
  };
  auto duration = [&](const char* streaming) {
    return registry.AddHistogram("lynx_router_request_duration_seconds",
                                 "Request received to last byte handed to the connection",
                                 telemetry::kRequestSeconds, labels({{"streaming", streaming}}));
  };
  auto left = [&](const char* phase) {
    return registry.AddCounter("lynx_router_client_disconnects_total",
                               "Clients that left before their answer was complete; phase "
                               "prefill is all the time before the first token",
                               labels({{"phase", phase}}));
  };
  auto slo_result = [&](const char* slo, const char* result) {
    return registry.AddCounter(
        "lynx_router_slo_requests_total",
        "Answered, failed and refused requests by whether they kept the configured target",
        labels({{"slo", slo}, {"result", result}}));
  };
  auto slo = [&](const char* name_of_slo) {
    return FrontMetrics::SloCounters{.met = slo_result(name_of_slo, "met"),
                                     .missed = slo_result(name_of_slo, "missed")};
  };
  for (const auto& [of, target] : {std::pair("ttft", targets.ttft), {"tpot", targets.tpot}}) {
    registry
        .AddGauge("lynx_router_slo_target_seconds", "The configured target; 0: none",
                  labels({{"slo", of}}))
        .Set(Has(target) ? absl::ToDoubleSeconds(target) : 0);
  }
  FrontMetrics::Model result{
      .duration_streaming = duration("true"),
      .duration_whole = duration("false"),
      .time_to_first_token = registry.AddHistogram(
          "lynx_router_time_to_first_token_seconds",
          "Request received to first token, queue, prefill and hand-off included; streams only",
          telemetry::kTtftSeconds, model),
      .inter_token_latency =
          registry.AddHistogram("lynx_router_inter_token_latency_seconds",
                                "Gap between two deliveries of tokens to one choice; tokens that "
                                "arrive together make one gap",
                                telemetry::kInterTokenSeconds, model),
      .time_per_output_token = registry.AddHistogram(
          "lynx_router_time_per_output_token_seconds",
          "Mean of a finished choice: first to last token, by the number of tokens less one",
          telemetry::kInterTokenSeconds, model),
      .request_prompt_tokens = registry.AddHistogram("lynx_router_request_prompt_tokens",
                                                     "Prompt tokens of a request, all its prompts",
                                                     telemetry::kTokens, model),
      .request_output_tokens = registry.AddHistogram("lynx_router_request_output_tokens",
                                                     "Output tokens of a request, all its choices",
                                                     telemetry::kTokens, model),
      .prompt_tokens =
          registry.AddCounter("lynx_router_prompt_tokens_total",
                              "Prompt tokens of requests whose answer began, once a prompt", model),
      .output_tokens = registry.AddCounter("lynx_router_output_tokens_total",
                                           "Tokens received for clients", model),
      .inflight = registry.AddGauge("lynx_router_inflight_requests",
                                    "Requests accepted and not finished", model),
      .left_before_first_token = left("prefill"),
      .left_while_streaming = left("streaming"),
      .requests = {},
      .slo_ttft = slo("ttft"),
      .slo_tpot = slo("tpot"),
      .slo_all = slo("all"),
      .goodput_tokens = registry.AddCounter(
          "lynx_router_goodput_tokens_total",
          "Output tokens of answered requests that kept every configured target", model)};
  for (Api api : {Api::kCompletions, Api::kChat}) {
    for (const auto& [code, outcome] : kEnds) {
      result.requests.emplace(
          std::array<int, 3>{static_cast<int>(api), code, static_cast<int>(outcome)},
          registry.AddCounter(
              "lynx_router_requests_total", "Finished requests",
              labels(
                  {{"api", Name(api)}, {"code", absl::StrCat(code)}, {"outcome", Name(outcome)}})));
    }
  }
  return result;
}

}  // namespace

FrontMetrics::FrontMetrics(telemetry::Registry& registry, std::span<const std::string> model_names,
                           SloTargets targets)
    : targets_(targets),
      tokenize_(registry.AddHistogram(kStageDurationName, kStageDurationHelp,
                                      telemetry::kStageSeconds, {{"stage", "tokenize"}})) {
  models_.emplace(kOther, MakeModel(registry, kOther, targets_));
  for (const std::string& name : model_names) {
    if (!models_.contains(name)) models_.emplace(name, MakeModel(registry, name, targets_));
  }
}

FrontMetrics::Model& FrontMetrics::ForModel(std::string_view name) {
  auto it = models_.find(name);
  if (it == models_.end()) it = models_.find(kOther);
  return it->second;
}

void FrontMetrics::CountRequest(Model& model, Api api, int code, Outcome outcome) {
  const auto it = model.requests.find({static_cast<int>(api), code, static_cast<int>(outcome)});
  LYNX_CHECK_MSG(it != model.requests.end(),
                 absl::StrCat("no series for code ", code, " with outcome ", Name(outcome)));
  it->second.Increment();
}

void FrontMetrics::CountAnswered(Model& model, const RequestTimes& times, int64_t output_tokens) {
  bool all = true;
  const auto count = [&](SloCounters& slo, absl::Duration took, absl::Duration target) {
    if (!Has(target)) return;
    all = all && took <= target;
    (took <= target ? slo.met : slo.missed).Increment();
  };
  count(model.slo_ttft, times.ttft, targets_.ttft);
  count(model.slo_tpot, times.tpot, targets_.tpot);
  (all ? model.slo_all.met : model.slo_all.missed).Increment();
  if (all) model.goodput_tokens.Increment(static_cast<double>(output_tokens));
}

void FrontMetrics::CountUnanswered(Model& model) {
  if (Has(targets_.ttft)) model.slo_ttft.missed.Increment();
  if (Has(targets_.tpot)) model.slo_tpot.missed.Increment();
  model.slo_all.missed.Increment();
}

Outcome OutcomeOf(int http_status, bool work_begun) {
  if (http_status < 400) return Outcome::kOk;
  if (http_status == 429 || http_status == 503) {
    return work_begun ? Outcome::kServerError : Outcome::kRejected;
  }
  return http_status < 500 ? Outcome::kClientError : Outcome::kServerError;
}

}  // namespace lynx::router
