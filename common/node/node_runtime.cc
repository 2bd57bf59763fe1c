#include "common/node/node_runtime.h"

#include <signal.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <new>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/announcement.h"
#include "common/base/available_memory.h"
#include "common/base/dtype.h"
#include "common/base/model_name.h"
#include "common/base/status_macros.h"
#include "common/model/device_model_runner.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "common/model/shard_plan.h"
#include "common/node/load_progress.h"
#include "common/node/node_control.h"
#include "common/node/node_memory.h"
#include "common/node/transfer_identity.h"
#include "common/telemetry/log.h"
#include "common/telemetry/log_level.h"
#include "common/transfer/ucx_engine.h"
#include "kernels/core/cpu_limit.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/choose_device.h"

namespace lynx::node {
namespace {

// By window and chunk.
std::map<std::pair<int32_t, int32_t>, int32_t> CountGroups(const kv::KvGroups& groups) {
  std::map<std::pair<int32_t, int32_t>, int32_t> counts;
  for (int32_t g = 0; g < groups.count(); ++g) {
    ++counts[{groups.reach(g).window, groups.reach(g).chunk}];
  }
  return counts;
}

absl::StatusOr<std::vector<int32_t>> CpusOf(const std::string& option) {
  if (option.empty()) return std::vector<int32_t>();
  if (option == "allowed") return kernels::AllowedCpus();
  return kernels::ParseCpuList(option);
}

// Confines the process as --cpus says; the CPUs that compute threads are pinned to.
absl::StatusOr<std::vector<int32_t>> Confine(const std::string& option) {
  LYNX_ASSIGN_OR_RETURN(std::vector<int32_t> cpus, CpusOf(option));
  if (!cpus.empty() && option != "allowed") LYNX_RETURN_IF_ERROR(kernels::ConfineThisThread(cpus));
  return cpus;
}

// A node that has lost a rank can do nothing more, and nothing that it might wait for ends for
// sure: so it does not clean up.
[[noreturn]] void EndNode(const std::string& role, const absl::Status& why) {
  telemetry::LogError("the node ends with its ranks", {{"status", std::string(why.ToString())}});
  std::fprintf(stderr, "lynx-%s: %s\n", role.c_str(), std::string(why.message()).c_str());
  std::_Exit(1);
}

// As given: ep may be 0.
model::ParallelLayout LayoutOf(const NodeConfig& config) {
  return {.tp = config.tp, .dp = config.dp, .ep = config.ep, .ep_spare = config.ep_spare};
}

// That the ranks can share the model, where it can be read here.
absl::Status CheckModelLayout(const NodeConfig& config) {
  const absl::StatusOr<model::ModelSpec> spec = model::LoadModelSpec(config.model);
  if (!spec.ok()) return absl::OkStatus();
  return model::CompleteLayout(*spec, LayoutOf(config)).status();
}

// What all ranks have to have alike, a line each.
std::string RankIdentity(const std::string& role, const NodeConfig& config,
                         const model::ModelSpec& spec, const std::vector<std::string>& more) {
  std::vector<std::string> lines = {
      absl::StrCat("lynx ", std::string(config::Version())),
      role,
      absl::StrCat("a ", spec.model_type, " of ", spec.layers, " layers, ", spec.experts,
                   " experts, hidden size ", spec.hidden_size, ", vocabulary ", spec.vocab_size),
      absl::StrCat("--tp ", config.tp),
      absl::StrCat("--dp ", config.dp),
      absl::StrCat("--ep ", config.ep),
      absl::StrCat("--ep-spare ", config.ep_spare),
      absl::StrCat("--rank-timeout ", absl::FormatDuration(config.rank_timeout))};
  lines.insert(lines.end(), more.begin(), more.end());
  return absl::StrJoin(lines, "\n");
}

// What no code answers for, as that a library gets no memory or no thread under a limit, ends the
// process in words instead of in a core.
std::terminate_handler usual_end;
[[noreturn]] void EndForWant() {
  const char* want = nullptr;
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    want = "no memory";
  } catch (const std::system_error& error) {
    want = error.what();
  } catch (...) {
  }
  if (want == nullptr) {
    usual_end();
    std::abort();
  }
  std::fprintf(stderr,
               "cannot go on: %s; see this process's limits of memory, threads and open files\n",
               want);
  std::_Exit(1);
}

// How long the ranks that this process has started may take to end after it has told them.
constexpr absl::Duration kRankEndTimeout = absl::Seconds(5);

// Far above what a chunk of a prompt takes on the slowest machine that is of use: a restart loses
// all sequences.
constexpr absl::Duration kStuckStep = absl::Minutes(5);

std::string Giga(double number) { return absl::StrFormat("%.2f", number / 1e9); }

std::function<void(int64_t, int64_t)> LogProgress() {
  return [progress =
              LoadProgress(SteadyClock::Instance(), absl::Seconds(5), [](const LoadedPart& part) {
                telemetry::LogInfo("loading weights",
                                   {{"percent", absl::StrFormat("%.0f", part.percent)},
                                    {"gigabytes", Giga(static_cast<double>(part.done_bytes))},
                                    {"of_gigabytes", Giga(static_cast<double>(part.total_bytes))},
                                    {"gigabytes_per_second", Giga(part.bytes_per_second)}});
              })](int64_t done, int64_t total) mutable { progress.Update(done, total); };
}

}  // namespace

