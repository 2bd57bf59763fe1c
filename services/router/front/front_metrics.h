#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// The router's request metrics. Every series exists, at 0, from the start; labels come from closed
// sets: a model name that is not served counts as `other`, as does a request refused before its
// model is known. Thread-safe.
class FrontMetrics {
 public:
  // A client that left before a status was sent counts under this code.
  static constexpr int kClientClosedCode = 499;

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
  };

  FrontMetrics(telemetry::Registry& registry, std::span<const std::string> model_names);

  Model& ForModel(std::string_view name);  // `other` for any that is not served; also "".

  void CountRequest(Model& model, Api api, int code, Outcome outcome);

  telemetry::Histogram& tokenize() { return tokenize_; }  // Seconds a request, template included.

 private:
  std::map<std::string, Model, std::less<>> models_;
  telemetry::Histogram tokenize_;
};

// The outcome that a status code stands for, when nothing was streamed.
Outcome OutcomeOf(int http_status, bool work_begun = false);

}  // namespace lynx::router
