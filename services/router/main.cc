// lynx-router: reads its options, builds its objects, and waits for a signal.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/announcement.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/concurrency/event_loop.h"
#include "common/concurrency/file_watch.h"
#include "common/concurrency/stop_signal.h"
#include "common/config/flag_set.h"
#include "common/http/health.h"
#include "common/http/routes.h"
#include "common/http/server.h"
#include "common/http/tls.h"
#include "common/rpc/control_keys.h"
#include "common/rpc/zmq_channel.h"
#include "common/telemetry/log.h"
#include "common/telemetry/log_level.h"
#include "common/telemetry/metrics.h"
#include "common/text/chat_template.h"
#include "common/text/model_files.h"
#include "common/text/tokenizer.h"
#include "services/router/front/access_control.h"
#include "services/router/front/completion_handler.h"
#include "services/router/front/rate_limiter.h"
#include "services/router/membership/drain_request.h"
#include "services/router/membership/node_registry.h"
#include "services/router/membership/nodes_page.h"
#include "services/router/membership/resolver.h"
#include "services/router/placement/make_policy.h"
#include "services/router/router_config.h"
#include "services/router/session/cluster_service.h"

namespace lynx::router {
namespace {

// How often files that may change are looked at.
constexpr absl::Duration kFileWatchInterval = absl::Seconds(1);

std::string Printable(const ListenAddress& address, uint16_t port) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return absl::StrCat(v6 ? "[" : "", address.host, v6 ? "]:" : ":", port);
}

// What the model folder says about requests.
struct Model {
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<text::ChatTemplate> chat_template;  // Null: the model has none.
  ModelInfo info;
  RequestLimits limits;
};

absl::StatusOr<Model> LoadModel(const RouterConfig& config) {
  Model model;
  LYNX_ASSIGN_OR_RETURN(model.info, LoadModelInfo(config.model));
  LYNX_ASSIGN_OR_RETURN(model.tokenizer, text::Tokenizer::Load(config.model));
  if (absl::Status fits = text::CheckVocabulary(*model.tokenizer, model.info.vocab_size);
      !fits.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(config.model, "/", std::string(fits.message())));
  }
  auto chat_template = text::ChatTemplate::Load(config.model);
  if (chat_template.ok()) {
    model.chat_template = *std::move(chat_template);
    if (absl::Status fails = model.chat_template->CheckRenders(); !fails.ok()) {
      telemetry::LogWarning("the chat template fails on every conversation tried",
                            {{"reason", std::string(fails.message())}});
    }
  } else if (!absl::IsNotFound(chat_template.status())) {
    return chat_template.status();
  }
  RequestLimits& limits = model.limits;
  // More than the queue can ever take at once: waiting would not help.
  limits.max_choices = std::min(limits.max_choices, config.max_inflight + config.max_queued);
  limits.model_names = config.served_model_names;
  limits.vocab_size = model.info.vocab_size;
  limits.experts = model.info.experts;
  limits.experts_per_token = model.info.experts_per_token;
  limits.policies = config.lynx_allow;
  limits.max_context_tokens =
      config.max_context_tokens == 0
          ? model.info.max_context_tokens
          : std::min(config.max_context_tokens, model.info.max_context_tokens);
  limits.tool_arguments_as_text =
      model.chat_template != nullptr && model.chat_template->TakesArgumentsAsText();
  limits.reasoning_effort =
      model.chat_template != nullptr && model.chat_template->HeedsReasoningEffort();
  LYNX_ASSIGN_OR_RETURN(limits.end_token_ids,
                        text::LoadStopTokenIds(config.model, *model.tokenizer));
  LYNX_ASSIGN_OR_RETURN(const text::GenerationDefaults defaults,
                        text::LoadGenerationDefaults(config.model));
  ApplyDefaults(defaults, limits);
  return model;
}

NodeRegistry::Options RegistryOptions(const RouterConfig& config, const ModelInfo& info,
                                      Incarnation incarnation) {
  NodeRegistry::Options options;
  options.prefill = config.prefill;
  options.decode = config.decode;
  options.incarnation = incarnation;
  options.heartbeat_interval = config.heartbeat_interval;
  options.resolve_interval = config.resolve_interval;
  options.table.suspect_after = config.suspect_after;
  options.table.gone_after = config.gone_after;
  options.table.reconnect_grace = config.reconnect_grace;
  options.table.model_name = config.served_model_names.front();
  options.table.vocab_size = info.vocab_size;
  options.table.experts = info.experts;
  options.table.experts_per_token = info.experts_per_token;
  options.jitter_seed = incarnation;
  return options;
}

