#include "services/router/router_config.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_keys.h"
#include "common/base/json_shape.h"
#include "common/base/model_name.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"
#include "common/config/flag_set.h"
#include "common/moe/policy.h"
#include "services/router/placement/make_policy.h"

namespace lynx::router {
namespace {

constexpr int64_t kMaxConfigBytes = 4 << 20;

// The first of `keys` that is there and not null; a null pointer when none is.
const nlohmann::json* Find(const nlohmann::json& config, std::initializer_list<const char*> keys) {
  // Multimodal wrappers keep the language model's numbers one level down.
  for (const char* scope : {"", "text_config"}) {
    const nlohmann::json* object = &config;
    if (*scope != '\0') {
      auto inner = config.find(scope);
      if (inner == config.end() || !inner->is_object()) continue;
      object = &*inner;
    }
    for (const char* key : keys) {
      auto value = object->find(key);
      if (value != object->end() && !value->is_null()) return &*value;
    }
  }
  return nullptr;
}

// `value` is that of `key`; null: it is missing.
absl::StatusOr<int32_t> ToInt(const nlohmann::json* value, const char* key, int32_t min,
                              const std::string& file) {
  if (value == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": \"", key, "\" is missing"));
  }
  if (!value->is_number_integer() || *value < min || *value > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": \"", key, "\" is ", value->dump(),
                                                   ", not a ", min > 0 ? "positive " : "",
                                                   "32-bit integer", min == 0 ? " from 0" : ""));
  }
  return value->get<int32_t>();
}

// `auto` is not for requests: a node's controller has one aim for all of its load.
bool MayBeAllowed(const std::string& policy) {
  using Kind = moe::Policy::Kind;
  for (int kind = 0; kind < static_cast<int>(Kind::kAuto); ++kind) {
    if (policy == moe::KindName(static_cast<Kind>(kind))) return true;
  }
  return false;
}

absl::StatusOr<int32_t> PositiveInt(const nlohmann::json& config, const char* key,
                                    const std::string& file) {
  return ToInt(Find(config, {key}), key, 1, file);
}

absl::Status ReadExperts(const nlohmann::json& config, const std::string& file, ModelInfo& info) {
  // As the families spell it. A dense model of such a family has none of them, or 0.
  const nlohmann::json* experts =
      Find(config, {"num_experts", "num_local_experts", "n_routed_experts"});
  if (experts == nullptr) return absl::OkStatus();
  LYNX_ASSIGN_OR_RETURN(info.experts, ToInt(experts, "num_experts", 0, file));
  if (info.experts == 0) return absl::OkStatus();
  LYNX_ASSIGN_OR_RETURN(info.experts_per_token, PositiveInt(config, "num_experts_per_tok", file));
  if (info.experts_per_token <= info.experts) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(file, ": \"num_experts_per_tok\" is ",
                                                 info.experts_per_token, " of ", info.experts,
                                                 " experts"));
}

}  // namespace

