#include "services/cli/bench/router/router_bench.h"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/announcement.h"
#include "common/base/child_process.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/config/flag_set.h"
#include "common/http/client.h"
#include "common/model/model_spec.h"
#include "common/text/tokenizer.h"
#include "services/cli/bench/quantile.h"
#include "services/cli/bench/router/router_report.h"
#include "services/cli/bench/router/stepper.h"
#include "services/cli/bench/router/stream_reader.h"
#include "services/cli/bench/router/stub_nodes.h"
#include "services/cli/bench/run_mode.h"
#include "services/cli/scratch_directory.h"

namespace lynx::cli {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(30);
constexpr absl::Duration kOpenTimeout = absl::Seconds(60);
constexpr absl::Duration kStopTimeout = absl::Seconds(10);
// Streams get going before they are looked at.
constexpr absl::Duration kWarmUp = absl::Seconds(1);
constexpr size_t kWords = 64;
constexpr rlim_t kOtherFiles = 128;  // Beside a descriptor for each stream.

struct RouterBenchConfig {
  std::string mode;
  std::string model = "models/lynx-tiny-moe";
  int32_t streams = 5000;
  double rate = 5;
  int32_t batch = 64;
  absl::Duration window = absl::Seconds(3);
  int32_t rounds = 3;
  bool json = false;

  absl::Duration step() const { return absl::Seconds(1 / rate); }
  // Of a stream, and somewhat more than it will get.
  int32_t tokens() const {
    const double seconds = rounds * absl::ToDoubleSeconds(window + 2 * kWarmUp);
    return 16 + static_cast<int32_t>(std::ceil(seconds * rate * 1.2));
  }
};

// Both this process, which has two connections a stream, and the router inherit the limit.
absl::Status RaiseFileLimit(int32_t streams) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t need = 2 * static_cast<rlim_t>(streams) + kOtherFiles;
  if (limit.rlim_cur >= need) return absl::OkStatus();
  limit.rlim_cur = std::min(limit.rlim_max, need);
  if (limit.rlim_cur < need || setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--streams: ", streams, " take ", need,
                                                   " file descriptors, this process may have ",
                                                   limit.rlim_max));
  }
  return absl::OkStatus();
}

// Tokens that are a few plain letters, so that each is a piece of text of its own.
std::vector<TokenId> PlainWords(const text::Tokenizer& tokenizer) {
  std::vector<TokenId> words;
  for (TokenId id = 0; id < tokenizer.vocab_size() && words.size() < kWords; ++id) {
    if (!tokenizer.IsValidId(id) || tokenizer.IsSpecial(id)) continue;
    const std::string bytes = tokenizer.TokenBytes(id);
    const bool plain = std::all_of(bytes.begin(), bytes.end(),
                                   [](char c) { return c == ' ' || (c >= 'a' && c <= 'z'); });
    if (plain && bytes.size() >= 3) words.push_back(id);
  }
  return words;
}

absl::StatusOr<int> AwaitPort(ChildProcess& child, const std::string& announce) {
  const absl::Time deadline = SteadyClock::Instance().Now() + kStartTimeout;
  for (;;) {
    const absl::StatusOr<Announcement> announced = ReadAnnouncement(announce);
    int port = 0;
    if (announced.ok() &&
        absl::SimpleAtoi(announced->http.substr(announced->http.rfind(':') + 1), &port)) {
      return port;
    }
    if (!announced.ok() && !absl::IsNotFound(announced.status())) return announced.status();
    if (const auto ended = child.Ended()) {
      return absl::UnavailableError(absl::StrCat(child.name(), " ended: ", *ended));
    }
    if (SteadyClock::Instance().Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(child.name(), " did not start in time"));
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
}

// A child that ends by itself when this is destroyed.
struct Server {
  ChildProcess process;
  int port = 0;

  explicit Server(ChildProcess child) : process(std::move(child)) {}
  ~Server() {
    process.Terminate();
    process.Stop(kStopTimeout);
  }
  double CpuSeconds() const {
    clockid_t clock = 0;
    timespec used = {};
    if (clock_getcpuclockid(process.pid(), &clock) != 0 || clock_gettime(clock, &used) != 0) {
      return 0;
    }
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
  }
};

absl::StatusOr<std::unique_ptr<Server>> Launch(const std::string& name,
                                               std::vector<std::string> argv,
                                               const std::string& scratch) {
  const std::string announce = absl::StrCat(scratch, "/", name);
  argv.insert(argv.end(), {"--announce", announce});
  LYNX_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(name, argv));
  auto server = std::make_unique<Server>(std::move(child));
  LYNX_ASSIGN_OR_RETURN(server->port, AwaitPort(server->process, announce));
  return server;
}