absl::Duration SloLimit(absl::Duration option) {
  return option == absl::ZeroDuration() ? absl::InfiniteDuration() : option;
}

ClusterService::Options ServiceOptions(const RouterConfig& config) {
  ClusterService::Options options;
  options.session.max_retries = config.max_retries;
  options.session.queue_timeout = config.queue_timeout;
  options.session.resume_timeout = config.resume_timeout;
  options.retries.per_request = config.retry_ratio;
  options.retries.burst = config.retry_burst;
  options.breakers.failures = config.breaker_failures;
  options.breakers.open = config.breaker_open;
  options.breakers.most_open = std::max(options.breakers.most_open, config.breaker_open);
  options.session.reserve_timeout = config.reserve_timeout;
  options.session.first_token_timeout = config.first_token_timeout;
  options.session.token_timeout = config.token_timeout;
  options.session.handoff_timeout = config.handoff_timeout;
  options.session.move_timeout = config.move_timeout;
  options.session.gap_timeout = config.gap_timeout;
  options.admission.max_in_flight = static_cast<size_t>(config.max_inflight);
  options.admission.max_queued = static_cast<size_t>(config.max_queued);
  options.grant_lease = config.grant_lease;
  options.max_moves = config.max_moves;
  options.max_duration = config.request_timeout;
  options.slo_ttft = SloLimit(config.slo_ttft);
  options.slo_tpot = SloLimit(config.slo_tpot);
  options.refuse_late = config.refuse_late;
  if (config.refuse_late) {
    options.session.queue_timeout = std::min(config.queue_timeout, config.slo_ttft);
  }
  return options;
}

http::HttpResponse DrainNode(const http::HttpRequest& request, NodeRegistry& nodes) {
  const auto answer = [](int status, std::string body) {
    return http::HttpResponse{.status = status,
                              .headers = {{"Content-Type", http::kJsonContentType}},
                              .body = std::move(body)};
  };
  const auto refuse = [&](int status, const absl::Status& why) {
    return answer(status, http::PlainErrorBody(status, std::string(why.message())));
  };
  // Not what a page of somebody else's can have a browser send.
  if (!request.Header("content-type").value_or("").starts_with(http::kJsonContentType)) {
    return refuse(415, absl::InvalidArgumentError("the content type has to be application/json"));
  }
  const absl::StatusOr<std::string> node = ParseDrainRequest(request.body);
  if (!node.ok()) return refuse(400, node.status());
  const absl::Status asked = nodes.Drain(*node);
  if (!asked.ok()) return refuse(absl::IsUnavailable(asked) ? 503 : 409, asked);
  telemetry::LogInfo("a node was asked to drain", {{"node", *node}, {"client", request.peer}});
  return answer(202, R"({"status":"asked"})");
}

absl::StatusOr<std::unique_ptr<http::HttpServer>> Listen(
    const RouterConfig& config, const char* name, const ListenAddress& address,
    telemetry::Registry& metrics, http::RequestHandler& handler,
    std::shared_ptr<const http::TlsContext> tls) {
  http::ServerOptions options;
  options.name = name;
  options.address = address.host;
  options.port = address.port;
  options.max_connections = static_cast<size_t>(config.max_connections);
  options.max_connections_per_client = static_cast<size_t>(config.max_connections_per_client);
  options.max_body_bytes = static_cast<uint64_t>(config.max_body_bytes);
  options.tls = std::move(tls);
  options.registry = &metrics;
  return http::HttpServer::Create(options, handler);
}

// Streams whose tokens came in one message go out together.
class BatchedWrites final : public NodeRegistry::Listener {
 public:
  explicit BatchedWrites(NodeRegistry::Listener& to) : to_(to) {}

  void OnNodeGone(NodeId id, const std::string& why) override { to_.OnNodeGone(id, why); }
  void OnNodeStatus(NodeId id) override { to_.OnNodeStatus(id); }
  void OnNodeMessage(NodeId id, proto::Envelope& envelope) override {
    const http::WriteBatch batch;
    to_.OnNodeMessage(id, envelope);
  }
  void ListSequences(NodeId id, proto::Ping& ping) override { to_.ListSequences(id, ping); }

