#include "services/cli/loadtest/loadtest.h"

#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/http/client.h"
#include "services/cli/loadtest/limits.h"
#include "services/cli/loadtest/load_driver.h"
#include "services/cli/loadtest/options.h"
#include "services/cli/loadtest/progress.h"
#include "services/cli/loadtest/rate_search.h"
#include "services/cli/loadtest/report.h"
#include "services/cli/loadtest/request_body.h"
#include "services/cli/loadtest/run_result.h"
#include "services/cli/loadtest/server_probe.h"
#include "services/cli/loadtest/socket_transport.h"
#include "services/cli/loadtest/workloads.h"

namespace lynx::loadtest {
namespace {

constexpr absl::Duration kProbeTimeout = absl::Seconds(60);
constexpr absl::Duration kLongestWait = absl::Milliseconds(250);  // So that progress is shown.
constexpr rlim_t kOtherFiles = 64 + SocketTransport::kMaxLingering;

// SIGINT and SIGTERM as something to wait for, while it lives. The second one ends the process.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
    fd_ = signalfd(-1, &signals_, SFD_NONBLOCK | SFD_CLOEXEC);
  }
  ~StopSignals() {
    if (fd_ >= 0) close(fd_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int fd() const { return fd_; }

  bool Came() {
    signalfd_siginfo info;
    if (!came_ && fd_ >= 0 && read(fd_, &info, sizeof(info)) == sizeof(info)) {
      came_ = true;
      pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
    }
    return came_;
  }

 private:
  sigset_t signals_;
  sigset_t before_;
  int fd_ = -1;
  bool came_ = false;
};

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Each stream is a descriptor.
absl::Status AllowOpenFiles(const Options& options) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::OkStatus();
  const rlim_t wanted = static_cast<rlim_t>(options.max_open) + kOtherFiles;
  if (limit.rlim_cur >= wanted) return absl::OkStatus();
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  if (limit.rlim_cur == wanted && setrlimit(RLIMIT_NOFILE, &limit) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", options.closed_loop ? "concurrency" : "max-open", ": ", options.max_open,
                   ", wanted at most ", limit.rlim_max - kOtherFiles,
                   ", as this process may open no more files (ulimit -Hn)"));
}

std::string DescribeLoad(const Options& options) {
  std::string text;
  const ArrivalOptions& arrivals = options.arrivals;
  const char* const process = arrivals.process == ArrivalProcess::kPoisson ? "poisson"
                              : arrivals.process == ArrivalProcess::kGamma ? "gamma"
                                                                           : "fixed";
  if (options.closed_loop) {
    text = absl::StrCat("closed loop, ", options.max_open, " open");
  } else if (options.trace.has_value()) {
    text = absl::StrFormat("replay of a trace (%s), %d requests, speed %g, lengths %g",
                           std::string(TraceFormatName(options.trace->format)),
                           options.trace->requests.size(), options.trace_options.speed,
                           options.trace_options.length_scale);
  } else {
    text = absl::StrCat("open loop, ", process, " arrivals");
    if (options.ramp.has_value()) {
      absl::StrAppend(&text, ", ramp of rates");
    } else {
      absl::StrAppend(&text, ", ", arrivals.rate, " requests/s");
    }
  }
  if (arrivals.process == ArrivalProcess::kGamma) {
    absl::StrAppend(&text, ", burstiness ", arrivals.burstiness);
  }
  return text;
}

class LoadTest {
 public:
  LoadTest(Options options, std::ostream& out, std::ostream& err)
      : options_(std::move(options)), out_(out), err_(err), terminal_(isatty(STDERR_FILENO) != 0) {}

  absl::StatusOr<bool> Run() {
    LYNX_RETURN_IF_ERROR(Prepare());
    TestReport report;
    report.setup = setup_;
    StopSignals stop;
    if (options_.ramp.has_value()) {
      RunRamp(stop, report);
    } else {
      report.runs.push_back(RunOnce(options_.arrivals.rate, options_.seed, "load", stop));
      if (options_.closed_loop || options_.trace.has_value()) report.runs.back().asked_rate = 0;
    }
    report.broken_off = stop.Came();
    PrintReport(report, out_);
    out_ << std::flush;
    LYNX_RETURN_IF_ERROR(WriteFiles(report));
    return std::any_of(report.runs.begin(), report.runs.end(),
                       [](const RunResult& run) { return run.ok() > 0; });
  }

