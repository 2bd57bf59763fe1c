#pragma once

#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace lynx::cli {

// Says now and then how far a long run has come.
class Progress {
 public:
  Progress(std::ostream& out, const Clock& clock)
      : out_(out), clock_(clock), start_(clock.Now()), last_(start_) {}

  // `done` of `all` parts of `what` are finished.
  void Report(const std::string& what, size_t done, size_t all) {
    const absl::Time now = clock_.Now();
    if (now - last_ < absl::Seconds(5)) return;
    last_ = now;
    out_ << absl::StrCat("lynx eval: ", what, ": ", done, " of ", all, ", ",
                         absl::FormatDuration(absl::Trunc(now - start_, absl::Seconds(1))),
                         " so far\n")
         << std::flush;
  }

 private:
  std::ostream& out_;
  const Clock& clock_;
  const absl::Time start_;
  absl::Time last_;
};

}  // namespace lynx::cli