std::string CompletionRequest(const std::string& model, int32_t stream, int32_t tokens,
                              TokenId word) {
  const std::string body = absl::StrFormat(
      R"({"model":"%s","prompt":[%d,%d,%d,%d],"stream":true,"max_tokens":%d,"ignore_eos":true,"seed":%d})",
      model, word, word, word, word, tokens, stream);
  return absl::StrFormat(
      "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
      "Content-Length: %d\r\n\r\n%s",
      body.size(), body);
}

// Sums of windows, and what becomes of them.
class Figures {
 public:
  void Add(StreamReader::Window window, double seconds, double cpu_seconds) {
    figures_.tokens += window.tokens;
    figures_.seconds += seconds;
    figures_.cpu_seconds += cpu_seconds;
    bytes_ += window.bytes;
    latency_us_.insert(latency_us_.end(), window.latency_us.begin(), window.latency_us.end());
  }
  double bytes_per_token() const {
    return static_cast<double>(bytes_) / static_cast<double>(std::max<int64_t>(1, figures_.tokens));
  }
  // Unavailable: nothing came.
  absl::StatusOr<StreamFigures> Get() const {
    if (latency_us_.empty()) return absl::UnavailableError("no token came while looking");
    StreamFigures figures = figures_;
    figures.bytes_per_token = bytes_per_token();
    figures.latency_ms_p50 = Quantile(latency_us_, 0.5) / 1000;
    figures.latency_ms_p99 = Quantile(latency_us_, 0.99) / 1000;
    return figures;
  }

 private:
  StreamFigures figures_;
  int64_t bytes_ = 0;
  std::vector<double> latency_us_;
};

