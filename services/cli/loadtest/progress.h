#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "absl/time/time.h"

namespace lynx::loadtest {

// Where a run stands.
struct ProgressState {
  absl::Duration elapsed;
  int64_t sent = 0;
  int64_t ended = 0;
  int64_t failed = 0;
  int64_t open = 0;
  int64_t output_tokens = 0;
  std::optional<double> share;  // Of the run, as far as it can be known.
};

// Says how far a run has come: a bar that is drawn over on a terminal, else a line now and then.
class Progress {
 public:
  // `out` is borrowed. `label` comes first on each line.
  Progress(std::ostream& out, bool terminal, std::string label);
  // Call as often as you like: it prints four times a second, or every 10 s.
  void Show(const ProgressState& state);
  // Ends the bar's line.
  void Finish();

 private:
  std::ostream& out_;
  const bool terminal_;
  const std::string label_;
  absl::Duration shown_at_;
  ProgressState shown_;
  bool drawn_ = false;
};

// One line of it, without the label.
std::string ProgressText(const ProgressState& now, const ProgressState& before);
std::string ProgressBar(double share, int width);

}  // namespace lynx::loadtest