 private:
  absl::Status Prepare() {
    LYNX_RETURN_IF_ERROR(AllowOpenFiles(options_));
    const absl::Duration patience = std::min(options_.timeout, kProbeTimeout);
    SocketTransport::Options transport{.url = {},
                                       .headers = options_.headers,
                                       .keep_alive = options_.keep_alive,
                                       .connect_timeout = std::min(patience, absl::Seconds(10))};
    LYNX_ASSIGN_OR_RETURN(transport.url,
                          http::ParseUrl(EndpointUrl(options_.base_url, options_.endpoint)));
    LYNX_ASSIGN_OR_RETURN(transport_, SocketTransport::Create(transport, clock_));
    if (options_.model.empty()) {
      LYNX_ASSIGN_OR_RETURN(options_.model,
                            FindModel(options_.base_url, options_.headers, patience));
    }
    LYNX_ASSIGN_OR_RETURN(body_, RequestBody::Create({.endpoint = options_.endpoint,
                                                      .model = options_.model,
                                                      .temperature = options_.temperature,
                                                      .ignore_eos = options_.ignore_eos,
                                                      .include_usage = options_.include_usage,
                                                      .running_usage = options_.running_usage,
                                                      .extra = options_.extra_body}));
    if (!options_.prompts.has_value()) {
      LYNX_ASSIGN_OR_RETURN(scale_, MeasureScale(options_.base_url, options_.headers, *body_,
                                                 options_.seed, patience));
    }
    if (options_.trace.has_value() && options_.trace->without_answer > 0) {
      err_ << absl::StrFormat(
          "lynx loadtest: left out %d requests of the trace that had no answer\n",
          options_.trace->without_answer);
    }
    setup_ = {.url = EndpointUrl(options_.base_url, options_.endpoint),
              .model = options_.model,
              .started_at = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()),
              .seed = options_.seed,
              .load = DescribeLoad(options_),
              .slo = options_.slo,
              .attainment = options_.attainment,
              .tokens_per_word = options_.prompts.has_value() ? 0 : scale_.per_word,
              .options = options_.described};
    return absl::OkStatus();
  }

  std::unique_ptr<Workload> MakeWorkload(double rate, uint64_t seed) const {
    ArrivalOptions arrivals = options_.arrivals;
    arrivals.rate = rate;
    if (options_.trace.has_value()) {
      TraceOptions trace = options_.trace_options;
      trace.scale = scale_;
      return MakeTraceWorkload(trace, *options_.trace, *body_);
    }
    if (options_.prompts.has_value()) {
      return MakePromptWorkload(arrivals, *options_.prompts, options_.output, seed, *body_);
    }
    return MakeSyntheticWorkload({.arrivals = arrivals,
                                  .input = options_.input,
                                  .output = options_.output,
                                  .prefix_tokens = options_.prefix_tokens,
                                  .prefix_groups = options_.prefix_groups,
                                  .scale = scale_,
                                  .seed = seed},
                                 *body_);
  }

  // How much of a run is over, where that can be told.
  std::optional<double> ShareDone(const LoadDriver& driver, absl::Duration elapsed) const {
    double share = 0;
    int64_t planned = options_.requests;
    if (planned == 0 && options_.trace.has_value()) {
      planned = static_cast<int64_t>(options_.trace->requests.size()) - options_.warmup;
    }
    if (planned > 0) {
      share = static_cast<double>(driver.ended()) /
              static_cast<double>(std::max<int64_t>(1, planned + options_.warmup));
    }
    if (options_.duration < absl::InfiniteDuration()) {
      share = std::max(share, absl::FDivDuration(elapsed, options_.duration));
    }
    return share > 0 ? std::optional<double>(share) : std::nullopt;
  }

  RunResult RunOnce(double rate, uint64_t seed, const std::string& label, StopSignals& stop) {
    const std::unique_ptr<Workload> workload = MakeWorkload(rate, seed);
    const DriverOptions driver_options{
        .closed_loop = options_.closed_loop,
        .max_open = options_.max_open,
        .warmup = options_.warmup,
        .requests = options_.requests > 0 ? options_.requests : kMaxRequests,
        .duration = options_.duration,
        .timeout = options_.timeout};
    Progress progress(err_, terminal_, label);
    const double cpu_before = CpuSeconds();
    const uint64_t connections_before = transport_->connections_opened();
    const uint64_t resent_before = transport_->resent();
    const absl::Time start = clock_.Now();
    LoadDriver driver(driver_options, *workload, *transport_, next_id_, start);
    transport_->SetObserver(&driver);
    transport_->ForgetTurns();
    while (!driver.done()) {
      if (stop.Came()) driver.Stop(clock_.Now());
      driver.Tick(clock_.Now());
      const absl::Duration elapsed = clock_.Now() - start;
      progress.Show({.elapsed = elapsed,
                     .sent = driver.sent(),
                     .ended = driver.ended(),
                     .failed = driver.failed(),
                     .open = driver.open(),
                     .output_tokens = driver.output_tokens(),
                     .share = ShareDone(driver, elapsed)});
      if (driver.done()) break;
      transport_->Poll(std::min(driver.NextWake() - clock_.Now(), kLongestWait), stop.fd());
    }
    progress.Finish();
    transport_->SetObserver(nullptr);
    next_id_ = driver.next_id();
    RunResult result =
        MakeRunResult(driver.TakeLog(), options_.slo,
                      {.wall_s = absl::ToDoubleSeconds(clock_.Now() - start),
                       .cpu_s = CpuSeconds() - cpu_before,
                       .longest_turn_s = absl::ToDoubleSeconds(transport_->longest_turn()),
                       .connections = transport_->connections_opened() - connections_before,
                       .resent = transport_->resent() - resent_before});
    result.asked_rate = rate;
    if (result.measured == 0 && !stop.Came()) {
      err_ << label << ": no request was measured: "
           << (result.warmup > 0 ? "all that were due were --warmup\n"
                                 : "none was due; a higher rate or a longer --duration has some\n");
    }
    return result;
  }

  void RunRamp(StopSignals& stop, TestReport& report) {
    report.ramp = true;
    RateSearch search(*options_.ramp, options_.ramp_precision);
    while (const std::optional<double> rate = search.Next()) {
      const std::string label = absl::StrFormat("%.3f requests/s", *rate);
      // Another seed for each: a server that caches prefixes has seen the prompts of the last run.
      const uint64_t seed = MixSeed(options_.seed, report.runs.size());
      RunResult run = RunOnce(*rate, seed, label, stop);
      if (stop.Came()) return;  // Half a run proves nothing.
      if (run.measured == 0) {  // Proves nothing either.
        report.runs.push_back(std::move(run));
        return;
      }
      const bool holds = run.attainment >= options_.attainment;
      err_ << absl::StrFormat("%s: %.1f%% met the SLO%s\n", label, 100 * run.attainment,
                              holds ? "" : ", too few");
      report.runs.push_back(std::move(run));
      search.Report(holds);
      report.capacity = search.highest();
      report.lowest_failed = search.lowest_failed();
    }
  }

  absl::Status WriteFiles(const TestReport& report) const {
    if (!options_.json.empty()) {
      LYNX_RETURN_IF_ERROR(WriteFileAtomically(options_.json, ToJson(report)));
    }
    if (!options_.html.empty()) {
      LYNX_RETURN_IF_ERROR(WriteFileAtomically(options_.html, ToHtml(report)));
    }
    if (!options_.records.empty()) {
      LYNX_RETURN_IF_ERROR(WriteFileAtomically(options_.records, RecordsToJsonl(report)));
    }
    return absl::OkStatus();
  }

  Options options_;
  std::ostream& out_;
  std::ostream& err_;
  const bool terminal_;
  const SteadyClock& clock_ = SteadyClock::Instance();
  std::unique_ptr<SocketTransport> transport_;
  std::optional<RequestBody> body_;
  TokenScale scale_;
  TestSetup setup_;
  RequestId next_id_ = 0;
};

}  // namespace

int RunLoadtest(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  const auto fail = [&](const absl::Status& status, int code) {
    err << "lynx loadtest: " << std::string(status.message()) << "\n";
    return code;
  };
  absl::StatusOr<std::optional<Options>> options = ParseOptions(argc, argv, out);
  if (!options.ok()) return fail(options.status(), 2);
  if (!options->has_value()) return 0;
  LoadTest test(**std::move(options), out, err);
  const absl::StatusOr<bool> succeeded = test.Run();
  if (!succeeded.ok()) {
    return fail(succeeded.status(), absl::IsInvalidArgument(succeeded.status()) ? 2 : 1);
  }
  return *succeeded ? 0 : 1;
}

}  // namespace lynx::loadtest