absl::StatusOr<std::pair<std::string, uint16_t>> ParseHostPort(const std::string& option,
                                                               const std::string& text) {
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  uint16_t port = 0;
  const char* end = text.data() + text.size();
  if (colon == std::string::npos || host.empty() || colon + 1 == text.size() ||
      std::from_chars(text.data() + colon + 1, end, port).ptr != end) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", option, ": '", text, "' is not host:port"));
  }
  return std::pair(host, port);
}

absl::Status CheckNodeConfig(const NodeConfig& config) {
  const auto wrong = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(what...));
  };
  if (config.model.empty()) return wrong("--model is required");
  const int32_t world = config.tp * config.dp;
  const std::string widths = absl::StrCat(
      "--tp ", config.tp, config.dp > 1 ? absl::StrCat(" times --dp ", config.dp) : "");
  if (world > model::kMaxRanks) {
    return wrong(widths, " is ", world, " ranks, the most are ", model::kMaxRanks);
  }
  if (config.world != 0 && config.world != world) {
    return wrong("--world ", config.world, ", but ", widths, " is ", world, " ranks");
  }
  if (config.rank >= world) {
    return wrong("--rank ", config.rank, " of the ", world, " ranks of ", widths);
  }
  if ((config.rank < 0) != config.leader.empty()) {
    return wrong("--rank and --leader are given together, or neither");
  }
  if (config.control_key.empty() != config.control_peers.empty()) {
    return wrong("--control-key and --control-peers are given together, or neither");
  }
  LYNX_RETURN_IF_ERROR(cuda::CheckDeviceName(config.device));
  if (world > 1 && config.device != "cpu" && config.device != "auto") {
    return wrong("--device ", config.device, " with ", widths,
                 ": nodes of several ranks compute on CPUs");
  }
  LYNX_RETURN_IF_ERROR(ParseHostPort("control", config.control).status());
  return ParseHostPort("http", config.http).status();
}

NodeRuntime::NodeRuntime(const NodeConfig& config, const std::string& role, Incarnation incarnation)
    : config_(config), role_(role), incarnation_(incarnation) {}

NodeRuntime::~NodeRuntime() {
  if (server_ != nullptr) server_->Stop(absl::Seconds(1));
  ranks_ = nullptr;
  if (processes_.has_value()) processes_->Stop(kRankEndTimeout);
}

