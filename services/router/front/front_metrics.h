#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "common/telemetry/metrics.h"
#include "services/router/front/api_request.h"

namespace lynx::router {

// How a request ended, decided at the end of its stream: a broken 200 is no success. Rejected is
// what was refused before any work: the same status after it is a server error.
enum class Outcome : uint8_t {
  kOk,
  kClientError,
  kRejected,
  kServerError,
  kStreamError,
  kCancelled
};

// What every request is to keep. Infinite: no target.
struct SloTargets {
  absl::Duration ttft = absl::InfiniteDuration();
  absl::Duration tpot = absl::InfiniteDuration();
};

// What a finished request had, of its worst choice.
struct RequestTimes {
  absl::Duration ttft;  // Received to first token.
  absl::Duration tpot;  // Per further token; zero without any.
};

// The router's request metrics. Every series exists, at 0, from the start; labels come from closed
// sets: a model name that is not served counts as `other`, as does a request refused before its
// model is known. Thread-safe.
class FrontMetrics {
 public:
  // A client that left before a status was sent counts under this code.
  static constexpr int kClientClosedCode = 499;

  struct SloCounters {
    telemetry::Counter met;
    telemetry::Counter missed;
  };

  struct Model {
    telemetry::Histogram duration_streaming;
    telemetry::Histogram duration_whole;
    telemetry::Histogram time_to_first_token;
    telemetry::Histogram inter_token_latency;
    telemetry::Histogram time_per_output_token;
    telemetry::Histogram request_prompt_tokens;
    telemetry::Histogram request_output_tokens;
    telemetry::Counter prompt_tokens;
    telemetry::Counter output_tokens;
    telemetry::Gauge inflight;
    telemetry::Counter left_before_first_token;
    telemetry::Counter left_while_streaming;
    std::map<std::array<int, 3>, telemetry::Counter> requests;  // By api, code, outcome.
    SloCounters slo_ttft;
    SloCounters slo_tpot;
    SloCounters slo_all;
    telemetry::Counter goodput_tokens;
  };

  FrontMetrics(telemetry::Registry& registry, std::span<const std::string> model_names,
               SloTargets targets = {});

  Model& ForModel(std::string_view name);  // `other` for any that is not served; also "".

  void CountRequest(Model& model, Api api, int code, Outcome outcome);

  // A request that was answered whole, by the targets there are.
  void CountAnswered(Model& model, const RequestTimes& times, int64_t output_tokens);
  // One that the router or a node failed or refused: it missed every target.
  void CountUnanswered(Model& model);

  telemetry::Histogram& tokenize() { return tokenize_; }  // Seconds a request, template included.

 private:
  const SloTargets targets_;
  std::map<std::string, Model, std::less<>> models_;
  telemetry::Histogram tokenize_;
};

// The outcome that a status code stands for, when nothing was streamed.
Outcome OutcomeOf(int http_status, bool work_begun = false);

}  // namespace lynx::router
