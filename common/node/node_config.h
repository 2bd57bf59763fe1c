#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace lynx::config {
class FlagSet;
}

namespace lynx::node {

// Options that prefill and decode nodes share. Ranges and help texts: AddNodeFlags().
struct NodeConfig {
  std::string model;
  std::string served_model_name;
  std::string control = "0.0.0.0:9100";
  std::string http = "0.0.0.0:9400";
  std::string control_key;
  std::string control_peers;
  std::string announce;
  std::string log_level = "info";
  std::string metrics_compat = "none";

  std::string device = "cpu";
  std::string cuda_plugin;
  std::string compute_dtype = "bf16";
  std::string kv_dtype = "auto";
  int32_t tp = 1;
  int32_t dp = 1;
  int32_t ep = 0;  // 0: 1, or with dp all ranks.
  int32_t ep_spare = 0;
  absl::Duration ep_rebalance_interval = absl::Minutes(1);
  double ep_rebalance_gain = 0.03;
  int32_t rank = -1;  // -1: rank 0, which starts the others.
  int32_t world = 0;  // 0: as tp and dp say.
  std::string leader;
  absl::Duration rank_start_timeout = absl::Minutes(10);
  absl::Duration rank_timeout = absl::Milliseconds(1500);
  absl::Duration rank_call_timeout = absl::Seconds(30);
  int32_t threads = 0;
  std::string cpus;
  std::string isa = "auto";
  int64_t kv_memory_bytes = 0;
  int32_t kv_blocks = 0;
  int32_t max_context_tokens = 0;
  int32_t step_rows = 512;
  bool prefix_cache = true;

  std::string ucx_tls = "tcp";
  std::string ucx_net_devices;
  absl::Duration router_timeout = absl::Seconds(10);
  absl::Duration drain_timeout = absl::Seconds(60);
};

// Declares them; `config` outlives the parse.
void AddNodeFlags(config::FlagSet& flags, NodeConfig& config);

}  // namespace lynx::node
