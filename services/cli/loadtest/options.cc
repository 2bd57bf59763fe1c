#include "services/cli/loadtest/options.h"

#include <filesystem>
#include <limits>
#include <random>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/config/flag_set.h"
#include "services/cli/loadtest/limits.h"
#include "services/cli/loadtest/request_body.h"

namespace lynx::loadtest {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 30;

// The flags as they are given.
struct Flags {
  std::string url;
  std::string model;
  std::string endpoint = "chat";
  std::string api_key;
  std::vector<std::string> header;
  bool keep_alive = true;

  double rate = 0;
  std::string arrivals = "poisson";
  double burstiness = 1;
  int64_t concurrency = 0;
  int64_t max_open = 1024;
  std::string trace;
  std::string trace_format = "auto";
  double speed = 1;
  double length_scale = 1;
  int64_t block_tokens = 512;

  std::string prompts;
  std::string input_tokens = "128";
  std::string output_tokens = "64";
  int64_t prefix_tokens = 0;
  int64_t prefix_groups = 1;
  int64_t seed = -1;

  int64_t warmup = 0;
  int64_t requests = 0;
  absl::Duration duration;
  absl::Duration timeout = absl::Minutes(10);

  std::string slo;
  double attainment = 0.9;
  std::string ramp;
  double ramp_precision = 0.1;

  double temperature = 0;
  bool ignore_eos = true;
  bool include_usage = true;
  bool running_usage = false;
  std::string extra_body;

  std::string json;
  std::string html;
  std::string records;
};

void Declare(config::FlagSet& set, Flags& flags) {
  set.AddPositional("url", &flags.url, "base URL of the server, with or without /v1");
  // LYNX_MODEL is the folder that the nodes load.
  set.AddString("model", &flags.model, "name of the model; empty takes the server's first");
  set.IgnoreEnvironment("model");
  set.AddChoice("endpoint", &flags.endpoint, {"chat", "completions"},
                "what to ask: /v1/chat/completions or /v1/completions");
  set.AddSecret("api-key", &flags.api_key, "sent as Authorization: Bearer");
  set.AddStrings("header", &flags.header, "more header fields, each as 'Name: value'");
  set.AddBool("keep-alive", &flags.keep_alive, "use connections again");

  set.AddDouble("rate", &flags.rate, {0, kMaxRate},
                "open loop: requests a second, whatever the server does; 0 for other loads");
  set.AddChoice("arrivals", &flags.arrivals, {"poisson", "gamma", "fixed"},
                "gaps between requests of an open loop");
  set.AddDouble("burstiness", &flags.burstiness, {0.01, 1000},
                "gamma: its shape; 1 is Poisson, less comes in bursts, more is more even");
  set.AddInt("concurrency", &flags.concurrency, {0, kMaxOpen},
             "closed loop: as many requests are always open; 0 for other loads");
  set.AddInt("max-open", &flags.max_open, {1, kMaxOpen},
             "requests open at a time; those due beyond are sent late, which is counted");
  set.AddString("trace", &flags.trace, "file of a recorded trace to replay");
  set.AddChoice("trace-format", &flags.trace_format, {"auto", "mooncake", "azure", "burstgpt"},
                "its format; auto goes by its first line");
  set.AddDouble("speed", &flags.speed, {0.001, 100'000}, "trace: how much faster to replay it");
  set.AddDouble("length-scale", &flags.length_scale, {0.0001, 1000},
                "trace: multiplies all lengths, blocks too");
  set.AddInt("block-tokens", &flags.block_tokens, {1, 1 << 20},
             "trace: tokens of the prompt that one hash id stands for");

  set.AddString("prompts", &flags.prompts,
                "JSONL file of prompts: objects with prompt or messages, and max_tokens if wanted");
  set.AddString("input-tokens", &flags.input_tokens,
                "length of made-up prompts: N, uniform:LOW,HIGH, normal:MEAN,SD, "
                "lognormal:MEDIAN,SIGMA or exponential:MEAN");
  set.AddString("output-tokens", &flags.output_tokens, "length of answers, in the same forms");
  set.AddInt("prefix-tokens", &flags.prefix_tokens, {0, kMaxTokens},
             "how much of a made-up prompt, from its start, is shared with others");
  set.AddInt("prefix-groups", &flags.prefix_groups, {1, 1 << 20},
             "how many different shared starts there are");
  set.AddInt("seed", &flags.seed, {-1, std::numeric_limits<int64_t>::max()},
             "of arrivals, lengths and texts; -1 draws one, which is reported");

  set.AddInt("warmup", &flags.warmup, {0, kMaxRequests},
             "first requests of a run that are sent and left out of all figures");
  set.AddInt("requests", &flags.requests, {0, kMaxRequests},
             "requests to measure; 0 for as many as the duration brings");
  set.AddDuration("duration", &flags.duration, {absl::ZeroDuration(), absl::Hours(24 * 7)},
                  "how long to send; 0 for until --requests or the trace is through, or 30 s");
  set.AddDuration("timeout", &flags.timeout, {absl::Milliseconds(1), absl::Hours(24)},
                  "longest time from the sending of a request to its end");

  set.AddString("slo", &flags.slo, "limits of a good request, like ttft=2s,tpot=100ms,e2e=30s");
  set.AddDouble("attainment", &flags.attainment, {0.01, 1},
                "share of the requests that must meet --slo for a rate of --ramp to hold");
  set.AddString("ramp", &flags.ramp,
                "find the highest rate that holds: rates like 1,2,4,8, or LOW:HIGH to search");
  set.AddDouble("ramp-precision", &flags.ramp_precision, {0.01, 1},
                "how near the search of --ramp comes, as a share of the rate");

  set.AddDouble("temperature", &flags.temperature, {0, 2}, "0 is greedy");
  set.AddBool("ignore-eos", &flags.ignore_eos,
              "ask for answers of exactly the wanted length (ignore_eos, min_tokens)");
  set.AddBool("include-usage", &flags.include_usage,
              "ask for token counts at the end of streams (stream_options)");
  set.AddBool("running-usage", &flags.running_usage,
              "ask for token counts with each piece (continuous_usage_stats)");
  set.AddString("extra-body", &flags.extra_body, "JSON object of more fields for each request");

  set.AddString("json", &flags.json, "file to write all figures to");
  set.AddString("html", &flags.html, "file to write a report with charts to");
  set.AddString("records", &flags.records, "file to write each request to, as JSONL");
}

absl::Status BadFlag(const char* flag, const std::string& given, const std::string& wanted) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": '", given, "', wanted ", wanted));
}

