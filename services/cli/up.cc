#include "services/cli/up.h"

#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/announcement.h"
#include "common/base/child_process.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/config/flag_set.h"
#include "common/http/client.h"
#include "kernels/core/cpu_limit.h"
#include "services/cli/keygen.h"
#include "services/cli/scratch_directory.h"

namespace lynx::cli {
namespace {

struct UpConfig {
  std::string model;
  int32_t prefill = 1;
  int32_t decode = 1;
  int32_t both = 0;
  int32_t prefill_tp = 1;
  int32_t prefill_dp = 1;
  int32_t prefill_ep = 0;
  int32_t decode_tp = 1;
  int32_t decode_dp = 1;
  int32_t decode_ep = 0;
  int32_t decode_ep_spare = 0;
  std::string host = "127.0.0.1";
  int32_t port = 8080;
  int32_t threads = 0;
  std::string compute_dtype = "bf16";
  std::string kv_dtype = "auto";
  std::string lynx_policy = "exact";
  std::vector<std::string> lynx_allow;
  bool curve = false;
  std::string announce;
  absl::Duration start_timeout = absl::Minutes(10);
  absl::Duration stop_timeout = absl::Seconds(60);
};

// That the router will be able to listen there: it starts when the nodes have read their weights.
absl::Status CheckAddress(const std::string& host, int32_t port) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* address = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &address) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--host: '", host, "' is not an IP address"));
  }
  const absl::Cleanup free = [address] { freeaddrinfo(address); };
  const int fd = socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, 0);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Listening, since a socket that is bound with this option does not keep others from binding.
  if (bind(fd, address->ai_addr, address->ai_addrlen) != 0 || listen(fd, 1) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen at ", host, ":", port, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

// Blocks the signals that end the cluster; Next() returns one that came, or nothing.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  std::optional<int> Next(absl::Duration wait) {
    const timespec timeout = absl::ToTimespec(wait);
    const int signal = sigtimedwait(&set_, nullptr, &timeout);
    if (signal > 0) return signal;
    return std::nullopt;
  }

 private:
  sigset_t set_;
};

class LocalCluster {
 public:
  explicit LocalCluster(const UpConfig& config)
      : config_(config), deadline_(SteadyClock::Instance().Now() + config.start_timeout) {}

