#include "services/cli/loadtest/progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lynx::loadtest {
namespace {

constexpr int kBarWidth = 24;

}  // namespace

std::string ProgressBar(double share, int width) {
  const int filled = static_cast<int>(std::clamp(share, 0.0, 1.0) * width);
  return absl::StrCat("[", std::string(static_cast<size_t>(filled), '#'),
                      std::string(static_cast<size_t>(width - filled), '.'), "]");
}

std::string ProgressText(const ProgressState& now, const ProgressState& before) {
  const double seconds = absl::ToDoubleSeconds(now.elapsed - before.elapsed);
  const auto rate = [&](int64_t later, int64_t earlier) {
    return seconds > 0 ? static_cast<double>(later - earlier) / seconds : 0.0;
  };
  std::string text = absl::StrFormat(
      "%s  %d sent, %d done, %d open, %.1f requests/s, %.0f tokens/s",
      absl::FormatDuration(absl::Trunc(now.elapsed, absl::Seconds(1))), now.sent, now.ended,
      now.open, rate(now.ended, before.ended), rate(now.output_tokens, before.output_tokens));
  if (now.failed > 0) absl::StrAppend(&text, ", ", now.failed, " failed");
  return text;
}

Progress::Progress(std::ostream& out, bool terminal, std::string label)
    : out_(out), terminal_(terminal), label_(std::move(label)) {}

void Progress::Show(const ProgressState& state) {
  const absl::Duration pause = terminal_ ? absl::Milliseconds(250) : absl::Seconds(10);
  if (state.elapsed - shown_at_ < pause) return;
  shown_at_ = state.elapsed;
  const std::string text = ProgressText(state, shown_);
  shown_ = state;
  if (!terminal_) {
    out_ << label_ << ": " << text << "\n" << std::flush;
    return;
  }
  drawn_ = true;
  out_ << "\r\x1b[K" << label_ << " ";
  if (state.share.has_value()) out_ << ProgressBar(*state.share, kBarWidth) << " ";
  out_ << text << std::flush;
}

void Progress::Finish() {
  if (std::exchange(drawn_, false)) out_ << "\r\x1b[K" << std::flush;
}

}  // namespace lynx::loadtest