absl::Status BadFlag(const char* flag, const std::string& given, const absl::Status& wanted) {
  return BadFlag(flag, given, std::string(wanted.message()));
}

// So that an hour of load does not end in a file that cannot be written.
absl::Status CheckWritable(const char* flag, const std::string& file) {
  if (file.empty()) return absl::OkStatus();
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    return BadFlag(flag, file, "a file to write, not a folder");
  }
  const std::filesystem::path folder = std::filesystem::absolute(file, error).parent_path();
  if (!std::filesystem::is_directory(folder, error)) {
    return absl::NotFoundError(
        absl::StrCat("--", flag, ": '", file, "': there is no folder ", folder.string()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> BaseUrl(std::string url) {
  if (url.empty()) {
    return absl::InvalidArgumentError("URL: missing, wanted one like http://127.0.0.1:8080");
  }
  if (url.starts_with("https://")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "URL: '", url,
        "': TLS is not supported; wanted http://, for example of a proxy on this machine that "
        "speaks TLS to the server"));
  }
  if (!url.starts_with("http://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("URL: '", url, "', wanted one like http://127.0.0.1:8080"));
  }
  if (url.find_first_of("?#") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("URL: '", url, "', wanted one without '?' and '#'"));
  }
  while (url.ends_with('/')) url.pop_back();
  if (!url.ends_with("/v1")) url += "/v1";
  LYNX_RETURN_IF_ERROR(http::ParseUrl(url).status());
  return url;
}

absl::StatusOr<http::Headers> ParseHeaders(const Flags& flags) {
  http::Headers headers = {{"Content-Type", "application/json"}, {"Accept", "text/event-stream"}};
  if (!flags.api_key.empty()) {
    if (flags.api_key.find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos) {
      return absl::InvalidArgumentError("--api-key: holds a line break");
    }
    headers.emplace_back("Authorization", "Bearer " + flags.api_key);
  }
  for (const std::string& field : flags.header) {
    const size_t colon = field.find(':');
    const std::string name = field.substr(0, colon);
    const bool named = !name.empty() && name.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789!#$%&'*+-.^_`|~") == std::string::npos;
    if (colon == std::string::npos || !named ||
        field.find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos) {
      return BadFlag("header", field, "a field like 'X-Name: value', without a comma in the value");
    }
    for (const char* ours : {"Host", "Content-Length", "Transfer-Encoding", "Connection"}) {
      if (http::EqualsIgnoreCase(name, ours)) {
        return BadFlag("header", field, "a field other than those that frame the request");
      }
    }
    headers.emplace_back(name, std::string(absl::StripAsciiWhitespace(field.substr(colon + 1))));
  }
  return headers;
}

ArrivalProcess ParseArrivals(const std::string& name) {
  if (name == "gamma") return ArrivalProcess::kGamma;
  if (name == "fixed") return ArrivalProcess::kFixed;
  return ArrivalProcess::kPoisson;
}

TraceFormat ParseTraceFormat(const std::string& name) {
  for (const TraceFormat format :
       {TraceFormat::kMooncake, TraceFormat::kAzure, TraceFormat::kBurstGpt}) {
    if (name == TraceFormatName(format)) return format;
  }
  return TraceFormat::kAuto;
}

// Which one of the kinds of load it is.
absl::Status CheckLoad(const Flags& flags) {
  std::vector<std::string> given;
  if (flags.rate > 0) given.push_back("--rate");
  if (flags.concurrency > 0) given.push_back("--concurrency");
  if (!flags.trace.empty()) given.push_back("--trace");
  if (!flags.ramp.empty()) given.push_back("--ramp");
  if (given.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted one of --rate and --concurrency (over 0), --trace and --ramp; given: ",
                     given.empty() ? "none" : absl::StrJoin(given, " and ")));
  }
  if (flags.rate > 0 && flags.rate < kMinRate) {
    return BadFlag("rate", absl::StrCat(flags.rate),
                   absl::StrCat("requests a second, from ", kMinRate, " to ", kMaxRate));
  }
  if (flags.burstiness != 1 && flags.arrivals != "gamma") {
    return BadFlag("burstiness", absl::StrCat(flags.burstiness), "--arrivals gamma beside it");
  }
  if (!flags.trace.empty() && !flags.prompts.empty()) {
    return absl::InvalidArgumentError("--prompts: a trace makes its own prompts");
  }
  if (!flags.ramp.empty() && flags.slo.empty()) {
    return absl::InvalidArgumentError(
        "--ramp: wanted --slo beside it, which says what a rate must keep");
  }
  return absl::OkStatus();
}