absl::Status NodeRuntime::CreateRanks(const config::FlagSet& flags, NodeConfig& config,
                                      const std::string& role, Incarnation incarnation,
                                      std::unique_ptr<NodeRanks>& ranks,
                                      std::optional<RankProcesses>& processes) {
  if (LayoutOf(config).world() == 1) {
    config.ep = std::max(1, config.ep);
    return absl::OkStatus();
  }
  // Before other processes are started, or waited for.
  LYNX_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::LoadModelSpec(config.model));
  LYNX_ASSIGN_OR_RETURN(const model::ParallelLayout layout,
                        model::CompleteLayout(spec, LayoutOf(config)));
  config.ep = layout.ep;
  const bool starts_others = config.rank < 0;
  std::vector<RankCpus> cpus;
  if (starts_others) {
    LYNX_ASSIGN_OR_RETURN(const std::vector<int32_t> pinned, CpusOf(config.cpus));
    LYNX_ASSIGN_OR_RETURN(cpus, DealCpus(layout.world(), config.threads, pinned,
                                         kernels::AllowedCpus(), kernels::UsableCpus()));
    config.rank = 0;
    config.leader = "127.0.0.1:0";
    config.threads = cpus[0].threads;
    config.cpus = absl::StrJoin(cpus[0].cpus, ",");
  }
  LYNX_ASSIGN_OR_RETURN(
      ranks, NodeRanks::Create({.rank = config.rank,
                                .incarnation = incarnation,
                                .layout = layout,
                                .leader = config.leader,
                                .start_timeout = config.rank_start_timeout,
                                .silence = config.rank_timeout,
                                .call_timeout = config.rank_call_timeout,
                                .on_lost = [role](const absl::Status& why) { EndNode(role, why); },
                                .on_refused =
                                    [](const absl::Status& why) {
                                      telemetry::LogWarning(
                                          "a process was refused as a rank",
                                          {{"status", std::string(why.ToString())}});
                                    }}));
  if (!starts_others) return absl::OkStatus();
  LYNX_ASSIGN_OR_RETURN(processes, RankProcesses::Start(flags, ranks->endpoint(), cpus));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<NodeRuntime>> NodeRuntime::Create(const config::FlagSet& flags,
                                                                 const NodeConfig& given,
                                                                 const std::string& role) {
  LYNX_RETURN_IF_ERROR(CheckNodeConfig(given));
  NodeConfig config = given;
  std::unique_ptr<NodeRanks> ranks;
  std::optional<RankProcesses> processes;
  const Incarnation incarnation = RandomId();
  LYNX_RETURN_IF_ERROR(CreateRanks(flags, config, role, incarnation, ranks, processes));
  // Before there are other threads.
  absl::StatusOr<std::vector<int32_t>> cpus = Confine(config.cpus);
  if (!cpus.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--cpus ", config.cpus, ": ", std::string(cpus.status().message())));
  }
  if (!cpus->empty() && config.threads > static_cast<int32_t>(cpus->size())) {
    return absl::InvalidArgumentError(absl::StrCat("--threads ", config.threads,
                                                   ": more than the CPUs of --cpus ", config.cpus,
                                                   ", ", cpus->size(), ", and each takes one"));
  }
  auto runtime = std::unique_ptr<NodeRuntime>(new NodeRuntime(config, role, incarnation));
  runtime->processes_ = std::move(processes);
  runtime->ranks_ = std::move(ranks);
  runtime->cpus_ = *std::move(cpus);
  telemetry::ConfigureLog(
      {.min_level = telemetry::LogLevelOf(config.log_level),
       .component = config.rank > 0 ? absl::StrCat(role, "-rank-", config.rank) : role,
       .incarnation = HexId(runtime->incarnation_)});
  runtime->stop_.On(SIGUSR1, [] { telemetry::SetLogLevel(telemetry::LogLevel::kDebug); });
  runtime->stop_.On(SIGUSR2, [level = telemetry::LogLevelOf(config.log_level)] {
    telemetry::SetLogLevel(level);
  });
  runtime->model_name_ =
      config.served_model_name.empty() ? FolderName(config.model) : config.served_model_name;
  LYNX_RETURN_IF_ERROR(CheckModelName(runtime->model_name_));

  telemetry::AddBuildInfo(
      runtime->registry_, std::string(config::Version()),
      std::string(kernels::Name(kernels::IsaNamed(config.isa).value_or(kernels::BestIsa()))));
  if (config.rank <= 0) {
    LYNX_ASSIGN_OR_RETURN(
        runtime->control_keys_,
        rpc::ControlKeys::Load(config.control_key, config.control_peers, runtime->registry_));
  }
  runtime->health_.AddTo(runtime->routes_);
  if (config.metrics_compat == "vllm") {
    runtime->health_.AddVllmMetricsTo(runtime->routes_, runtime->model_name_);
  }
  http::ServerOptions options;
  LYNX_ASSIGN_OR_RETURN(std::tie(options.address, options.port),
                        ParseHostPort("http", config.http));
  runtime->http_host_ = config.http.substr(0, config.http.rfind(':'));
  options.name = "admin";
  options.max_connections = 256;
  options.registry = &runtime->registry_;
  LYNX_ASSIGN_OR_RETURN(runtime->server_, http::HttpServer::Create(options, runtime->routes_));
  runtime->server_->Start();
  return runtime;
}

absl::StatusOr<std::unique_ptr<engine::Engine>> NodeRuntime::LoadEngine(
    int32_t step_rows, int32_t step_logits, const MakeRankWorker& make_worker,
    bool remap_mixed_steps) {
  auto engine = MakeEngine(step_rows, step_logits, make_worker, remap_mixed_steps);
  if (!engine.ok() && ranks_ != nullptr) ranks_->Leave(engine.status());
  return engine;
}