void AddRouterFlags(config::FlagSet& flags, RouterConfig& config) {
  const config::DurationRange wait{absl::Milliseconds(10), absl::Hours(24)};
  flags.AddString("model", &config.model,
                  "Hugging Face model folder (required); of it the router reads the tokenizer, the "
                  "chat template and the configuration, no weights");
  flags.AddStrings("served-model-name", &config.served_model_names,
                   "names of the model towards clients; nodes must serve the first; empty takes "
                   "the folder's name");
  flags.AddString("listen", &config.listen,
                  "host:port of the API, health pages and metrics; port 0 picks a free one");
  flags.AddString("admin-listen", &config.admin_listen,
                  "host:port of health pages and metrics alone; empty: none");
  flags.AddBool("allow-drain", &config.allow_drain,
                "POST /nodes/drain has a node drain and end: whoever reaches "
                "admin-listen, or without it whoever is a client, may do so");
  flags.AddStrings("prefill", &config.prefill,
                   "host:port of prefill nodes; a name stands for all its addresses; empty: decode "
                   "nodes compute the prompts");
  flags.AddStrings("decode", &config.decode,
                   "host:port of decode nodes (required); a name stands for all its addresses");
  flags.AddString("api-keys", &config.api_keys,
                  "file of the API keys that requests must have one of; empty: anybody may call");
  flags.AddString("tls-cert", &config.tls_cert,
                  "PEM file of the certificate, and those above it, for TLS at --listen; empty: no "
                  "TLS");
  flags.AddString("tls-key", &config.tls_key, "PEM file of the certificate's key");
  flags.AddString("control-key", &config.control_key,
                  "file of this router's CURVE key pair, NAME.key_secret of lynx keygen, for an "
                  "encrypted control plane; empty: plain");
  flags.AddString("control-peers", &config.control_peers,
                  "folder of the nodes' public keys, NAME.key");
  flags.AddString("announce", &config.announce,
                  "file to write the bound address to once it is known");
  flags.AddChoice("log-level", &config.log_level, {"debug", "info", "warning", "error"},
                  "least severe lines to log");
  flags.AddChoice("metrics-compat", &config.metrics_compat, {"none", "vllm"},
                  "vllm: serve /metrics/vllm, too, with vLLM's names");
  flags.AddConfigActions();

  flags.AddInt("max-inflight", &config.max_inflight, {1, 1 << 20},
               "most sequences on nodes at a time");
  flags.AddInt("max-queued", &config.max_queued, {0, 1 << 20},
               "most sequences waiting for a node; more are refused with 429");
  flags.AddInt("max-retries", &config.max_retries, {0, 100},
               "how often a sequence may be begun anew on other nodes, or be resumed there; 256 "
               "tokens of progress forgive one");
  flags.AddInt("retry-burst", &config.retry_burst, {1, 1 << 20},
               "how many sequences may be begun anew at once; more are spread over time");
  flags.AddInt("max-moves", &config.max_moves, {0, 4096},
               "most sequences that a decode node which drains hands over at a time; 0: none, they "
               "end there or are cut off");
  flags.AddDouble("retry-ratio", &config.retry_ratio, {0, 100},
                  "how many more each request allows, beside ten a second");
  flags.AddInt("breaker-failures", &config.breaker_failures, {1, 1 << 20},
               "failures of a node, with no success between, after which it is passed over");
  flags.AddInt("max-context-tokens", &config.max_context_tokens, {0, 1 << 30},
               "most tokens of prompt and answer together; 0 takes the model's limit");
  flags.AddStrings("lynx-allow", &config.lynx_allow,
                   "expert remapping policies that requests may ask for, besides exact, which they "
                   "always may; what they do not ask is up to the decode nodes");
  flags.AddInt("max-connections", &config.max_connections, {1, 1 << 20},
               "most HTTP connections at a time");
  flags.AddInt("max-connections-per-client", &config.max_connections_per_client, {0, 1 << 20},
               "most of them from one address (of IPv6, one /64); 0: any number, as behind a "
               "gateway");
  flags.AddBytes("max-body", &config.max_body_bytes, {1024, int64_t{1} << 32},
                 "most bytes of a request's body");

  flags.AddChoice(
      "placement", &config.placement, PlacementNames(),
      "how nodes are chosen for a sequence; slo-aware by predicted times, prefix-aware by "
      "these and by where prompts that begin alike went, expert-affinity (experimental) by "
      "times and by where prompts of like tokens went");
  flags.AddDuration(
      "slo-ttft", &config.slo_ttft, {absl::ZeroDuration(), absl::Hours(24)},
      "time to the first token that metrics count by and slo-aware placement aims at; "
      "0: none");
  flags.AddDuration(
      "slo-tpot", &config.slo_tpot, {absl::ZeroDuration(), absl::Hours(1)},
      "time per further token that metrics count by and slo-aware placement aims at; 0: "
      "none");
  flags.AddBool("refuse-late", &config.refuse_late,
                "refuse with 429 at once what is predicted to miss slo-ttft, and what still waits "
                "for a node then");
  flags.AddDuration("queue-timeout", &config.queue_timeout, wait,
                    "how long a sequence may wait for a node");
  flags.AddDuration("resume-timeout", &config.resume_timeout, wait,
                    "how long one that has lost its nodes in mid-answer may wait for others");
  flags.AddDuration("breaker-open", &config.breaker_open, wait,
                    "how long a failing node is passed over at first; twice as long each time, at "
                    "most a minute or this");
  flags.AddDuration("request-timeout", &config.request_timeout, wait,
                    "most time for a request in all");
  flags.AddDuration("reserve-timeout", &config.reserve_timeout, wait,
                    "how long a decode node may take to answer a reservation");
  flags.AddDuration("grant-lease", &config.grant_lease, wait,
                    "how long decode keeps room for a hand-off that has not begun");
  flags.AddDuration("first-token-timeout", &config.first_token_timeout, wait,
                    "how long a prefill node may take to the first token, its queue included");
  flags.AddDuration("token-timeout", &config.token_timeout, wait,
                    "how long a decode node may take between tokens");
  flags.AddDuration("handoff-timeout", &config.handoff_timeout, wait,
                    "how long decode may be silent once the prefill node of a sequence is gone");
  flags.AddDuration("move-timeout", &config.move_timeout, wait,
                    "how long a decode node that drains may take to hand a sequence over");
  flags.AddDuration("gap-timeout", &config.gap_timeout, wait,
                    "how long a missing token may be on its way before it counts as lost");
  flags.AddDuration("heartbeat-interval", &config.heartbeat_interval,
                    {absl::Milliseconds(10), absl::Minutes(1)}, "time between heartbeats to nodes");
  flags.AddDuration("suspect-after", &config.suspect_after, {},
                    "silence after which a node gets no new work; 0: three heartbeats");
  flags.AddDuration("gone-after", &config.gone_after, {},
                    "silence after which a node's sequences are given up; 0: ten heartbeats");
  flags.AddDuration("reconnect-grace", &config.reconnect_grace,
                    {absl::ZeroDuration(), absl::Minutes(10)},
                    "how long a node whose connection broke may be silent before its sequences are "
                    "given up");
  flags.AddDuration("resolve-interval", &config.resolve_interval,
                    {absl::Milliseconds(100), absl::Hours(24)},
                    "time between look-ups of the nodes' names");
  flags.AddDuration("stream-heartbeat", &config.stream_heartbeat, wait,
                    "silence after which a stream gets a comment, so that no proxy closes it");
  flags.AddDuration("drain-timeout", &config.drain_timeout, {absl::ZeroDuration(), absl::Hours(24)},
                    "after SIGTERM, how long streams may take to finish");
}