  // Cancelled: a signal came first.
  absl::Status Start() {
    std::error_code error;
    const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("no folder for temporary files: ", error.message(), " (TMPDIR)"));
    }
    LYNX_ASSIGN_OR_RETURN(auto scratch, ScratchDirectory::Create(temporary, "lynx-up"));
    scratch_.emplace(std::move(scratch));
    if (config_.curve) LYNX_RETURN_IF_ERROR(MakeControlKeys());
    // Nodes that do both take the place of the others.
    const int32_t decode_nodes = config_.both > 0 ? 0 : config_.decode;
    const int32_t prefill_nodes = config_.both > 0 ? 0 : config_.prefill;
    const int32_t prefill_ranks = config_.prefill_tp * config_.prefill_dp;
    const int32_t decode_ranks = config_.decode_tp * config_.decode_dp;
    const int32_t ranks =
        prefill_nodes * prefill_ranks + (decode_nodes + config_.both) * decode_ranks;
    const int32_t cores = kernels::UsableCpus();
    const int32_t threads = config_.threads > 0 ? config_.threads : std::max(1, cores / ranks);
    const std::vector<int32_t> cpus = kernels::AllowedCpus();
    // Cores of its own, where each rank has several: its other threads then find time on them, too.
    // With fewer, or under a quota, threads are better off where there is time.
    const bool own_cores = threads >= 2 && static_cast<size_t>(cores) == cpus.size() &&
                           int64_t{threads} * ranks <= cores;
    std::vector<std::string> names;
    auto next_cpu = cpus.begin();
    for (const auto& [role, count] : {std::pair<std::string, int32_t>("decode", decode_nodes),
                                      std::pair<std::string, int32_t>("both", config_.both),
                                      std::pair<std::string, int32_t>("prefill", prefill_nodes)}) {
      const bool decodes = role != "prefill";
      const int32_t tp = decodes ? config_.decode_tp : config_.prefill_tp;
      const int32_t dp = decodes ? config_.decode_dp : config_.prefill_dp;
      const int32_t ep = decodes ? config_.decode_ep : config_.prefill_ep;
      for (int32_t i = 0; i < count; ++i) {
        const std::string name = absl::StrCat(role, "-", i);
        std::vector<std::string> argv = {
            absl::StrCat(ProgramDirectory(), "/lynx-", decodes ? "decode" : "prefill"),
            "--model",
            config_.model,
            "--control",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--threads",
            absl::StrCat(threads),
            "--tp",
            absl::StrCat(tp),
            "--dp",
            absl::StrCat(dp),
            "--ep",
            absl::StrCat(ep),
            "--compute-dtype",
            config_.compute_dtype,
            "--kv-dtype",
            config_.kv_dtype};
        if (decodes) {
          argv.insert(argv.end(), {"--role", role, "--lynx-policy", config_.lynx_policy,
                                   "--ep-spare", absl::StrCat(config_.decode_ep_spare)});
        }
        if (own_cores) {
          const auto first = next_cpu;
          next_cpu += threads * (decodes ? decode_ranks : prefill_ranks);
          argv.insert(argv.end(), {"--cpus", absl::StrJoin(first, next_cpu, ",")});
        }
        LYNX_RETURN_IF_ERROR(Launch(name, std::move(argv)));
        names.push_back(name);
      }
    }
    std::vector<std::string> prefill;
    std::vector<std::string> decode;
    for (const std::string& name : names) {
      LYNX_ASSIGN_OR_RETURN(const Announcement announced, AwaitAnnouncement(name));
      (name.starts_with("prefill") ? prefill : decode).push_back(announced.control);
      nodes_.push_back({name, announced});
    }
    std::vector<std::string> argv = {absl::StrCat(ProgramDirectory(), "/lynx-router"),
                                     "--model",
                                     config_.model,
                                     "--listen",
                                     absl::StrCat(config_.host, ":", config_.port),
                                     "--decode",
                                     absl::StrJoin(decode, ",")};
    // Also where there are none: LYNX_PREFILL means their number here, and would reach the router.
    argv.push_back(absl::StrCat("--prefill=", absl::StrJoin(prefill, ",")));
    if (!config_.lynx_allow.empty()) {
      argv.insert(argv.end(), {"--lynx-allow", absl::StrJoin(config_.lynx_allow, ",")});
    }
    LYNX_RETURN_IF_ERROR(Launch("router", std::move(argv)));
    LYNX_ASSIGN_OR_RETURN(const Announcement router, AwaitAnnouncement("router"));
    url_ = absl::StrCat("http://", router.http);
    return AwaitReady();
  }

  const std::string& url() const { return url_; }
  const std::vector<std::pair<std::string, Announcement>>& nodes() const { return nodes_; }

  // The first child that has ended, and how.
  std::optional<std::string> EndedChild() {
    for (ChildProcess& child : children_) {
      if (auto ended = child.Ended()) return absl::StrCat(child.name(), ": ", *ended);
    }
    return std::nullopt;
  }

  // Router first: it lets running streams finish while the nodes still serve. True when every
  // process ended by itself with status 0.
  bool Stop() {
    bool clean = true;
    for (auto child = children_.rbegin(); child != children_.rend(); ++child) {
      child->Terminate();
      if (child->name() == "router") clean &= child->Stop(config_.stop_timeout);
    }
    for (ChildProcess& child : children_) clean &= child.Stop(config_.stop_timeout);
    return clean;
  }

 private:
  // A key pair of the router's and one of the nodes', in a folder that nobody else can read.
  absl::Status MakeControlKeys() {
    for (const char* end : {"router", "nodes"}) {
      const std::filesystem::path stem = ControlKeyPath(end);
      std::error_code error;
      std::filesystem::create_directory(stem.parent_path(), error);
      if (error) {
        return absl::UnavailableError(
            absl::StrCat(stem.parent_path().string(), ": ", error.message()));
      }
      LYNX_RETURN_IF_ERROR(WriteCurvePair(stem));
    }
    return absl::OkStatus();
  }
  std::filesystem::path ControlKeyPath(const std::string& end) const {
    return scratch_->path() / absl::StrCat(end, "-keys") / end;
  }

  absl::Status Launch(const std::string& name, std::vector<std::string> argv) {
    if (config_.curve) {
      const bool router = name == "router";
      argv.insert(
          argv.end(),
          {"--control-key", ControlKeyPath(router ? "router" : "nodes").string() + ".key_secret",
           "--control-peers", ControlKeyPath(router ? "nodes" : "router").parent_path().string()});
    }
    argv.insert(argv.end(), {"--announce", AnnouncementPath(name)});
    LYNX_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(name, argv));
    children_.push_back(std::move(child));
    return absl::OkStatus();
  }

  std::string AnnouncementPath(const std::string& name) const {
    return (scratch_->path() / name).string();
  }

  // Waits a little; an error when waiting further makes no sense.
  absl::Status KeepWaiting(const std::string& what) {
    if (signals_.Next(absl::Milliseconds(20))) return absl::CancelledError("interrupted");
    if (auto ended = EndedChild()) {
      return absl::UnavailableError(absl::StrCat(*ended, " while starting; see its log above"));
    }
    if (SteadyClock::Instance().Now() >= deadline_) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, " took longer than ", absl::FormatDuration(config_.start_timeout)));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Announcement> AwaitAnnouncement(const std::string& name) {
    for (;;) {
      auto announced = ReadAnnouncement(AnnouncementPath(name));
      if (announced.ok() || !absl::IsNotFound(announced.status())) return announced;
      LYNX_RETURN_IF_ERROR(KeepWaiting("the start of " + name));
    }
  }

  absl::Status AwaitReady() {
    http::HttpClient client;
    for (;;) {
      const auto response = client.Get(url_ + "/readyz", {}, absl::Seconds(5));
      if (response.ok() && response->status == 200) return absl::OkStatus();
      LYNX_RETURN_IF_ERROR(KeepWaiting("readiness of the router"));
    }
  }

  const UpConfig& config_;
  const absl::Time deadline_;
  StopSignals signals_;
  std::optional<ScratchDirectory> scratch_;  // Of the announcements.
  std::vector<ChildProcess> children_;
  std::vector<std::pair<std::string, Announcement>> nodes_;
  std::string url_;

 public:
  StopSignals& signals() { return signals_; }
};

}  // namespace