// The router between stub nodes and the clients' reader.
class RouterSide {
 public:
  static absl::StatusOr<std::unique_ptr<RouterSide>> Start(const RouterBenchConfig& config,
                                                           const std::string& scratch) {
    LYNX_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::LoadModelSpec(config.model));
    LYNX_ASSIGN_OR_RETURN(const auto tokenizer, text::Tokenizer::Load(config.model));
    std::vector<TokenId> words = PlainWords(*tokenizer);
    if (words.empty()) {
      return absl::InvalidArgumentError("--model: its vocabulary has no token of plain letters");
    }
    if (config.tokens() + 8 > spec.max_positions) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--window, --rounds and --rate: %d tokens of a stream, the model holds %d",
          config.tokens(), spec.max_positions));
    }
    auto side = std::make_unique<RouterSide>(config);
    side->word_ = words.front();
    LYNX_ASSIGN_OR_RETURN(side->nodes_, StubNodes::Start({.model_name = "bench",
                                                          .spec = spec,
                                                          .streams = config.streams,
                                                          .batch = config.batch,
                                                          .step = config.step(),
                                                          .words = std::move(words)},
                                                         side->times_));
    const std::string streams = absl::StrCat(config.streams);
    LYNX_ASSIGN_OR_RETURN(
        side->server_,
        Launch(
            "router",
            {ProgramDirectory() + "/lynx-router", "--model", config.model, "--served-model-name",
             "bench", "--listen", "127.0.0.1:0", "--prefill", side->nodes_->prefill(), "--decode",
             side->nodes_->decode(), "--log-level", "warning", "--max-inflight", streams,
             "--max-queued", streams, "--max-connections", absl::StrCat(config.streams + 16)},
            scratch));
    LYNX_RETURN_IF_ERROR(side->AwaitReady());
    LYNX_ASSIGN_OR_RETURN(side->reader_, StreamReader::Create(config.streams, true, side->times_));
    return side;
  }

  explicit RouterSide(const RouterBenchConfig& config)
      : config_(config), times_(config.streams, config.tokens()) {}

  // Every stream has its first token then.
  absl::Status OpenStreams() {
    for (int32_t stream = 0; stream < config_.streams; ++stream) {
      LYNX_RETURN_IF_ERROR(reader_->Open(
          stream, server_->port, CompletionRequest("bench", stream, config_.tokens(), word_)));
    }
    return Await("the streams' first tokens", [&] { return reader_->started(); });
  }

  void Resume() { nodes_->Resume(); }
  void Pause() { nodes_->Pause(); }
  StreamReader& reader() { return *reader_; }
  const Server& server() const { return *server_; }

  absl::Status FinishStreams() {
    nodes_->Finish();
    return Await("the streams' ends", [&] { return reader_->done(); });
  }

 private:
  absl::Status AwaitReady() {
    const std::string url = absl::StrCat("http://127.0.0.1:", server_->port, "/readyz");
    const absl::Time deadline = SteadyClock::Instance().Now() + kStartTimeout;
    for (;;) {
      const auto response = http::HttpClient().Get(url, {}, absl::Seconds(5));
      if (response.ok() && response->status == 200) return absl::OkStatus();
      if (const auto ended = server_->process.Ended()) {
        return absl::UnavailableError(absl::StrCat("the router ended: ", *ended));
      }
      if (SteadyClock::Instance().Now() >= deadline) {
        return absl::DeadlineExceededError("the router did not become ready in time");
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
  }

  template <typename Count>
  absl::Status Await(const char* what, Count count) {
    const absl::Time deadline = SteadyClock::Instance().Now() + kOpenTimeout;
    while (count() < config_.streams) {
      LYNX_RETURN_IF_ERROR(reader_->status());
      if (SteadyClock::Instance().Now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat(what, ": ", count(), " of ", config_.streams, " came in time"));
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
    return reader_->status();
  }

  const RouterBenchConfig& config_;
  TokenTimes times_;
  TokenId word_ = 0;
  std::unique_ptr<StubNodes> nodes_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<StreamReader> reader_;
};

// The echo between a sender that keeps the nodes' time and the clients' reader.
class EchoSide {
 public:
  static absl::StatusOr<std::unique_ptr<EchoSide>> Start(const RouterBenchConfig& config,
                                                         const std::string& scratch) {
    auto side = std::make_unique<EchoSide>(config);
    LYNX_ASSIGN_OR_RETURN(
        side->server_,
        Launch("echo", {ProgramDirectory() + "/lynx", "bench", "echo-server"}, scratch));
    LYNX_ASSIGN_OR_RETURN(side->reader_, StreamReader::Create(config.streams, false, side->times_));
    for (int32_t stream = 0; stream < config.streams; ++stream) {
      LYNX_RETURN_IF_ERROR(side->reader_->Open(stream, side->server_->port, ""));
    }
    return side;
  }

  explicit EchoSide(const RouterBenchConfig& config)
      : config_(config),
        times_(config.streams, config.tokens()),
        sent_(static_cast<size_t>(config.streams)),
        stepper_(loop_, (config.streams + config.batch - 1) / config.batch, config.step(),
                 [this](int32_t group) { Step(group); }) {}
  ~EchoSide() { loop_.Stop(); }

  void Resume(size_t chunk_bytes) {
    constexpr std::string_view kHead = "data: {";
    loop_.RunAndWait([&] {
      chunk_.assign(std::max(chunk_bytes, kHead.size()), '.');
      chunk_.replace(0, kHead.size(), kHead);
      stepper_.Start();
    });
  }
  void Pause() {
    loop_.RunAndWait([&] { stepper_.Stop(); });
  }
  StreamReader& reader() { return *reader_; }
  const Server& server() const { return *server_; }

 private:
  void Step(int32_t group) {
    const int32_t first = group * config_.batch;
    for (int32_t i = first; i < std::min(first + config_.batch, config_.streams); ++i) {
      int32_t& sent = sent_[static_cast<size_t>(i)];
      if (sent >= times_.tokens()) continue;
      times_.at(i, sent++) = MonotonicNs();
      reader_->Send(i, chunk_);
    }
  }

  const RouterBenchConfig& config_;
  TokenTimes times_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<StreamReader> reader_;
  std::string chunk_;
  std::vector<int32_t> sent_;  // Of each stream.
  ThreadEventLoop loop_;
  Stepper stepper_;
};

// Looks at one window of a side that is running.
template <typename Side>
absl::Status MeasureWindow(Side& side, absl::Duration window, Figures& figures) {
  absl::SleepFor(kWarmUp);
  side.reader().Watch();
  const double cpu = side.server().CpuSeconds();
  const absl::Time began = SteadyClock::Instance().Now();
  absl::SleepFor(window);
  const double cpu_seconds = side.server().CpuSeconds() - cpu;
  const absl::Duration took = SteadyClock::Instance().Now() - began;
  StreamReader::Window seen = side.reader().Take();
  side.Pause();
  figures.Add(std::move(seen), absl::ToDoubleSeconds(took), cpu_seconds);
  return side.reader().status();
}

absl::Status Run(const RouterBenchConfig& config, std::ostream& out) {
  LYNX_RETURN_IF_ERROR(RaiseFileLimit(config.streams));
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("no folder for temporary files: ", error.message(), " (TMPDIR)"));
  }
  LYNX_ASSIGN_OR_RETURN(const ScratchDirectory scratch,
                        ScratchDirectory::Create(temporary, "lynx-bench"));
  LYNX_ASSIGN_OR_RETURN(const auto router, RouterSide::Start(config, scratch.path().string()));
  LYNX_ASSIGN_OR_RETURN(const auto echo, EchoSide::Start(config, scratch.path().string()));
  LYNX_RETURN_IF_ERROR(router->OpenStreams());
  Figures routed;
  Figures echoed;
  for (int32_t round = 0; round < config.rounds; ++round) {
    router->Resume();
    LYNX_RETURN_IF_ERROR(MeasureWindow(*router, config.window, routed));
    echo->Resume(static_cast<size_t>(std::lround(routed.bytes_per_token())));
    LYNX_RETURN_IF_ERROR(MeasureWindow(*echo, config.window, echoed));
  }
  LYNX_RETURN_IF_ERROR(router->FinishStreams());
  RouterReport report{.streams = config.streams,
                      .rate = config.rate,
                      .batch = config.batch,
                      .notes = {},
                      .router = {},
                      .echo = {}};
  LYNX_ASSIGN_OR_RETURN(report.router, routed.Get());
  LYNX_ASSIGN_OR_RETURN(report.echo, echoed.Get());
  const double asked = config.streams * config.rate;
  for (const auto& [name, got] :
       {std::pair<const char*, double>("router", report.router.tokens_per_s()),
        {"echo", report.echo.tokens_per_s()}}) {
    if (got < 0.95 * asked) {
      report.notes.push_back(
          absl::StrFormat("%s: %.0f of %.0f tokens/s came: this machine is too slow for the load",
                          name, got, asked));
    }
  }
  config.json ? PrintRouterJson(report, out) : PrintRouterTable(report, out);
  return absl::OkStatus();
}

}  // namespace

int RunRouterBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  RouterBenchConfig config;
  config::FlagSet flags("lynx bench router",
                        "Streams made-up tokens of stub nodes through a router process to clients, "
                        "and the same chunks through a bare echo.");
  flags.SetOutput(&out);
  flags.AddPositional("mode", &config.mode, "router");
  flags.AddString("model", &config.model, "Hugging Face folder whose tokenizer the router uses");
  flags.AddInt("streams", &config.streams, {1, 100000}, "Streams open at once");
  flags.AddDouble("rate", &config.rate, {0.1, 1000}, "Tokens a second of each stream");
  flags.AddInt("batch", &config.batch, {1, 100000}, "Streams of one decode step");
  flags.AddDuration("window", &config.window, {absl::Milliseconds(100), absl::Minutes(10)},
                    "Time of one measurement");
  flags.AddInt("rounds", &config.rounds, {1, 1000}, "Rounds of router and echo in turn");
  flags.AddBool("json", &config.json, "Print JSON");

  return RunMode(flags, argc, argv, err, [&] {
    LogWarningsOnly();
    return Run(config, out);
  });
}

}  // namespace lynx::cli