// A rank other than 0, until rank 0 ends.
absl::Status NodeRuntime::Follow(model::ModelRunner& runner, const MakeRankWorker& make_worker) {
  ThreadEventLoop loop;
  health_.WatchLoop("loop", loop, absl::Seconds(30));
  LYNX_ASSIGN_OR_RETURN(
      auto engine,
      transfer::UcxEngine::Create(
          {.transports = config_.ucx_tls, .net_devices = config_.ucx_net_devices}, loop));
  const std::string address = engine->LocalAddress();
  std::unique_ptr<transfer::TransferEngine> send_engine;
  if (role_ == "decode") {
    LYNX_ASSIGN_OR_RETURN(
        send_engine,
        transfer::UcxEngine::Create(
            {.transports = config_.ucx_tls, .net_devices = config_.ucx_net_devices}, loop));
  }
  std::unique_ptr<RankWorker> worker;
  loop.RunAndWait([&] {
    worker = make_worker(
        {.identity = TransferIdentity(ranks_->incarnation(), runner, layout(), config_.rank),
         .kv = runner.kv(),
         .engine = std::move(engine),
         .send_engine = std::move(send_engine),
         .loop = loop,
         .registry = registry_,
         .rank0 = *ranks_});
  });
  const RankListener listener(
      ranks_.get(), loop,
      [&worker](int, const proto::RankMessage& message) { worker->OnMessage(message); });
  const absl::Status status = ranks_->Follow(
      runner, address, /*before_step=*/[&] { loop.RunAndWait([] {}); },
      /*ready=*/
      [this] {
        // The leader drains and ends; this rank with it.
        stop_.Arm();
        if (!config_.announce.empty()) {
          const absl::Status written =
              WriteAnnouncement(config_.announce, {.http = http_endpoint(), .control = ""});
          if (!written.ok()) ranks_->Leave(written);
        }
        health_.SetStarted();
        telemetry::LogInfo("ready",
                           {{"rank", absl::StrCat(config_.rank)}, {"http", http_endpoint()}});
      });
  loop.Stop();
  return status;
}

