#include "common/node/step_executor.h"

#include <future>
#include <memory>

#include "common/base/clock.h"
#include "common/concurrency/event_loop.h"
#include "common/http/health.h"
#include "common/telemetry/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ThreadStepExecutorTest, AStepThatDoesNotEndIsNotAlive) {  // K8S-2
  telemetry::Registry registry;
  ManualClock clock;
  http::HealthPages health(registry, clock);
  const auto progress = health.AddHeartbeat("step", absl::Minutes(5));
  ThreadEventLoop loop;
  ThreadStepExecutor executor(loop, [&](bool busy) { progress->SetBusy(busy); });
  clock.Advance(absl::Hours(1));
  EXPECT_THAT(health.ReasonsNotAlive(), IsEmpty()) << "a node without work";

  std::promise<void> begun;
  std::promise<void> end;
  std::promise<void> done;
  loop.RunAndWait([&] {
    executor.Run(
        [&] {
          begun.set_value();
          end.get_future().wait();
        },
        [&] { done.set_value(); });
  });
  begun.get_future().wait();
  clock.Advance(absl::Minutes(5));
  EXPECT_THAT(health.ReasonsNotAlive(), IsEmpty()) << "slow, not stuck";
  clock.Advance(absl::Seconds(1));
  EXPECT_THAT(health.ReasonsNotAlive(), ElementsAre(HasSubstr("step: no progress")));

  end.set_value();
  done.get_future().wait();
  EXPECT_THAT(health.ReasonsNotAlive(), IsEmpty());
  clock.Advance(absl::Hours(1));
  EXPECT_THAT(health.ReasonsNotAlive(), IsEmpty()) << "idle again";
  loop.Stop();
}

}  // namespace
}  // namespace lynx::node