absl::Status CompleteRouterConfig(RouterConfig& config) {
  if (config.model.empty()) return absl::InvalidArgumentError("--model is required");
  if (config.decode.empty()) {
    return absl::InvalidArgumentError("--decode is required");
  }
  if (config.served_model_names.empty()) {
    const std::string folder = FolderName(config.model);
    if (folder == "." || folder == ".." || folder.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--model ", config.model, " names no folder; give --served-model-name"));
    }
    config.served_model_names = {folder};
  }
  const bool limits = config.slo_ttft + config.slo_tpot > absl::ZeroDuration();
  if (config.placement == "slo-aware" && !limits) {
    return absl::InvalidArgumentError("--placement slo-aware needs --slo-ttft or --slo-tpot");
  }
  if (config.refuse_late &&
      (config.slo_ttft == absl::ZeroDuration() || config.placement != "slo-aware")) {
    return absl::InvalidArgumentError("--refuse-late needs --slo-ttft and --placement slo-aware");
  }
  for (const std::string& name : config.served_model_names) {
    LYNX_RETURN_IF_ERROR(CheckModelName(name));
  }
  for (const std::string& name : config.lynx_allow) {
    if (!MayBeAllowed(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--lynx-allow has '", name, "', which is no policy that a request may have"));
    }
  }
  if (config.tls_cert.empty() != config.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key are given together, or neither");
  }
  if (config.control_key.empty() != config.control_peers.empty()) {
    return absl::InvalidArgumentError(
        "--control-key and --control-peers are given together, or neither");
  }
  LYNX_RETURN_IF_ERROR(ParseListenAddress("listen", config.listen).status());
  if (!config.admin_listen.empty()) {
    LYNX_RETURN_IF_ERROR(ParseListenAddress("admin-listen", config.admin_listen).status());
  }
  if (config.suspect_after == absl::ZeroDuration()) {
    config.suspect_after = 3 * config.heartbeat_interval;
  }
  if (config.gone_after == absl::ZeroDuration()) config.gone_after = 10 * config.heartbeat_interval;
  if (config.suspect_after <= config.heartbeat_interval ||
      config.gone_after <= config.suspect_after) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--heartbeat-interval ", absl::FormatDuration(config.heartbeat_interval),
        " must be less than --suspect-after ", absl::FormatDuration(config.suspect_after),
        ", and that less than --gone-after ", absl::FormatDuration(config.gone_after)));
  }
  return absl::OkStatus();
}

absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& flag, const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " \"", text, "\" is not host:port or [IPv6]:port"));
  }
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return ListenAddress{host, static_cast<uint16_t>(port)};
}

absl::StatusOr<ModelInfo> LoadModelInfo(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "config.json";
  const std::string file = path.string();
  LYNX_ASSIGN_OR_RETURN(const RegularFile opened, RegularFile::Open(path));
  if (opened.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, " is larger than ", kMaxConfigBytes, " bytes"));
  }
  const absl::StatusOr<std::string> read = opened.ReadAll();
  if (!read.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", read.status().message()));
  }
  const std::string& text = *read;
  if (absl::Status shape = CheckJsonShape(text); !shape.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", shape.message()));
  }
  const nlohmann::json config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file, " is not a JSON object"));
  }
  if (const std::optional<std::string> key = RepeatedJsonKey(text); key.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": key '", *key, "' occurs twice"));
  }
  ModelInfo info;
  LYNX_ASSIGN_OR_RETURN(info.vocab_size, PositiveInt(config, "vocab_size", file));
  LYNX_ASSIGN_OR_RETURN(info.max_context_tokens,
                        PositiveInt(config, "max_position_embeddings", file));
  LYNX_RETURN_IF_ERROR(ReadExperts(config, file, info));
  return info;
}

}  // namespace lynx::router
