#include "services/cli/top/top.h"

#include <unistd.h>

#include <chrono>
#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/config/flag_set.h"
#include "common/http/client.h"
#include "services/cli/top/top_view.h"

namespace lynx::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);
constexpr char kHome[] = "\033[H";
constexpr char kClearLine[] = "\033[K";
constexpr char kClearBelow[] = "\033[J";

absl::StatusOr<std::string> Get(const std::string& url) {
  const auto response =
      http::HttpClient({.max_response_bytes = size_t{64} << 20}).Get(url, {}, kTimeout);
  if (!response.ok()) {
    return absl::Status(response.status().code(),
                        absl::StrCat(url, ": ", std::string(response.status().message())));
  }
  if (response->status == 200) return response->body;
  return absl::UnavailableError(absl::StrCat(url, ": HTTP ", response->status, ": ",
                                             ReplaceInvalidUtf8(response->body.substr(0, 300))));
}

absl::StatusOr<ClusterSample> Sample(const std::string& url) {
  LYNX_ASSIGN_OR_RETURN(const std::string nodes, Get(url + "/nodes"));
  LYNX_ASSIGN_OR_RETURN(const std::string metrics, Get(url + "/metrics"));
  ClusterSample sample;
  sample.at = absl::Now();
  sample.metrics = MetricsPage::Parse(metrics);
  absl::StatusOr<std::vector<NodeLine>> lines = ParseNodesPage(nodes);
  if (!lines.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(url, "/nodes: ", std::string(lines.status().message())));
  }
  sample.nodes = *std::move(lines);
  return sample;
}

void Sleep(absl::Duration duration) {
  std::this_thread::sleep_for(absl::ToChronoNanoseconds(duration));
}

// What nodes and routers say may hold anything, codes that move the cursor among it.
std::string Printable(std::string text) {
  text = ReplaceInvalidUtf8(text);
  for (char& c : text) {
    if (c != '\n' && (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)) c = '?';
  }
  return text;
}

// Over what was there before, without a flicker.
std::string OverTheLast(const std::string& text) {
  std::string screen = kHome;
  for (const char c : text) {
    if (c == '\n') absl::StrAppend(&screen, kClearLine);
    screen += c;
  }
  return screen + kClearBelow;
}

}  // namespace

int RunTop(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  std::string url = "http://127.0.0.1:8080";
  absl::Duration interval = absl::Seconds(1);
  absl::Duration window = absl::Seconds(10);
  bool once = false;
  config::FlagSet flags("lynx top", "Shows what a cluster does now.");
  flags.SetOutput(&out);
  flags.AddPositional("url", &url, "a router: its admin address where it has one");
  flags.AddDuration("interval", &interval, {absl::Milliseconds(100), absl::Hours(1)},
                    "time between two looks");
  flags.AddDuration("window", &window, {absl::Milliseconds(100), absl::Hours(1)},
                    "rates and quantiles are over so much time");
  flags.AddBool("once", &once, "print one view, after one interval, and end");
  const absl::StatusOr<config::ParseOutcome> parsed = flags.Parse(argc, argv);
  absl::Status wrong = parsed.status();
  if (parsed.ok() && *parsed == config::ParseOutcome::kPrinted) return 0;
  while (!url.empty() && url.back() == '/') url.pop_back();
  if (wrong.ok()) wrong = http::ParseUrl(url).status();
  if (!wrong.ok()) {
    err << "lynx top: " << wrong.message() << "\n";
    return 2;
  }

  const bool terminal = !once && isatty(STDOUT_FILENO) != 0;
  std::deque<ClusterSample> samples;
  for (;;) {
    absl::StatusOr<ClusterSample> sample = Sample(url);
    if (!sample.ok() && once) {
      err << "lynx top: " << Printable(std::string(sample.status().message())) << "\n";
      return 1;
    }
    std::string view = absl::StrCat(
        url, "  ", absl::FormatTime("%H:%M:%S", absl::Now(), absl::LocalTimeZone()), "\n\n");
    if (sample.ok()) {
      samples.push_back(*std::move(sample));
      // The oldest that is left is the last one from before the window.
      while (samples.size() > 2 && samples.back().at - samples[1].at >= window) samples.pop_front();
      absl::StrAppend(&view, TopView(samples.front(), samples.back()));
    } else {
      absl::StrAppend(&view, std::string(sample.status().message()), "\n");
    }
    if (!once || samples.size() > 1) {
      view = Printable(std::move(view));
      out << (terminal ? OverTheLast(view) : view + "\n") << std::flush;
      if (once) return 0;
    }
    if (!out) return 1;  // Nobody reads any more.
    Sleep(interval);
  }
}

}  // namespace lynx::cli