absl::Status NodeRuntime::ChooseDevice(const model::RunnerOptions& options,
                                       const model::ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(cuda::ChosenDevice chosen,
                        cuda::ChooseDevice(config_.device, config_.cuda_plugin));
  if (chosen.device != nullptr) {
    const absl::Status serves = model::CheckForDevice(options, spec);
    if (!serves.ok() && config_.device != "auto") return serves;
    if (!serves.ok()) {
      chosen = {.device = nullptr,
                .why = absl::StrCat("the CPUs: ", absl::string_view(serves.message()))};
    }
  }
  device_ = std::move(chosen.device);
  telemetry::LogInfo("device", {{"asked_for", config_.device}, {"chosen", chosen.why}});
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<engine::Engine>> NodeRuntime::MakeEngine(
    int32_t step_rows, int32_t step_logits, const MakeRankWorker& make_worker,
    bool remap_mixed_steps) {
  LYNX_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::LoadModelSpec(config_.model));
  const DType compute = DTypeNamed(config_.compute_dtype).value();
  const DType kv_dtype =
      config_.kv_dtype == "auto" ? compute : DTypeNamed(config_.kv_dtype).value();
  const model::ParallelLayout ranks = layout();
  LYNX_RETURN_IF_ERROR(model::CheckLayout(spec, ranks));
  const model::RankShard shard = model::ShardOf(spec, ranks, std::max(0, config_.rank));
  const kv::KvLayout kv = model::KvLayoutOf(model::SpecOfShard(spec, shard), kv_dtype);
  max_context_tokens_ = config_.max_context_tokens > 0
                            ? std::min(config_.max_context_tokens, spec.max_positions)
                            : spec.max_positions;
  model::RunnerOptions options{
      .model_dir = config_.model,
      .compute_dtype = compute,
      .kv_dtype = kv_dtype,
      .max_step_rows = step_rows,
      .max_step_logits = step_logits,
      .threads = config_.threads,
      .cpus = cpus_,
      .isa = kernels::IsaNamed(config_.isa),
      .remap_mixed_steps = remap_mixed_steps,
      .admit_memory =
          [ranks_here = processes_.has_value() ? ranks.world() : 1](const model::MemoryNeed& need) {
            return CheckNodeMemory(need, AvailableMemory() / ranks_here);
          },
      .load_progress = LogProgress(),
      .layout = ranks};
  LYNX_RETURN_IF_ERROR(ChooseDevice(options, spec));
  options.device = device_.get();
  if (device_ == nullptr) {
    LYNX_ASSIGN_OR_RETURN(options.kv_blocks, KvBlocks(config_, kv, max_context_tokens_, step_rows));
  } else {
    options.device_kv_blocks = [&](const model::DeviceRoom& room) {
      return DeviceKvBlocks(config_, kv, max_context_tokens_, step_rows, room);
    };
  }
  if (ranks_ != nullptr) {
    const std::string identity = RankIdentity(
        role_, config_, spec,
        {absl::StrCat("compute ", std::string(Name(compute))),
         absl::StrCat("KV ", std::string(Name(kv_dtype))),
         absl::StrCat(options.kv_blocks, " KV blocks (by --kv-memory or --kv-blocks)"),
         absl::StrCat("steps of ", step_rows, " rows and ", step_logits, " logits rows"),
         remap_mixed_steps ? "remapping also in mixed steps" : "remapping in decode steps"});
    LYNX_RETURN_IF_ERROR(ranks_->Join(identity, [this] {
      return processes_.has_value() ? processes_->Check() : absl::OkStatus();
    }));
  }
  options.ranks = ranks_ == nullptr ? nullptr : ranks_->communicator();
  auto loaded = model::ModelRunner::Load(options);
  if (absl::IsUnimplemented(loaded.status()) && device_ != nullptr && config_.device == "auto") {
    // Which types its weights have is known from the files alone.
    telemetry::LogInfo(
        "device",
        {{"asked_for", config_.device},
         {"chosen", absl::StrCat("the CPUs: ", absl::string_view(loaded.status().message()))}});
    options.device = nullptr;
    device_ = nullptr;
    LYNX_ASSIGN_OR_RETURN(options.kv_blocks, KvBlocks(config_, kv, max_context_tokens_, step_rows));
    loaded = model::ModelRunner::Load(options);
  }
  LYNX_ASSIGN_OR_RETURN(auto runner, std::move(loaded));
  if (config_.rank > 0) {
    LYNX_RETURN_IF_ERROR(Follow(*runner, make_worker));
    return absl::CancelledError("the leader has ended");
  }
  placement_metrics_.emplace(registry_);
  if (ranks_ != nullptr) {
    LYNX_ASSIGN_OR_RETURN(
        runner, ranks_->Lead(std::move(runner), {.interval = config_.ep_rebalance_interval,
                                                 .least_gain = config_.ep_rebalance_gain,
                                                 .metrics = &*placement_metrics_}));
  }
  for (const std::string& note : runner->spec().notes) telemetry::LogWarning(note);
  registry_.AddGauge("lynx_node_ranks", "Ranks of the node, all of them alive.").Set(ranks.world());
  registry_
      .AddGauge("lynx_moe_spare_experts",
                "Slots of each rank and layer for experts beyond its part: --ep-spare.")
      .Set(ranks.ep_spare);
  registry_
      .AddGauge("lynx_model_info", "Constant 1; the labels describe the model.",
                {{"model_name", model_name_},
                 {"architecture", spec.model_type},
                 {"layers", absl::StrCat(spec.layers)},
                 {"experts", absl::StrCat(spec.experts)},
                 {"top_k", absl::StrCat(spec.experts_per_token)},
                 {"dtype", std::string(Name(compute))}})
      .Set(1);
  for (const auto& [reach, groups] : CountGroups(kv.groups)) {
    registry_
        .AddGauge("lynx_kv_groups",
                  "Groups of layers with KV blocks of their own, by what their rows attend to; 0: "
                  "all.",
                  {{"window", absl::StrCat(reach.first)}, {"chunk", absl::StrCat(reach.second)}})
        .Set(groups);
  }
  telemetry::LogInfo(
      "model loaded",
      {{"model", model_name_},
       {"numeric_class", runner->numeric_class()},
       {"compatibility_hash", runner->compatibility_hash()},
       {"kv_blocks", absl::StrCat(runner->kv().blocks())},
       {"kv_block_bytes", absl::StrCat(kv.BlockBytes())},
       {"kv_groups", absl::StrCat(kv.groups.count())},
       {"ranks", absl::StrCat(ranks.world())},
       {"seconds", absl::StrCat(absl::ToDoubleSeconds(SteadyClock::Instance().Now() - began_))}});
  return std::make_unique<engine::Engine>(std::move(runner),
                                          engine::EngineOptions{.vocab_size = spec.vocab_size,
                                                                .max_step_rows = step_rows,
                                                                .max_step_logits = step_logits,
                                                                .replicas = ranks.dp});
}

