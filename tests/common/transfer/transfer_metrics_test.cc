#include "common/transfer/transfer_metrics.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::transfer {
namespace {

using ::testing::HasSubstr;

int64_t Lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

// A page whose families come and go cannot be told from a broken one, and a rate over a series that
// begins at 1 misses its first event.
TEST(TransferMetricsTest, NoEventMakesANewSeries) {
  telemetry::Registry registry;
  TransferMetrics metrics(registry, "recv", "tcp");
  const int64_t before = Lines(registry.Render());
  for (int reason = 0; reason <= static_cast<int>(Drop::kLateReply); ++reason) {
    metrics.OnDropped(static_cast<Drop>(reason));
  }
  for (const absl::Status& end :
       {absl::OkStatus(), absl::InternalError(""), absl::DeadlineExceededError(""),
        absl::AbortedError(""), absl::CancelledError(""), absl::DataLossError(""),
        absl::FailedPreconditionError(""), absl::UnavailableError("")}) {
    metrics.OnTransferEnd(end, 1, absl::Seconds(1));
  }
  metrics.OnLeaseExpired();
  metrics.OnHandshake(absl::Seconds(1));
  EXPECT_EQ(Lines(registry.Render()), before);
}

TEST(TransferMetricsTest, ReasonsOfDropsHaveTheirNames) {
  telemetry::Registry registry;
  TransferMetrics metrics(registry, "send", "tcp");
  const auto count = [&](const char* reason) {
    return "lynx_kv_transfer_dropped_total{reason=\"" + std::string(reason) + "\"} 1\n";
  };
  EXPECT_THAT(registry.Render(), Not(HasSubstr(count("stale_epoch"))));
  metrics.OnDropped(Drop::kMalformed);
  metrics.OnDropped(Drop::kStaleEpoch);
  metrics.OnDropped(Drop::kLateReply);
  for (const char* reason : {"malformed", "stale_epoch", "late_reply"}) {
    EXPECT_THAT(registry.Render(), HasSubstr(count(reason)));
  }
}

}  // namespace
}  // namespace lynx::transfer
