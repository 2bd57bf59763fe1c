#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lynx::config {
class FlagSet;
}

namespace lynx::router {

// Options of lynx-router. Ranges and help texts: AddRouterFlags().
struct RouterConfig {
  std::string model;
  std::vector<std::string> served_model_names;
  std::string listen = "0.0.0.0:8080";
  std::string admin_listen;
  bool allow_drain = false;
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  std::string announce;
  std::string api_keys;
  std::string tls_cert;
  std::string tls_key;
  std::string control_key;
  std::string control_peers;
  std::string log_level = "info";
  std::string metrics_compat = "none";
  std::string placement = "least-load";
  std::vector<std::string> lynx_allow;

  int32_t max_inflight = 1024;
  int32_t max_queued = 1024;
  int32_t max_retries = 3;
  int32_t retry_burst = 1024;
  int32_t max_moves = 16;
  double retry_ratio = 0.2;
  int32_t breaker_failures = 5;
  int32_t max_context_tokens = 0;
  int32_t max_connections = 4096;
  int32_t max_connections_per_client = 0;
  int64_t max_body_bytes = int64_t{16} << 20;

  absl::Duration slo_ttft = absl::ZeroDuration();
  absl::Duration slo_tpot = absl::ZeroDuration();
  bool refuse_late = false;
  absl::Duration queue_timeout = absl::Seconds(30);
  absl::Duration resume_timeout = absl::Seconds(30);
  absl::Duration breaker_open = absl::Seconds(2);
  absl::Duration request_timeout = absl::Hours(1);
  absl::Duration reserve_timeout = absl::Seconds(2);
  absl::Duration grant_lease = absl::Seconds(30);
  absl::Duration first_token_timeout = absl::Minutes(5);
  absl::Duration token_timeout = absl::Minutes(1);
  absl::Duration handoff_timeout = absl::Seconds(5);
  absl::Duration move_timeout = absl::Seconds(10);
  absl::Duration gap_timeout = absl::Seconds(2);
  absl::Duration heartbeat_interval = absl::Milliseconds(500);
  absl::Duration suspect_after = absl::ZeroDuration();
  absl::Duration gone_after = absl::ZeroDuration();
  absl::Duration reconnect_grace = absl::Milliseconds(500);
  absl::Duration resolve_interval = absl::Seconds(10);
  absl::Duration stream_heartbeat = absl::Seconds(5);
  absl::Duration drain_timeout = absl::Seconds(45);
};

// Declares them; `config` outlives the parse.
void AddRouterFlags(config::FlagSet& flags, RouterConfig& config);

// Fills in what derives from other options and checks what no single range can.
//   InvalidArgument  names the options and their values.
absl::Status CompleteRouterConfig(RouterConfig& config);

struct ListenAddress {
  std::string host;  // Without brackets.
  uint16_t port = 0;
};
// "host:port" or "[v6]:port". InvalidArgument names `flag`.
absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& flag, const std::string& text);

// What the router must know of a model besides its tokenizer.
struct ModelInfo {
  int32_t vocab_size = 0;
  int32_t max_context_tokens = 0;
  // Of a mixture of experts: routed experts of a layer, and how many a token goes through; else 0.
  int32_t experts = 0;
  int32_t experts_per_token = 0;
};
// Reads config.json of a model folder (its text_config too).
//   NotFound, InvalidArgument  name the file and what is wrong.
absl::StatusOr<ModelInfo> LoadModelInfo(const std::filesystem::path& model_dir);

}  // namespace lynx::router