absl::StatusOr<std::unique_ptr<rpc::ZmqChannel>> NodeRuntime::OpenControl(EventLoop& loop,
                                                                          int32_t vocab_size) {
  return rpc::ZmqChannel::Create(
      {.bind = config_.control,
       .max_message_bytes = MaxControlMessageBytes(max_context_tokens_, vocab_size),
       .curve = control_keys_->keys()},
      loop, registry_);
}

std::function<void(bool)> NodeRuntime::WatchSteps() {
  return [step = health_.AddHeartbeat("step", kStuckStep)](bool busy) { step->SetBusy(busy); };
}

absl::Status NodeRuntime::SetReady(const std::string& control_endpoint) {
  stop_.Arm();
  // Whoever reads the announcement finds every metric.
  registry_
      .AddGauge("lynx_node_startup_duration_seconds",
                "Time from the start of the process to readiness.")
      .Set(absl::ToDoubleSeconds(SteadyClock::Instance().Now() - began_));
  if (!config_.announce.empty()) {
    LYNX_RETURN_IF_ERROR(WriteAnnouncement(config_.announce,
                                           {.http = http_endpoint(), .control = control_endpoint}));
  }
  health_.SetStarted();
  telemetry::LogInfo("ready", {{"control", control_endpoint}, {"http", http_endpoint()}});
  return absl::OkStatus();
}

std::string NodeRuntime::http_endpoint() const {
  return absl::StrCat(http_host_, ":", server_->port());
}

int RunNode(config::FlagSet& flags, int argc, const char* const* argv, const NodeConfig& config,
            const std::string& role, const std::function<absl::Status(NodeRuntime&)>& serve,
            const std::function<absl::Status()>& check) {
  usual_end = std::set_terminate(EndForWant);
  auto outcome = flags.Parse(argc, argv);
  if (outcome.ok() && *outcome == config::ParseOutcome::kRun) {
    absl::Status fits = CheckNodeConfig(config);
    if (fits.ok() && check != nullptr) fits = check();
    if (fits.ok() && flags.HasConfigAction()) fits = CheckModelLayout(config);
    if (!fits.ok()) outcome = std::move(fits);
  }
  if (!outcome.ok()) {
    std::fprintf(stderr, "lynx-%s: %s\n", role.c_str(),
                 std::string(outcome.status().message()).c_str());
    return 2;
  }
  if (*outcome == config::ParseOutcome::kPrinted || flags.AnswerConfigActions()) return 0;
  auto runtime = NodeRuntime::Create(flags, config, role);
  absl::Status status = runtime.status();
  if (status.ok()) {
    telemetry::LogInfo("starting", {{"config", flags.Describe()}});
    status = serve(**runtime);
  }
  // What ranks other than the leader end with, in good order.
  if (status.ok() || (config.rank > 0 && absl::IsCancelled(status))) return 0;
  telemetry::LogError("cannot serve", {{"status", std::string(status.ToString())}});
  std::fprintf(stderr, "lynx-%s: %s\n", role.c_str(), std::string(status.message()).c_str());
  return 1;
}

void NodeRuntime::RunUntilStopped(ThreadEventLoop& loop, const std::function<void()>& drain,
                                  const std::function<bool()>& idle,
                                  const std::function<void()>& cut_off) {
  stop_.Wait();
  health_.SetNotReady("draining", "the node is draining");
  telemetry::LogInfo("draining");
  loop.RunAndWait(drain);
  const absl::Time deadline = SteadyClock::Instance().Now() + config_.drain_timeout;
  bool done = false;
  for (;;) {
    loop.RunAndWait([&] { done = idle(); });
    if (done || stop_.hurried() || SteadyClock::Instance().Now() >= deadline) break;
    absl::SleepFor(absl::Milliseconds(20));
  }
  if (!done) loop.RunAndWait(cut_off);
  telemetry::LogInfo(done ? "drained" : "sequences are cut off",
                     {{"hurried", stop_.hurried() ? "true" : "false"}});
  loop.Stop();
}

}  // namespace lynx::node