 private:
  NodeRegistry::Listener& to_;
};

// The files that decide who may call and what the router shows for itself. What was in force stays
// so when one of them is not fit: no slip of the pen locks everybody out.
class SecretFiles {
 public:
  SecretFiles(const RouterConfig& config, AccessControl& access, telemetry::Registry& metrics)
      : api_keys_(config.api_keys),
        tls_cert_(config.tls_cert),
        tls_key_(config.tls_key),
        access_(access),
        expiry_(metrics.AddGauge("lynx_router_tls_certificate_expiry_timestamp_seconds",
                                 "When the certificate in use ends; 0: no TLS")),
        loaded_(Loads(metrics, "ok")),
        load_failed_(Loads(metrics, "failed")) {}

  // At the start nothing else would do.
  absl::Status Load() {
    if (!api_keys_.empty()) LYNX_RETURN_IF_ERROR(access_.Load(api_keys_));
    return tls_cert_.empty() ? absl::OkStatus() : LoadTls();
  }

  // `server` serves with what Load() found.
  void Reload(http::HttpServer& server) {
    if (!api_keys_.empty()) Report("API keys", access_.Load(api_keys_));
    if (tls_cert_.empty()) return;
    const absl::Status loaded = LoadTls();
    if (loaded.ok()) server.SetTls(tls_);
    Report("certificate", loaded);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names = {api_keys_, tls_cert_, tls_key_};
    std::erase(names, "");
    return names;
  }
  const std::shared_ptr<const http::TlsContext>& tls() const { return tls_; }

 private:
  static telemetry::Counter Loads(telemetry::Registry& metrics, const char* result) {
    return metrics.AddCounter("lynx_router_tls_loads_total",
                              "Readings of certificate and key; after a failed one those before "
                              "stay in use",
                              {{"result", result}});
  }

  absl::Status LoadTls() {
    auto tls = http::TlsContext::Load(tls_cert_, tls_key_);
    (tls.ok() ? loaded_ : load_failed_).Increment();
    if (!tls.ok()) return tls.status();
    tls_ = *std::move(tls);
    expiry_.Set(static_cast<double>(absl::ToUnixSeconds(tls_->expires())));
    return absl::OkStatus();
  }

  static void Report(const char* what, const absl::Status& loaded) {
    if (loaded.ok()) {
      telemetry::LogInfo("loaded anew", {{"what", what}});
    } else {
      telemetry::LogError("not loaded, what was before stays in force",
                          {{"what", what}, {"status", loaded.ToString()}});
    }
  }

  const std::string api_keys_;
  const std::string tls_cert_;
  const std::string tls_key_;
  AccessControl& access_;
  std::shared_ptr<const http::TlsContext> tls_;  // Null: none yet.
  telemetry::Gauge expiry_;
  telemetry::Counter loaded_;
  telemetry::Counter load_failed_;
};

// Runs something on the loop again and again, until destroyed on the loop or with it stopped.
class Repeated {
 public:
  Repeated(EventLoop& loop, absl::Duration interval, std::function<void()> task)
      : loop_(loop), interval_(interval), task_(std::move(task)) {
    Run();
  }
  ~Repeated() { loop_.CancelTimer(timer_); }

 private:
  void Run() {
    task_();
    timer_ = loop_.RunAfter(interval_, [this] { Run(); });
  }

  EventLoop& loop_;
  const absl::Duration interval_;
  const std::function<void()> task_;
  TimerId timer_ = 0;
};