absl::Status ReadFiles(const Flags& flags, Options& options) {
  if (!flags.trace.empty()) {
    LYNX_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.trace, kMaxFileBytes));
    LYNX_ASSIGN_OR_RETURN(options.trace,
                          ParseTrace(text, flags.trace, ParseTraceFormat(flags.trace_format)));
  }
  if (!flags.prompts.empty()) {
    LYNX_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.prompts, kMaxFileBytes));
    LYNX_ASSIGN_OR_RETURN(options.prompts, ParsePrompts(text, flags.prompts, options.endpoint));
  }
  return absl::OkStatus();
}

uint64_t Seed(int64_t given) {
  if (given >= 0) return static_cast<uint64_t>(given);
  std::random_device device;
  return device() & 0x7FFFFFFF;  // Short enough to type.
}

absl::StatusOr<Options> Check(const Flags& flags) {
  LYNX_RETURN_IF_ERROR(CheckLoad(flags));
  const auto lengths = [](const char* flag, const std::string& text) -> absl::StatusOr<Lengths> {
    auto parsed = Lengths::Parse(text);
    if (!parsed.ok()) return BadFlag(flag, text, parsed.status());
    return parsed;
  };
  LYNX_ASSIGN_OR_RETURN(const Lengths input, lengths("input-tokens", flags.input_tokens));
  LYNX_ASSIGN_OR_RETURN(const Lengths output, lengths("output-tokens", flags.output_tokens));
  Options options;
  options.input = input;
  options.output = output;
  LYNX_ASSIGN_OR_RETURN(options.base_url, BaseUrl(flags.url));
  LYNX_ASSIGN_OR_RETURN(options.headers, ParseHeaders(flags));
  options.model = flags.model;
  options.endpoint = flags.endpoint == "chat" ? Endpoint::kChat : Endpoint::kCompletions;
  options.keep_alive = flags.keep_alive;

  options.closed_loop = flags.concurrency > 0;
  options.max_open = options.closed_loop ? flags.concurrency : flags.max_open;
  options.arrivals = {.process = ParseArrivals(flags.arrivals),
                      .rate = options.closed_loop ? 1 : flags.rate,
                      .burstiness = flags.burstiness};
  options.seed = Seed(flags.seed);
  options.trace_options.speed = flags.speed;
  options.trace_options.length_scale = flags.length_scale;
  options.trace_options.block_tokens = flags.block_tokens;
  options.trace_options.seed = options.seed;
  options.prefix_tokens = flags.prefix_tokens;
  options.prefix_groups = flags.prefix_groups;

  options.warmup = flags.warmup;
  options.requests = flags.requests;
  options.timeout = flags.timeout;
  if (flags.duration > absl::ZeroDuration()) {
    options.duration = flags.duration;
  } else if (flags.requests == 0 && flags.trace.empty()) {
    options.duration = absl::Seconds(30);
  }

  if (!flags.slo.empty()) {
    auto slo = ParseSlo(flags.slo);
    if (!slo.ok()) return BadFlag("slo", flags.slo, slo.status());
    options.slo = *slo;
  }
  options.attainment = flags.attainment;
  if (!flags.ramp.empty()) {
    auto ramp = ParseRamp(flags.ramp);
    if (!ramp.ok()) return BadFlag("ramp", flags.ramp, ramp.status());
    options.ramp = *std::move(ramp);
  }
  options.ramp_precision = flags.ramp_precision;

  options.temperature = flags.temperature;
  options.ignore_eos = flags.ignore_eos;
  options.include_usage = flags.include_usage;
  options.running_usage = flags.running_usage;
  options.extra_body = flags.extra_body;
  RequestBody::Options trial;
  trial.extra = flags.extra_body;
  if (const auto body = RequestBody::Create(trial); !body.ok()) {
    return BadFlag("extra-body", flags.extra_body,
                   absl::StrCat("a JSON object (", std::string(body.status().message()), ")"));
  }
  options.json = flags.json;
  options.html = flags.html;
  options.records = flags.records;
  LYNX_RETURN_IF_ERROR(CheckWritable("json", flags.json));
  LYNX_RETURN_IF_ERROR(CheckWritable("html", flags.html));
  LYNX_RETURN_IF_ERROR(CheckWritable("records", flags.records));
  LYNX_RETURN_IF_ERROR(ReadFiles(flags, options));
  return options;
}

}  // namespace

absl::StatusOr<std::optional<Options>> ParseOptions(int argc, const char* const* argv,
                                                    std::ostream& out) {
  Flags flags;
  config::FlagSet set("lynx loadtest",
                      "Puts a server of the OpenAI API under load and measures what its users "
                      "would see.");
  set.SetOutput(&out);
  Declare(set, flags);
  LYNX_ASSIGN_OR_RETURN(const config::ParseOutcome outcome, set.Parse(argc, argv));
  if (outcome == config::ParseOutcome::kPrinted) return std::nullopt;
  LYNX_ASSIGN_OR_RETURN(Options options, Check(flags));
  options.described = set.Values();
  for (auto& [name, value] : options.described) {
    if (name == "seed") value = absl::StrCat(options.seed);
    if (name != "header") continue;
    // Values may be secrets.
    value = absl::StrJoin(flags.header, ",", [](std::string* to, const std::string& field) {
      to->append(field.substr(0, field.find(':')));
    });
  }
  return options;
}

}  // namespace lynx::loadtest