int RunUp(int argc, const char* const* argv) {
  UpConfig config;
  config::FlagSet flags(
      "lynx up",
      "Runs a whole cluster on this machine until Ctrl-C or SIGTERM. Other options of its nodes "
      "and router go by variables: LYNX_KV_MEMORY=4GiB lynx up --model DIR");
  flags.AddString("model", &config.model, "Hugging Face model folder (required)");
  flags.AddInt("prefill", &config.prefill, {1, 64}, "prefill nodes");
  flags.AddInt("decode", &config.decode, {1, 64}, "decode nodes");
  flags.AddInt("both", &config.both, {0, 64},
               "nodes that compute prompts and decode, in the place of prefill and decode nodes; "
               "of them decode-tp, decode-dp and decode-ep count");
  flags.AddInt("prefill-tp", &config.prefill_tp, {1, 64}, "ranks of each prefill node");
  flags.AddInt("prefill-dp", &config.prefill_dp, {1, 64},
               "attention replicas of each prefill node, of so many ranks each");
  flags.AddInt("prefill-ep", &config.prefill_ep, {0, 64},
               "parts that a prefill node's experts are dealt out to its ranks in; 0 takes 1, or "
               "with prefill-dp as many as there are ranks");
  flags.AddInt("decode-tp", &config.decode_tp, {1, 64}, "ranks of each decode node");
  flags.AddInt("decode-dp", &config.decode_dp, {1, 64},
               "attention replicas of each decode node, of so many ranks each");
  flags.AddInt("decode-ep", &config.decode_ep, {0, 64},
               "parts that a decode node's experts are dealt out to its ranks in; 0 takes 1, or "
               "with decode-dp as many as there are ranks");
  flags.AddInt("decode-ep-spare", &config.decode_ep_spare, {0, 65536},
               "experts of each layer that a decode node's ranks hold beyond their part");
  flags.AddString("host", &config.host, "address the router listens on");
  flags.AddInt("port", &config.port, {0, 65535}, "port the router listens on; 0 picks a free one");
  flags.AddInt("threads", &config.threads, {0, 1024},
               "compute threads of each rank; 0 shares the machine's cores among them, each rank "
               "having its own where there are enough");
  flags.AddChoice("compute-dtype", &config.compute_dtype, {"f32", "bf16"},
                  "precision of the nodes' arithmetic");
  flags.AddChoice("kv-dtype", &config.kv_dtype, {"auto", "f32", "bf16"},
                  "precision of the KV cache");
  flags.AddString("lynx-policy", &config.lynx_policy,
                  "expert remapping policy of the decode nodes");
  flags.AddStrings("lynx-allow", &config.lynx_allow,
                   "policies that requests may ask for, besides exact");
  flags.AddBool("curve", &config.curve,
                "encrypt the control plane, and ask for keys there; they are made for this run");
  flags.AddString("announce", &config.announce,
                  "file to write the cluster's addresses to once it is ready");
  flags.AddDuration("start-timeout", &config.start_timeout, {absl::Seconds(1)},
                    "give up when the cluster is not ready by then");
  flags.AddDuration("stop-timeout", &config.stop_timeout, {absl::Seconds(1)},
                    "kill a process that has not ended by then");
  const auto outcome = flags.Parse(argc, argv);
  if (!outcome.ok()) {
    std::fprintf(stderr, "lynx up: %s\n", std::string(outcome.status().message()).c_str());
    return 2;
  }
  if (*outcome == config::ParseOutcome::kPrinted) return 0;
  if (config.model.empty()) {
    std::fprintf(stderr, "lynx up: --model is required\n");
    return 2;
  }
  // They would be for all nodes alike, and are for processes that something else starts.
  for (const char* variable :
       {"LYNX_TP", "LYNX_DP", "LYNX_EP", "LYNX_RANK", "LYNX_WORLD", "LYNX_LEADER"}) {
    if (std::getenv(variable) == nullptr) continue;
    std::fprintf(stderr,
                 "lynx up: %s is set, but nodes get their ranks by --prefill-tp, --prefill-dp, "
                 "--prefill-ep, --decode-tp, --decode-dp and --decode-ep\n",
                 variable);
    return 2;
  }
  const UpConfig usual;
  if (config.both > 0 &&
      (config.prefill != usual.prefill || config.decode != usual.decode ||
       config.prefill_tp != usual.prefill_tp || config.prefill_dp != usual.prefill_dp ||
       config.prefill_ep != usual.prefill_ep)) {
    std::fprintf(stderr,
                 "lynx up: --both takes the place of prefill and decode nodes: not with --prefill, "
                 "--decode, --prefill-tp, --prefill-dp or --prefill-ep\n");
    return 2;
  }
  // The nodes and the router call the model by the name of its folder, which "." does not tell.
  std::error_code error;
  if (const auto folder = std::filesystem::absolute(config.model, error); !error) {
    config.model = folder.lexically_normal().string();
  }

  if (const absl::Status free = CheckAddress(config.host, config.port); !free.ok()) {
    std::fprintf(stderr, "lynx up: %s\n", std::string(free.message()).c_str());
    return absl::IsInvalidArgument(free) ? 2 : 1;
  }

  // Other variables are for the nodes too; this file holds keys of this command alone.
  unsetenv("LYNX_CONFIG");
  LocalCluster cluster(config);
  if (const absl::Status started = cluster.Start(); !started.ok()) {
    if (!absl::IsCancelled(started)) {
      std::fprintf(stderr, "lynx up: %s\n", std::string(started.message()).c_str());
    }
    cluster.Stop();
    return absl::IsCancelled(started) ? 0 : 1;
  }
  std::printf("ready at %s\n", cluster.url().c_str());
  for (const auto& [name, node] : cluster.nodes()) {
    std::printf("  %s: metrics at http://%s/metrics\n", name.c_str(), node.http.c_str());
  }
  std::fflush(stdout);
  if (!config.announce.empty()) {
    std::string text = absl::StrCat("router=", cluster.url(), "\n");
    for (const auto& [name, node] : cluster.nodes()) {
      absl::StrAppend(&text, name, "=http://", node.http, "\n");
    }
    if (const absl::Status written = WriteFileAtomically(config.announce, text); !written.ok()) {
      std::fprintf(stderr, "lynx up: %s\n", std::string(written.message()).c_str());
      cluster.Stop();
      return 1;
    }
  }
  for (;;) {
    if (cluster.signals().Next(absl::Milliseconds(200))) break;
    if (auto ended = cluster.EndedChild()) {
      std::fprintf(stderr, "lynx up: %s; stopping the cluster\n", ended->c_str());
      cluster.Stop();
      return 1;
    }
  }
  return cluster.Stop() ? 0 : 1;
}

}  // namespace lynx::cli