// Waits on the main thread for something that happens on the loop.
class Event {
 public:
  void Set() {
    MutexLock lock(mu_);
    set_ = true;
    changed_.NotifyAll();
  }
  // False when `timeout` passed first.
  bool WaitFor(absl::Duration timeout) {
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
    MutexLock lock(mu_);
    while (!set_) {
      if (!changed_.WaitUntil(mu_, deadline)) return set_;
    }
    return true;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool set_ LYNX_GUARDED_BY(mu_) = false;
};

absl::Status Run(const RouterConfig& config, Incarnation incarnation, StopSignal& stop) {
  LYNX_ASSIGN_OR_RETURN(const ListenAddress listen, ParseListenAddress("listen", config.listen));
  std::optional<ListenAddress> admin_listen;
  if (!config.admin_listen.empty()) {
    LYNX_ASSIGN_OR_RETURN(admin_listen, ParseListenAddress("admin-listen", config.admin_listen));
  }
  LYNX_ASSIGN_OR_RETURN(Model model, LoadModel(config));

  // In this order, so that each outlives what borrows it; the loop's own part is destroyed on the
  // loop, at the end.
  telemetry::Registry metrics;
  telemetry::AddBuildInfo(metrics, std::string(config::Version()), "-");
  ThreadEventLoop loop;
  http::HealthPages health(metrics, loop.clock());
  health.SetNotReady("cluster", "not connected to any node yet");

  LYNX_ASSIGN_OR_RETURN(const auto control_keys,
                        rpc::ControlKeys::Load(config.control_key, config.control_peers, metrics));
  LYNX_ASSIGN_OR_RETURN(auto channel,
                        rpc::ZmqChannel::Create({.curve = control_keys->keys()}, loop, metrics));
  SystemResolver resolver(loop);
  LYNX_ASSIGN_OR_RETURN(auto nodes,
                        NodeRegistry::Create(RegistryOptions(config, model.info, incarnation), loop,
                                             *channel, resolver, metrics));
  auto service = std::make_unique<ClusterService>(ServiceOptions(config), loop, *nodes,
                                                  MakePlacement(config.placement, incarnation),
                                                  metrics, &RandomId);

  BatchedWrites listener(*service);

  RateLimiter limiter;
  FrontOptions front;
  front.limiter = &limiter;
  front.limits = model.limits;
  front.system_fingerprint = absl::StrCat("lynx-", config.served_model_names.front());
  front.heartbeat_interval = config.stream_heartbeat;
  front.request_timeout = config.request_timeout;
  front.slo = {.ttft = SloLimit(config.slo_ttft), .tpot = SloLimit(config.slo_tpot)};
  CompletionHandler handler(std::move(front), *model.tokenizer, model.chat_template.get(), *service,
                            loop, metrics);
  http::Routes routes(&handler);
  AccessControl access(routes, limiter, loop.clock(), metrics);
  SecretFiles secrets(config, access, metrics);
  http::Routes admin_routes;
  health.AddTo(routes);
  health.AddTo(admin_routes);
  // Not for clients: where the nodes are is the operator's.
  http::Routes& operators = config.admin_listen.empty() ? routes : admin_routes;
  if (config.metrics_compat == "vllm") {
    health.AddVllmMetricsTo(operators, config.served_model_names.front());
  }
  operators.Add("GET", "/nodes",
                [&loop, registry = nodes.get()](http::HttpRequest,
                                                std::shared_ptr<http::ResponseWriter> writer) {
                  loop.Post([&loop, registry, writer = std::move(writer)] {
                    writer
                        ->Send({.status = 200,
                                .headers = {{"Content-Type", http::kJsonContentType}},
                                .body = NodesPage(registry->nodes(), loop.Now())})
                        .IgnoreError();
                  });
                });

  if (config.allow_drain) {
    (config.admin_listen.empty() ? routes : admin_routes)
        .Add("POST", "/nodes/drain",
             [&loop, registry = nodes.get()](http::HttpRequest request,
                                             std::shared_ptr<http::ResponseWriter> writer) {
               loop.Post([registry, request = std::move(request), writer = std::move(writer)] {
                 writer->Send(DrainNode(request, *registry)).IgnoreError();
               });
             });
  }

  auto watch_files = std::make_unique<FileWatch>(secrets.names(), kFileWatchInterval);
  LYNX_RETURN_IF_ERROR(secrets.Load());
  http::RequestHandler& front_door =
      config.api_keys.empty() ? static_cast<http::RequestHandler&>(routes) : access;
  LYNX_ASSIGN_OR_RETURN(auto server,
                        Listen(config, "api", listen, metrics, front_door, secrets.tls()));
  std::unique_ptr<http::HttpServer> admin;
  if (admin_listen.has_value()) {
    LYNX_ASSIGN_OR_RETURN(admin,
                          Listen(config, "admin", *admin_listen, metrics, admin_routes, nullptr));
  }

  const std::string address = Printable(listen, server->port());
  if (!config.announce.empty()) {
    LYNX_RETURN_IF_ERROR(WriteAnnouncement(config.announce, {.http = address, .control = ""}));
  }

  // From here on nothing fails: what runs on the loop is taken down on the loop.
  std::unique_ptr<Repeated> readiness;
  loop.RunAndWait([&] {
    nodes->Start(listener);
    readiness = std::make_unique<Repeated>(loop, absl::Milliseconds(50), [&] {
      const ClusterView view = service->View();
      if (view.ready) {
        health.ClearNotReady("cluster");
      } else {
        health.SetNotReady("cluster", view.reason);
      }
    });
  });
  health.WatchLoop("router", loop, absl::Seconds(10));
  health.SetStarted();
  if (!secrets.names().empty()) watch_files->Start([&] { secrets.Reload(*server); });
  std::unique_ptr<FileWatch> watch_control = control_keys->Watch(*channel);
  stop.On(SIGHUP, [&] {
    if (!secrets.names().empty()) watch_files->Nudge();
    if (watch_control != nullptr) watch_control->Nudge();
  });
  stop.Arm();
  server->Start();
  if (admin != nullptr) admin->Start();
  telemetry::LogInfo("listening", {{"address", address},
                                   {"model", config.served_model_names.front()},
                                   {"prefill", absl::StrJoin(config.prefill, ",")},
                                   {"decode", absl::StrJoin(config.decode, ",")}});

  stop.Wait();
  stop.On(SIGHUP, nullptr);
  watch_files.reset();
  watch_control.reset();
  // The listener stays open while streams finish: whoever still comes hears 503, not a refused
  // connection, and probes see why.
  telemetry::LogInfo("draining", {{"timeout", absl::FormatDuration(config.drain_timeout)}});
  health.SetNotReady("draining", "this router is shutting down");
  Event idle;
  std::unique_ptr<Repeated> watch;
  loop.RunAndWait([&] {
    service->Drain();
    watch = std::make_unique<Repeated>(loop, absl::Milliseconds(20), [&] {
      if ((handler.sessions() == 0 && service->size() == 0) || stop.hurried()) idle.Set();
    });
  });
  const bool finished = idle.WaitFor(config.drain_timeout) && !stop.hurried();
  loop.RunAndWait([&] {
    watch.reset();
    service->Shutdown();
  });
  server->Stop(absl::Seconds(2));
  if (admin != nullptr) admin->Stop(absl::ZeroDuration());
  loop.RunAndWait([&] {
    readiness.reset();
    service->Shutdown();
    nodes.reset();
    channel.reset();
  });
  loop.Stop();
  telemetry::LogInfo("stopped", {{"drained", finished ? "true" : "false"}});
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  StopSignal stop([](const char* why) { telemetry::LogWarning(why); });
  RouterConfig config;
  config::FlagSet flags("lynx-router",
                        "Takes OpenAI-style requests and runs them on prefill and decode nodes.");
  AddRouterFlags(flags, config);
  auto outcome = flags.Parse(argc, argv);
  if (!outcome.ok()) {
    std::cerr << "lynx-router: " << outcome.status().message() << "\n";
    return 2;
  }
  if (*outcome == config::ParseOutcome::kPrinted) return 0;
  if (absl::Status complete = CompleteRouterConfig(config); !complete.ok()) {
    std::cerr << "lynx-router: " << complete.message() << "\n";
    return 2;
  }
  if (flags.AnswerConfigActions()) return 0;
  const Incarnation incarnation = RandomId();
  const telemetry::LogLevel log_level = telemetry::LogLevelOf(config.log_level);
  telemetry::ConfigureLog(
      {.min_level = log_level, .component = "router", .incarnation = HexId(incarnation)});
  stop.On(SIGUSR1, [] { telemetry::SetLogLevel(telemetry::LogLevel::kDebug); });
  stop.On(SIGUSR2, [log_level] { telemetry::SetLogLevel(log_level); });
  telemetry::LogInfo("starting", {{"options", flags.Describe()}});
  if (absl::Status status = Run(config, incarnation, stop); !status.ok()) {
    telemetry::LogError("cannot serve", {{"status", status.ToString()}});
    std::cerr << "lynx-router: " << status.message() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace lynx::router

int main(int argc, char** argv) { return lynx::router::Main(argc, argv); }
